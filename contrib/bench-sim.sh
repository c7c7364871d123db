#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of docs/bench/sim.md: bench-sim.sh [DATA]. DATA is the folder with
# the published tables (traces/ and memory/), by default ../shared/data beside
# the repository; without it only the project's own traces are run.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
data=${1:-../shared/data}
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
carma='--policy carma --smact-cap 100 --max-jobs 3'
ours=(
	"exclusive: $v1 --policy exclusive --estimator none"
	"reference v1: $v1 --policy magm --estimator gpumemnet"
	"reference v2: --mode paper-v2 --policy magm --estimator none"
	"magm: --policy magm"
	"lug: --policy lug"
	"carma: $carma"
	"carma, 2 a GPU: --policy carma --smact-cap 100 --max-jobs 2"
	"carma, history: $carma --estimator history --known"
	"same, no holds: $carma --estimator history --known --hold-after 0"
	"carma, first runs: $carma --estimator history"
	"carma, true peaks: $carma --estimator oracle"
	"ideal packer: --ideal"
)
printf '[slurm]\nmps_multi_gpu = true\n' >"$tmp/mps.toml"

if [ -e "$data/traces/trace60.csv" ]; then
	echo "# Reproduction"
	echo
	published trace60 "${reproduction[@]}"
	for t in trace60 trace90 trace_t1_v2 trace_t2_v2; do
		printf '\n# %s\n\n' "$t"
		published "$t" "${ours[@]}"
	done
	for t in trace60 trace90 trace_t1_v2 trace_t2_v2; do
		printf '\n# %s, if jobs on several GPUs were MPS clients\n\n' "$t"
		published "$t" --model "$tmp/mps.toml" "${ours[0]}" "lug: --policy lug --smact-cap 100 --max-jobs 3 --estimator history --known"
	done
else
	echo "bench-sim: no published traces at $data; only the project's own are run" >&2
fi
for t in mixed heavy day; do
	printf '\n# %s\n\n' "$t"
	$sim compare --trace contrib/traces/$t/trace.csv --jobs contrib/traces/$t/jobs.csv --repeats 12
done

printf '\n# Speed\n\n'
go test -run '^$' -bench . -benchtime 1x ./gres/sim/replay
