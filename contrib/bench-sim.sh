#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of docs/bench/sim.md. CARMA_DATA is the folder with the published tables (traces/
# and memory/), by default data in the repository; without them only the project's own traces are
# run.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
data=${CARMA_DATA:-data}
sim=bin/carma-sim
[ -x $sim ] || { echo "bench-sim: no $sim; run make first" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

published() { "$sim" compare --trace "$data/traces/$1.csv" --jobs "$data/traces/jobs.csv" --summaries "$data/memory" --repeats 12 "${@:2}"; }

v1='--mode paper-v1'
reproduction=(
	"exclusive: $v1 --policy exclusive --estimator none"
	"RR, streams: $v1 --policy rr --share streams --estimator none"
	"RR: $v1 --policy rr --estimator none"
	"MAGM, 2 GB: $v1 --policy magm --estimator none --min-free 2000M"
	"LUG, 2 GB: $v1 --policy lug --estimator none --min-free 2000M"
	"MAGM, Horus: $v1 --policy magm --estimator horus"
	"MAGM, FakeTensor: $v1 --policy magm --estimator faketensor"
	"MAGM, GPUMemNet: $v1 --policy magm --estimator gpumemnet"
)
known='--estimator history --known'
ours=(
	"exclusive: $v1 --policy exclusive --estimator none"
	"reference v1: $v1 --policy magm --estimator gpumemnet"
	"reference v2: --mode paper-v2 --policy magm --estimator none"
	"analytic:"
	"analytic, ladder: --recovery ladder"
	"first runs: --estimator history"
	"history: $known"
	"history, no holds: $known --hold-after 0"
	"history, holds 10 min: $known --hold-after 600"
	"history, 80 %, 4 jobs: $known --smact-cap 80 --max-jobs 4"
	"history, 90 %: $known --smact-cap 90"
	"history, lug: $known --policy lug"
	"history, shortest first: $known --queue shortest"
	"history, 100 %, 4 jobs: $known --smact-cap 100 --max-jobs 4"
	"history, longest, 6 jobs: $known --queue longest --smact-cap 100 --max-jobs 6 --margin 512M"
	"ideal packer: --ideal"
)
printf '[slurm]\nexclusive_user = true\n' >"$tmp/user.toml"
printf '[slurm]\nleast_loaded = false\n' >"$tmp/first.toml"

if [ -e "$data/traces/trace60.csv" ]; then
	echo "# Reproduction"
	echo
	published trace60 "${reproduction[@]}"
	for t in trace60 trace90 trace_t1_v2 trace_t2_v2; do
		printf '\n# %s\n\n' "$t"
		published "$t" "${ours[@]}"
	done
else
	echo "bench-sim: no published traces at $data; only the project's own are run" >&2
fi
for t in mixed heavy day; do
	printf '\n# %s\n\n' "$t"
	$sim compare --trace contrib/traces/$t/trace.csv --jobs contrib/traces/$t/jobs.csv --repeats 12 "${ours[0]}" "paper-v1 magm: $v1 --policy magm --estimator none" \
		"analytic:" "history: $known" "history, no holds: $known --hold-after 0" "history, shortest: $known --queue shortest" "ideal packer: --ideal"
done

# What a bound on slowdown costs (docs/bench/slowdown.md).
bounds=("exclusive: $v1 --policy exclusive --estimator none" "none: $known")
for b in 2 1.75 1.5 1.3 1.2; do bounds+=("$b: $known --max-slowdown $b"); done
unknown=("exclusive: $v1 --policy exclusive --estimator none" "analytic, none:" "analytic, 1.75: --max-slowdown 1.75" "analytic, 1.5: --max-slowdown 1.5")
open='--smact-cap 100 --hold-after 0'
choices=(
	"exclusive: $v1 --policy exclusive --estimator none"
	"as it comes: $known"
	"bound 1.8: $known --max-slowdown 1.8"
	"bound 1.9, no gate, no holds: $known --max-slowdown 1.9 $open"
	"the same, lug: $known --max-slowdown 1.9 $open --policy lug"
	"the same, best-fit: $known --max-slowdown 1.9 $open --policy best-fit"
	"bound 1.8, mug, no gate, no holds: $known --max-slowdown 1.8 $open --policy mug"
	"bound 1.9, 4 jobs, no gate, no holds: $known --max-slowdown 1.9 $open --max-jobs 4"
	"bound 2.2, mug, 90 %: $known --max-slowdown 2.2 --smact-cap 90 --policy mug"
)
if [ -e "$data/traces/trace60.csv" ]; then
	for t in trace60 trace90 trace_t1_v2 trace_t2_v2; do
		printf '\n# Bounds on slowdown: %s\n\n' "$t"
		published "$t" "${bounds[@]}"
		published "$t" "${unknown[@]}"
		printf '\n# Choices: %s\n\n' "$t"
		published "$t" "${choices[@]}"
	done
fi
for t in mixed heavy day; do
	printf '\n# Bounds on slowdown: %s\n\n' "$t"
	$sim compare --trace contrib/traces/$t/trace.csv --jobs contrib/traces/$t/jobs.csv --repeats 12 "${bounds[@]}"
	$sim compare --trace contrib/traces/$t/trace.csv --jobs contrib/traces/$t/jobs.csv --repeats 12 "${unknown[@]}"
done

# users USERS SECONDS-BETWEEN-JOBS SEED
users() {
	printf '\n# %s users, a job every %s s, 50 nodes of 8 GPUs\n\n' "$1" "$2"
	"$sim" synth --out "$tmp/users" --submissions 4000 --gap "$2" --users "$1" --seed "$3" >/dev/null
	many "exclusive: --policy exclusive" "analytic:" "history: $known"
	many --model "$tmp/first.toml" "LLN=NO:"
	many --model "$tmp/user.toml" "ExclusiveUser=YES:"
}
many() { "$sim" compare --trace "$tmp/users/trace.csv" --jobs "$tmp/users/jobs.csv" --nodes 50 --gpus 8 --repeats 3 "$@"; }
users 20 3 1
users 8 2 4
users 60 6 3

if [ -e "$data/traces/trace60.csv" ]; then
	printf '\n# Orders found by search\n\n'
	go test -run '^$' -bench Order -benchtime 1x ./cmd/carma-sim/internal/replay
fi
printf '\n# Speed\n\n'
go test -run '^$' -bench 'Trace|Cluster' -benchtime 1x ./cmd/carma-sim/internal/replay
