#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The rehearsal itself, in its root (rehearse.sh). Beside it are the kit, a driver's stand-in, and the real MPS daemons.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d /tmp/rehearsal.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
bad=0
wrong() { echo "rehearsal: WRONG: $*"; bad=1; }

# As a machine with the driver in a directory of its own; users must reach it.
cp -r "$here/nvidia" "$work/"
[ ! -d "$here/mps" ] || cp -r "$here/mps" "$work/"
chmod -R a+rX "$work"
kit="$here/a kit/carma-gpu-kit"
plain=$PATH
export LD_LIBRARY_PATH=$work/nvidia PATH=$work/nvidia:$PATH

gpu() { export SIMGPU_STATE=$work/$1; rm -f "$SIMGPU_STATE"; simgpu create "$SIMGPU_STATE" --model h100 --gpus 1; }
# verdict FILE CHECK: of its last line
verdict() { sed -n "s/.*\"check\":\"$2\",.*\"verdict\":\"\([a-z ]*\)\".*/\1/p" "$1" | tail -n 1; }
# expect FILE CHECK VERDICT
expect() { [ "$(verdict "$1" "$2")" = "$3" ] || wrong "$2: '$(verdict "$1" "$2")', not '$3'"; }
# left TIME: what parts left behind after that many seconds
left() {
	local p until=$((SECONDS + $1)) found
	while :; do
		found=
		for p in /proc/[0-9]*; do
			! grep -qaz '^CARMA_GPU_KIT=' "$p/environ" 2>/dev/null || found="$found ${p#/proc/}:$( { tr '\0' ' ' <"$p/cmdline"; } 2>/dev/null || true)" # it may go
		done
		# find fails where one goes while it looks.
		[ -n "$found" ] || found=$(find /tmp -maxdepth 1 -name 'ck[0-9]*' -newer "$work/begun" 2>"$work/find") || true
		if [ -z "$found" ] || [ $SECONDS -ge $until ]; then break; fi
		sleep 0.2
	done
	[ -z "$found" ] || wrong "left behind: $found"
}
touch "$work/begun"
cd /

echo "rehearsal: without a driver"
status=0
(unset LD_LIBRARY_PATH; PATH=$plain "$kit/run" all --results "$work/none") >"$work/out" 2>&1 || status=$?
[ $status = 3 ] || wrong "without a driver it ends with $status: $(cat "$work/out")"

echo "rehearsal: all parts"
gpu all
short=--short
[ -z "$FULL" ] || short=
status=0
# shellcheck disable=SC2086
"$kit/run" all $short --seconds 1800 --results "$work/all.jsonl" || status=$?
[ $status = 0 ] || wrong "all parts end with $status"
grep -v '^{.*}$' "$work/all.jsonl" && wrong "not a line of JSON"
for part in facts limits frameworks readings start throughput slurm truth hurt; do
	grep -q "\"kind\":\"end\",\"part\":\"$part\".*\"state\":\"made\"" "$work/all.jsonl" || wrong "$part was not made"
done
for c in mounts daemon-start daemon-quit limit-plain limit-async limit-vmm meminfo limit-pair key-uuid context pipe-stale \
	smact-25 smact-100 two-readers processes energy first-clients change-of-user up share requeue neighbour confined-with confined-without \
	cancelled ends-terminate-client ends-leaves ends-sigterm ends-sigkill daemon-killed illegal-access; do
	expect "$work/all.jsonl" "$c" agrees
done
# Simulated GPUs have no CUDA for PyTorch: trainings.py says so by its status.
expect "$work/all.jsonl" pytorch-workspace "not asked"
# Where the root may make no cgroup v2, nobody can ask.
grep -q '"check":"limit-cgroup".*"verdict":"not asked"' "$work/all.jsonl" || expect "$work/all.jsonl" limit-cgroup agrees
grep -q '"kind":"interference".*"simulated":true' "$work/all.jsonl" || wrong "no rows of interference, or not said to be simulated"
left 0

