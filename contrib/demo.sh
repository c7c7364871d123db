#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# make demo: a real Slurm with two nodes of four simulated A100 each, a dozen
# jobs of two users, and what became of them. Everything lives in a directory of
# its own in /tmp and goes again at the end, also after Ctrl-C.
set -uo pipefail
umask 022 # the users read their scripts

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
# Built as the user who called, shown as root. $1 is when it began.
if [ $# = 0 ]; then
	set -- "$(date +%s)"
	build/progress make "the demo's programs" deps-demo all || { echo "make demo: failed"; exit 1; }
fi
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null ||
		{ echo "make demo: failed: slurmd starts jobs as their users, so be root or install sudo" >&2; exit 1; }
	exec sudo env PATH="$PATH:/usr/sbin:/sbin" "$0" "$@"
fi
began=$1

# Short, for UNIX sockets lie below it, and where users come, as in no home.
dir=$(mktemp -d /tmp/carma-demo.XXXXXX) || exit 1
devcluster=$root/contrib/devcluster/devcluster

leave() {
	local status=$? word=passed
	"$devcluster" down "$dir" || true
	rm -rf "$dir"
	[ $status = 0 ] || word=failed
	echo "make demo: $word in $(($(date +%s) - began)) s"
}
trap leave EXIT
trap 'echo; exit 130' INT TERM

bold() { if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }

# A simulated second takes 1/20 second.
scale=20
bold "Starting Slurm: slurmctld with CARMA's plugin, two nodes of 4 simulated A100 (40 GB), time x$scale"
"$devcluster" up "$dir" --nodes 2 --gpu-model dgx-a100 --time-scale $scale || exit 1
eval "$("$devcluster" env "$dir")"
cd "$dir/jobs" || exit 1
read -r alice bob _ <<<"$CARMA_USERS"
sinfo -p gpu -t idle -o '  %N: %D nodes idle, %G' -h

# job FILE CARMA-LINE SIMJOB-OPTIONS
job() {
	printf '#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA %s\nsimjob --ramp 5s %s\n' "$2" "$3" >"$1"
	chmod 755 "$1"
}

submitted=()
submit() {
	local id
	id=$(runuser -u "$1" -- sbatch --parsable -o "%j.out" "$2") || { echo "demo: sbatch refused $2" >&2; exit 1; }
	submitted+=("$id")
}

bold "A #CARMA line with a mistake is refused at once:"
job wrong.sh 'mem=banana' '--mem 1G --smact 1 --duration 1s'
if runuser -u "$alice" -- sbatch wrong.sh 2>&1 | sed 's/^/  /'; [ "${PIPESTATUS[0]}" = 0 ]; then
	echo "demo: it was not" >&2
	exit 1
fi

bold "Twelve jobs of $alice and $bob:"
job small.sh 'mem=10G' '--mem 9G --smact 25 --duration 200s'
job large.sh 'mem=24G' '--mem 22G --spike 23G:40s --smact 45 --duration 260s'
job whole.sh 'policy=exclusive' '--mem 30G --smact 90 --duration 150s'
job liar.sh 'mem=6G' '--mem 5800M --smact 30 --duration 60s'
echo 'simjob --ramp 5s --mem 12G --smact 30 --duration 120s' >>liar.sh # when samples have seen it near its limit
echo "  #CARMA mem=10G            small.sh, 6 of $alice, 1 of $bob"
echo "  #CARMA mem=24G            large.sh, 3 of $bob"
echo "  #CARMA policy=exclusive   whole.sh, 1 of $bob"
echo "  #CARMA mem=6G             liar.sh, 1 of $alice, a little later: it will use 12G"
for _ in 1 2 3; do submit "$bob" large.sh; submit "$alice" small.sh; submit "$alice" small.sh; done
submit "$bob" whole.sh
submit "$bob" small.sh

show() {
	local n
	for n in n1 n2; do
		carma-node --node $n status --ascii | sed 's/^/  /'
	done
	squeue -h -o '  %i %T %r' -t PENDING | sort -n | awk '{ p = p " " $1 "(" $3 ")" } END { if (p) print "  waiting:" p }'
}

said_oom='' looks=0 unanswered=0
until left=$(squeue -h -t PENDING,RUNNING,COMPLETING) && [ -z "$left" ]; do # no answer is no end
	[ -n "$left" ] || [ $((unanswered++)) -lt 20 ] || { echo "demo: slurmctld does not answer" >&2; exit 1; }
	sleep 1
	if [ -z "$said_oom" ] && said_oom=$(grep -hoE 'msg="judged the end of a job".*' "$dir"/log/hooks.*.log 2>/dev/null | head -n 1) && [ -n "$said_oom" ]; then
		bold "liar.sh ran out of the GPU memory that it booked. Its neighbours are not affected; it is requeued to run alone."
		squeue -h -o '  job %i: partition %P, %T (%r), asks for %b' -p gpu-recovery
	fi
	case $((looks++)) in
	6) submit "$alice" liar.sh ;;
	esac
	case $looks in
	3 | 6 | 12) bold "The GPUs now (# used, + booked):"; show ;;
	100) echo "demo: jobs are still there after 100 s" >&2; squeue; exit 1 ;;
	esac
done
sleep 3 # the agents put slurmctld's word on each end into the records

bold "carma-report (times and energy of real seconds, each stands for $scale simulated ones)"
carma-report || exit 1

completed=0 recovered=0 lost=0
for id in "${submitted[@]}"; do
	state=$(squeue -h -t all -j "$id" -o %T)
	if [ "$state" = COMPLETED ]; then completed=$((completed + 1)); else lost=$((lost + 1)); fi
	if carma-report -j "$id" | grep -q 'requeued to run alone on gpu-recovery'; then recovered=$((recovered + 1)); fi
done
printf '\ndemo: %d jobs completed, %d recovered from OOM, %d lost\n' "$completed" "$recovered" "$lost"
[ "$completed" = 12 ] && [ "$recovered" = 1 ] && [ "$lost" = 0 ]
