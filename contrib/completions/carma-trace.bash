# bash completion of carma-trace
_carma_trace() {
	local word=${COMP_WORDS[COMP_CWORD]}
	COMPREPLY=()
	if [[ $COMP_CWORD -eq 1 && $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "--output --help -m" -- "$word")
	elif [[ $COMP_CWORD -eq 1 ]]; then
		mapfile -t COMPREPLY < <(compgen -W "python torchrun accelerate deepspeed" -f -- "$word")
	else
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
	fi
}
complete -o filenames -F _carma_trace carma-trace
