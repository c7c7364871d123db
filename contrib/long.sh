#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The long tests and the benchmarks: `make test-NAME` and `make bench-NAME` of those below call
# long.sh with the name of the target; long.sh --list prints the targets for make help. Variables of
# make's command line reach this script: RUN='TestSteps|TestRestarts' takes some tests on a live Slurm,
# SLURM_PREFIX=/opt/slurm-23.11 a Slurm of contrib/versions/build.sh, DEBIAN=trixie another Debian.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${1:-}
GO=${GO:-go}

# Go's option for tests that need root.
as_root=()
[ "$(id -u)" = 0 ] || as_root=(-exec "'$PWD/contrib/as_root.sh'")

deps() { contrib/deps.sh "${@:-$target}"; }
build() { make --no-print-directory "$@"; }

# live TAGS OPTION...: tests on development clusters, with build/progress.
live() { build/progress go "${as_root[@]}" -tags "$1" -count=1 "${@:2}" ./contrib/devcluster; }

# abuse TAGS OPTION...: tests that print figures.
abuse() { "$GO" test -tags "$1" -count=1 -parallel 1 -v "${@:2}"; }

# try_packages makes the packages to try, in the folder $packages: of this machine's Debian, or of
# DEBIAN=bookworm, trixie or noble, in a new root of which they are built.
# shellcheck disable=SC1091
host=$(. /etc/os-release && echo "${VERSION_CODENAME:-}") || true
export DEBIAN=${DEBIAN:-$host}
packages=build/packages
try_packages() {
	if [ "$DEBIAN" = "$host" ]; then
		build packages
		return
	fi
	packages=build/packages-$DEBIAN
	deps release
	build all
	contrib/bare.sh --keep build/packages "$packages" "$DEBIAN" root 'make deps-all packages'
}

case $target in
--list)
	sed -n 's/^\([a-z0-9-]*\)) *## /\1\t/p' "${BASH_SOURCE[0]}" | expand -t 18
	;;

# The tracer needs PyTorch 2: Debian 13 has it. Public training scripts are fetched; TRACE_GIT names
# where, if github.com is out of reach.
test-trace) ## the tracer of contrib/summary, on public training scripts
	deps
	for t in trace overlay command; do python3 contrib/summary/test_carma_$t.py; done
	python3 contrib/summary/test_public_scripts.py
	;;

# contrib/simgpu/mps_contract_test.go, which make test-unit holds the stand-in to, on the daemons of
# 535 and 550. These are fetched from Debian's non-free into a cache outside of the repository. The
# development cluster runs with that of 550, then.
test-mps) ## the contract of an MPS control daemon, on NVIDIA's own
	deps
	build all
	MPS_REAL=$(contrib/simgpu/fetch-mps.sh) || { MPS_REAL=; echo "test-mps: the real daemons could not be fetched: SKIPPED"; }
	export MPS_REAL
	"$GO" test "${as_root[@]}" -tags mps -count=1 -v -run 'TestMPS.*Contract' ./contrib/simgpu ./gres/mps
	[ -z "$MPS_REAL" ] ||
		"$GO" test "${as_root[@]}" -tags 'integration mps' -count=1 -v -run 'TestRealMPS$' ./contrib/devcluster
	;;

# A Debian 13 with cgroup v2 alone, booted under user-mode-linux; root makes it: minutes, and the
# first time the network.
test-cgroup2) ## tests on a live Slurm that cgroup v2 matters to; RUN=
	deps
	build all
	run='TestConfine|TestConfineBesideOthers|TestConfineRemoved|TestOwners|TestNFSHome|TestClockJumps|TestMemoryHeld|TestAttackOwnServer'
	contrib/cgroup2/run.sh "^(${RUN:-$run})\$"
	;;

# Their pictures and prints, to look at, are in build/pages then.
test-pages) ## the HTML pages in Chromium, by their parts: 400 and 1600 pixels, dark, light and on paper
	deps
	rm -rf build/pages
	mkdir -p build/pages
	CARMA_PAGES=$PWD/build/pages "$GO" test -tags pages -count=1 -timeout 60m -v -run '^Test(FaultsOf)?Pages$' ./cmd/carma-report
	;;

