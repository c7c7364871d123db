# bash completion of carma-report; made of its flags by go test -update
_carma_report() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
	COMPREPLY=()
	case $before in
	--db | --config) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
	--jobs | -j | --user | -u | --accounts | -A | --partition | -r | --clusters | -M | --state | -s | --nodelist | -N | --name | --starttime | -S | --endtime | -E | --format | -o | --delimiter | --units | --by | --from) return ;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "--version --jobs -j --user -u --accounts -A --partition -r --clusters -M --state -s --nodelist -N --name --starttime -S --endtime -E --format -o --helpformat -e --noheader -n --parsable2 -P --parsable -p --delimiter --allocations -X --units --noconvert --json --csv --html --svg --table -t --by --write --db --from --config" -- "$word")
	else
		mapfile -t COMPREPLY < <(compgen -W "summary gpus history" -f -- "$word")
	fi
}
complete -o filenames -F _carma_report carma-report
