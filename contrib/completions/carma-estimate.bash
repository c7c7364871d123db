# bash completion of carma-estimate; made of its flags by go test -update
_carma_estimate() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
	COMPREPLY=()
	case $before in
	--summary | --config | --cases) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
	--batch | --seq | --input | --optim | --foreach | --precision | --parallel | --attn | --dropout | --params | --gpus | -G | --base | --method | --partition | -p | --gres | --carma) return ;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "--version --summary --trace --batch --seq --input --optim --foreach --precision --parallel --attn --grad-ckpt --dropout --dynamic-shapes --params --gpus -G --base --method --write --partition -p --gres --carma --config --cases --json --ascii" -- "$word")
	else
		mapfile -t COMPREPLY < <(compgen -W "" -f -- "$word")
	fi
}
complete -o filenames -F _carma_estimate carma-estimate