# A machine that is not as CARMA takes it to be is found: here it is the load that is wrong.
broken() { # CHECK VERDICT PART SCRIPT
	cp -r "$here/a kit/carma-gpu-kit" "$work/broken"
	mv "$work/broken/bin/gpuload" "$work/broken/bin/gpuload.real"
	printf '#!/bin/sh\n%s\nexec %s/broken/bin/gpuload.real "$@"\n' "$4" "$work" >"$work/broken/bin/gpuload"
	chmod 755 "$work/broken/bin/gpuload"
	status=0
	"$work/broken/run" "$3" --short --results "$work/broken.jsonl" >"$work/out" || status=$?
	[ $status = 1 ] || wrong "broken $3 ends with $status"
	expect "$work/broken.jsonl" "$1" "$2"
	rm -rf "$work/broken" "$work/broken.jsonl"
}
echo "rehearsal: broken machines"
gpu one
broken limit-plain contradicts limits 'unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
# shellcheck disable=SC2016
broken smact-100 contradicts readings 'shift 4; set -- --mem 1024M --smact 10 "$@"'
# shellcheck disable=SC2016
broken ends-terminate-client contradicts hurt 'case "$*" in *"--smact 30"*) shift 6; set -- --mem 1024M --smact 30 --duration $((2000 + $$ % 97 * 10))ms "$@" ;; esac'
status=0
SIMGPU_MPS_VERSION=535 "$kit/run" facts --short --results "$work/535.jsonl" >"$work/out" || status=$?
[ $status = 1 ] || wrong "facts on 535 end with $status"
left 0

if [ -d "$work/mps" ]; then
	echo "rehearsal: the real MPS daemons"
	for v in 550 535; do
		status=0
		PATH="$work/mps/$v:$PATH" "$kit/run" facts --results "$work/real$v.jsonl" >"$work/out" || status=$?
		[ $status = $((v == 535)) ] || wrong "facts on the daemon of $v end with $status: $(cat "$work/out")"
	done
	expect "$work/real550.jsonl" daemon-start agrees
	expect "$work/real550.jsonl" daemon-quit agrees
	grep -q 'older than driver 550' "$work/real535.jsonl" || wrong "the daemon of 535 is not said to be too old"
	left 0
fi

# A python3 whose PyTorch wishes for 13 GB, and does with less under a limit, or does not.
pytorch() { # VERDICT LINE-UNDER-THE-LIMIT
	mkdir "$work/py"
	cat >"$work/py/python3" <<-EOF
		#!/bin/sh
		case "\$1" in *trainings.py) ;; *) [ "\$2" = pass ] || exit 77; exit 0 ;; esac
		if [ -z "\$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" ]; then
			echo '{"convolution": "1x1", "benchmark": true, "tensors_mib": 50, "allocated_mib": 13000, "step_ms": 2.5}'
		else
			echo '{"convolution": "1x1", "benchmark": true, $2}'
		fi
	EOF
	chmod 755 "$work/py" "$work/py/python3"
	PATH=$work/py:$PATH "$kit/run" frameworks --short --results "$work/py.jsonl" >"$work/out" || true
	expect "$work/py.jsonl" pytorch-workspace "$1"
	rm -rf "$work/py" "$work/py.jsonl"
}
echo "rehearsal: a convolution's workspace under a limit"
gpu torch
pytorch agrees '"allocated_mib": 900, "step_ms": 5'
pytorch contradicts '"failed": true'
left 0

echo "rehearsal: killed $KILLS times"
gpu killed
for i in $(seq "$KILLS"); do
	part=slurm signal=KILL
	[ $((i % 2)) = 0 ] || signal=TERM
	[ $((i % 3)) != 0 ] || part=hurt
	"$kit/run" facts $part --short --results "$work/killed.jsonl" >"$work/out" 2>&1 &
	if [ "$i" = "$KILLS" ]; then # a part has told something by then, on any machine
		until grep -qs '"verdict":"agrees"' "$work/killed.jsonl" || ! kill -0 $! 2>/dev/null; do sleep 0.2; done
	fi
	sleep "$((RANDOM % 25)).$((RANDOM % 10))"
	kill -$signal $! 2>/dev/null || true
	wait $! || true
	left 40
	grep -v '^{.*}$' "$work/killed.jsonl" && wrong "not a line of JSON after SIG$signal"
done
grep -q '"verdict":"agrees"' "$work/killed.jsonl" || wrong "killed parts left no results"
exit $bad
