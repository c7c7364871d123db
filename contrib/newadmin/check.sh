#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# CARMA as a new administrator meets it: three machines with Debian 12 (DEBIAN=trixie:
# 13, noble: Ubuntu 24.04) and its Slurm, two of them with GPUs (simulated). Every block of docs/pilot.md that says
# where the block is run is run there unchanged: to watch first, to advise, from the installation to the report,
# and the way back; Slurm must be as before while agents watch, and in the end. usage: check.sh PACKAGES-DIR
#
# Run as root (make test-newadmin). The first time it makes the machines' disk in
# NEWADMIN_CACHE (default /var/cache/carma-newadmin): two minutes and 600 MB; then
# three. Outputs are left in build/newadmin.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "newadmin: $*" >&2; exit 1; }
. "$here/machine.sh" # and $top, $cache
. "$here/site.sh"

[ $# = 1 ] || { echo "usage: check.sh PACKAGES-DIR" >&2; exit 2; }
enter newadmin "$0" "$1"

# places PLACE: the machines that a block's first line speaks of
places() {
	case $1 in
	"on the controller") echo head ;;
	"on one GPU node") echo gpu1 ;;
	"on the GPU nodes") echo gpu1 gpu2 ;;
	"on every machine") echo head gpu1 gpu2 ;;
	"as a user") echo user ;;
	*) fail "docs/pilot.md: a block is run \"$1\", and nobody knows where that is" ;;
	esac
}

# step SECTION [N]: run the blocks of a numbered step of docs/pilot.md, or of a section before the first step.
step() {
	local section=$1 number=${2:-0} name="$1${2:+, step $2}" place block m count=0
	while IFS= read -r -d '' block; do
		place=${block%%$'\n'*}
		place=${place#\# }
		count=$((count + 1))
		for m in $(places "$place"); do
			say "$name, $place${m:+ ($m)}"
			{
				printf '\n== %s %s on %s\n%s\n--\n' "$section" "$number" "$m" "$block"
				if [ "$m" = user ]; then run head "set -e; $block" alice; else run "$m" "set -e; cd /root/packages; $block"; fi
			} >>"$seen/steps" 2>&1 </dev/null || { tail -20 "$seen/steps" >&2; fail "$name does not work $place ($m)"; }
		done
	done < <(awk -v section="$section" -v number="$number" '
		/^## / { inside = ($0 == "## " section); at = 0 }
		inside && match($0, /^[0-9]+\. /) { at = $0 + 0 }
		/^ *```/ {
			if (open && block ~ /^# (on|as) /) printf "%s%c", block, 0
			open = !open; block = ""; next
		}
		open && inside && at == number { sub(/^   /, ""); block = block $0 "\n" }
	' "$top/docs/pilot.md")
	[ $count -gt 0 ] || fail "docs/pilot.md: \"$name\" has no block to run"
}

say "three machines boot"
make_site
boot head 10.77.0.1
boot gpu1 10.77.0.2
boot gpu2 10.77.0.3
for m in gpu1 gpu2; do plug_in_gpus $m; done
wait_until 60 "Slurm's nodes" nodes_are 3 idle
say "Slurm without CARMA: ten submissions"
picture "$seen/before"

watch="Watch first"
train alice -w gpu1 # is older than the agent
wait_until 30 "the job before the agent" running 1
step "$watch"
grep -Eq '^ +[0-9]+ alice ' "$seen/steps" || fail "carma-node status does not show the job that runs: $seen/steps"
train bob -w gpu2
touch "$work/home/watched"
wait_until 120 "the end of the two jobs" none_in_queue
wait_until 60 "the records of the two jobs, see $seen/train" watched
say "Slurm while the agents watch: the same submissions"
picture "$seen/watched"
diff -r -U2 "$seen/before" "$seen/watched" || fail "Slurm is not as it was before the agents watched"
nodes_stayed
for m in gpu1 gpu2; do run $m "carma-sim forecast -S now-1hour && carma-report gpus && carma-node db check" >>"$seen/steps" 2>&1; done
step "Advise"
wait_until 60 "idle nodes" nodes_are 3 idle
say "Slurm with advice: the same submissions"
advised
picture "$seen/advised"
diff -r -U2 -I '^AdminComment=' -I '^JobSubmitPlugins ' -I '^sbatch: .*carma: ' "$seen/before" "$seen/advised" || fail "advice changes more than AdminComment"
say "the way back"
for m in head gpu1 gpu2; do run $m "rm -r /etc/carma && systemctl try-restart carma-node || true"; done
run head "sed -i /^JobSubmitPlugins=carma/d /etc/slurm/slurm.conf && systemctl restart slurmctld"
wait_until 60 "idle nodes" nodes_are 3 idle
run gpu2 "apt-get purge -y carma-node carma-tools" >"$seen/purge" 2>&1
! grep '^carma-' "$seen/purge" || fail "the way back is not silent: $seen/purge"
nothing_left gpu2

pilot="A pilot on one partition"
step "$pilot" 1
step "$pilot" 2
take_over # what an administrator does with the lines that setup has printed
step "$pilot" 3
step "$pilot" 4
wait_until 60 "idle nodes" nodes_are 3 idle
step "$pilot" 5
wait_until 60 "published counts" published
step "$pilot" 6
say "the report"
wait_until 120 "the end of the ten jobs" none_in_queue
step "$pilot" 7
wait_until 60 "the records of the ten jobs, see $seen/report.*" reported
say "a GPU node reboots; the agent hangs"
after_reboot
watchdog
nodes_stayed

removal="Switching it off, upgrade, removal"
for n in 1 2 3 4; do step "$removal" $n; done
wait_until 60 "Slurm's nodes" nodes_are 3 idle
say "Slurm without CARMA again: the same submissions"
picture "$seen/after"
diff -r -U2 "$seen/before" "$seen/after" || fail "Slurm is not as it was before CARMA"
nothing_left head gpu1 gpu2
say "as before: configuration, nodes, partitions, submissions, queue, jobs"
