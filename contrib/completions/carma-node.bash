# bash completion of carma-node; made of its flags by go test -update
_carma_node() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
	COMPREPLY=()
	case $before in
	--config) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
	--node) return ;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "--version --config --node" -- "$word")
	else
		mapfile -t COMPREPLY < <(compgen -W "agent check db doctor epilog gpus prolog readmit sample setup status task-prolog unbook" -f -- "$word")
	fi
}
complete -o filenames -F _carma_node carma-node