test-situations) ## docs/situations.md: those that take longer than 20 s; RUN=
	deps
	build all build/progress
	live 'integration situations' -parallel 4 -timeout 60m -run "^(${RUN:-TestSituation.*})\$"
	;;

# Twenty minutes, which want both cores of a small machine for themselves.
test-forecast) ## carma-sim forecast from an observed day, against the same day with sharing
	deps
	build all build/progress
	live 'integration forecast' -timeout 60m -run '^TestForecast$'
	;;

# Built from their public sources. ENROOT_GIT, PYXIS_GIT and APPTAINER_GIT name clones, where
# github.com is out of reach.
test-containers) ## jobs in containers: pyxis with enroot, Apptainer, crun, podman
	deps
	build all build/progress
	live 'integration containers' -timeout 40m -run '^(TestPyxis|TestApptainer|TestContainerOCI|TestPodman)$'
	;;

# With nothing but what the README names; root makes the Debian. CI runs a part of the second
# (.ci/run).
test-debian12) ## make demo and make test-all in a new Debian 12
	deps
	contrib/bare.sh bookworm user 'make demo' user 'make test-all'
	;;
test-debian13) ## make demo and make test-all in a new Debian 13
	deps
	contrib/bare.sh trixie user 'make demo' user 'make test-all'
	;;

# Of the last commit, in clones: builds are apart, and all else of the machine is shared.
test-side-by-side) ## two make test (COMMAND=) at the same time
	deps test
	clones=$(mktemp -d)
	runs=() status=0
	for i in 1 2; do
		git clone -q . "$clones/$i"
		bash -c "cd '$clones/$i' && ${COMMAND:-make test}" >"$clones/$i.log" 2>&1 &
		runs+=($!)
	done
	for i in 1 2; do
		wait "${runs[i - 1]}" || status=1
		echo "test-side-by-side: $i"
		grep -A 8 '^FAILED ' "$clones/$i.log" || true
		tail -n 2 "$clones/$i.log"
	done
	[ $status = 0 ] || { echo "test-side-by-side: the clones and their logs stay in $clones" >&2; exit 1; }
	rm -rf "$clones"
	;;

test-arm64) ## build for 64-bit ARM, with Debian's cross compiler; what qemu-user can run of it
	deps
	contrib/arm64.sh
	;;

# In a new Debian 12 and 13: hours for all of make test. SURROUNDINGS=tmpfs,locale takes some.
test-surroundings) ## COMMAND= (make test) in the surroundings of contrib/surroundings.sh
	deps
	surroundings=${SURROUNDINGS:-all} command=${COMMAND:-make test}
	for debian in bookworm trixie; do
		contrib/bare.sh "$debian" root "make deps deps-test-surroundings all && go mod download && \
			GOFLAGS=-count=1 contrib/surroundings.sh $surroundings \"$command\"" user "$command"
	done
	;;

# SLURM_GIT names a clone of Slurm's source, if there is one.
test-versions) ## the shim against other releases of Slurm; VERSIONS="23.11 24.05"
	build libcarma
	# shellcheck disable=SC2086
	contrib/versions/shim.sh ${VERSIONS:-}
	;;

# docs/threat-model.md names what each shows. TASKS, PAIRS, SUBMISSIONS, RECONFIGURES and N make a
# run shorter or longer.
test-abuse) ## attacks of users, broken disks, killed processes, and their figures: an hour
	deps
	build all
	N=${N:-1000000} build test-shim
	abuse abuse -timeout 30m ./contrib/abuse
	abuse abuse -timeout 90m -run TestAbuse ./contrib/devcluster
	abuse 'integration abuse' -timeout 90m -run TestAttack ./contrib/devcluster
	;;

# CONFINE_JOBS starts beside programs that open everything; cgroup v1.
test-confine-kill) ## confinement with every process that makes it killed at random
	deps
	build all
	abuse 'integration abuse' -timeout 90m -run 'TestConfineKilled$|TestConfineManyStarts$' ./contrib/devcluster
	;;

