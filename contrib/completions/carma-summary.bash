# bash completion of carma-summary
_carma_summary() {
	local word=${COMP_WORDS[COMP_CWORD]}
	COMPREPLY=()
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "--input --seq --vocab --batch --optim --precision --help" -- "$word")
	fi
}
complete -F _carma_summary carma-summary