# HOURS=24 before a release; without it ten minutes and 2,000 jobs.
test-soak) ## two nodes, eight simulated GPUs, many faults; then beside users who attack; HOURS= RUN=
	deps
	build all
	minutes=10
	[ -z "${HOURS:-}" ] || minutes=$((HOURS * 60))
	SOAK_MINUTES=$minutes abuse 'integration abuse' -timeout 0 -run "${RUN:-TestSoak}" ./contrib/devcluster
	;;

# In a bare Debian 12 and an Ubuntu 22.04 without a network, and killed at random moments: minutes.
# ROOTS=host takes this machine's own root.
test-gpu-kit) ## the kit's parts on simulated GPUs; ROOTS=
	deps
	build gpu-kit simgpu
	# shellcheck disable=SC2086
	contrib/gpucheck/rehearse.sh build/gpu-kit.tar.gz ${ROOTS:-bookworm jammy}
	;;

# As root, on a machine with an NVIDIA GPU that nothing else uses. It ends with 3 where there is no
# GPU.
test-gpu) ## the kit's short form without Slurm, on a real GPU
	build build/gpu-kit/gpucheck build/gpu-kit/gpuload
	mkdir -p build/gpu-check/bin build/gpu-check/share
	cp build/gpu-kit/gpucheck build/gpu-kit/gpuload build/gpu-check/bin/
	cp contrib/gpucheck/trainings.py build/gpu-check/share/
	build/gpu-check/bin/gpucheck --short --results build/gpu-check.jsonl facts limits frameworks readings start throughput
	;;

# Built as different users; the bytes are compared.
test-release) ## the release, built twice
	deps release
	contrib/release.sh --twice build/release
	;;

test-packages) ## deb and rpm on a scratch root: install, upgrade, remove, purge; those for ARM are made; DEBIAN=
	if [ "$DEBIAN" != "$host" ]; then
		deps release
		contrib/bare.sh "$DEBIAN" root 'make test-packages'
	else
		deps
		build packages
		contrib/packages/check.sh build/packages build/stage
		contrib/packages/check-rpm.sh build/packages
		build GOARCH=arm64 packages
		for deb in build/arm64/packages/*.deb; do
			[ "$(dpkg-deb -f "$deb" Architecture)" = arm64 ] || { echo "long: $deb is not for arm64" >&2; exit 1; }
		done
	fi
	;;

# As root: minutes, and the first time the network.
test-newadmin) ## docs/pilot.md from installation to removal on three booted machines; DEBIAN=
	deps
	try_packages
	contrib/newadmin/check.sh "$packages"
	;;
test-ansible) ## the Ansible role on the same machines; DEBIAN=
	deps
	try_packages
	contrib/newadmin/ansible.sh "$packages"
	;;

bench-go) ## Go's benchmarks
	"$GO" test -run '^$' -bench . ./...
	;;

# TRACES names a folder of traces by contrib/bench/estimator/timm_traces.py.
bench-estimator) ## the estimator's figures on the measured runs of CARMA_DATA; TRACES=
	if [ -n "${TRACES:-}" ]; then set -- "${CARMA_DATA:-data}/memory" "$TRACES"; else set --; fi
	"$GO" run ./contrib/bench/estimator "$@"
	;;

bench-sim) ## what policies are worth on traces (docs/bench/sim.md): five minutes
	build commands
	contrib/bench-sim.sh
	;;

bench-placement) ## Prologs at once, killed at named places; the ledger's log checked
	build simgpu
	"$GO" run ./contrib/bench/placement
	;;

# On the development cluster; as root, 40 minutes. DAY="--nodes 48 --length 6m --only none,exclusive".
bench-day) ## when large jobs start on a synthetic day, without CARMA and with it; DAY=
	build all
	# shellcheck disable=SC2086
	"$GO" run ./contrib/bench/day ${DAY:-}
	;;

# On a cluster of its own with a few real slurmds; as root. SCALE="--nodes 1000 --starts 5".
bench-scale) ## what agents cost slurmctld on 1,000 and 5,000 nodes; SCALE=
	deps
	# shellcheck disable=SC2086
	"$GO" run ./contrib/bench/scale ${SCALE:-}
	;;

*)
	echo "long: no target '$target'; make help lists them" >&2
	exit 2
	;;
esac
