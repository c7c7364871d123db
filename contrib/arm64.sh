#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds everything for 64-bit ARM with Debian's cross compiler, and runs under qemu-user all that needs no
# Slurm and starts no program: the commands, compared with the native commands, the
# tests of the pure packages, and slurmctld's plugin with libcarma in a host program. No other machine
# is needed. usage: arm64.sh     (make test-arm64 does)
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/arm64
qemu=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
die() { echo "arm64: $*" >&2; exit 1; }

make --no-print-directory commands
mkdir -p $out/shim/bin
make --no-print-directory GOARCH=arm64 all lint-c 2>&1 | tee $out/log
# The go command goes on after a warning of the C compiler.
! grep -q 'warning: ' $out/log || die "the compiler warns"
files=0
while read -r file; do
	readelf -h "$file" | grep -q 'Machine: *AArch64' || die "$file is for another machine"
	files=$((files + 1))
done < <(find $out/bin $out/lib -type f)
[ $files = 13 ] || die "$files programs and libraries, not 13"

export GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc
echo "arm64: go vet"
"${GO:-go}" vet ./...

# same COMMAND ARGUMENT...: has the same output on both
same() { cmp <("bin/$1" "${@:2}" 2>&1) <("${qemu[@]}" "$out/bin/$1" "${@:2}" 2>&1) || die "$*"; }
echo "arm64: the commands"
for command in carma-node carma-report carma-estimate carma-sim; do
	"${qemu[@]}" $out/bin/$command --version
	same $command --version
	same $command --help
done
same carma-estimate --summary estimator/trace/testdata/resnet18.txt
same carma-sim run --trace contrib/traces/mixed/trace.csv --jobs contrib/traces/mixed/jobs.csv
same carma-node --config contrib/slurm/carma.toml check

echo "arm64: job_submit_carma and libcarma"
cat >$out/shim/carma.toml <<-'TEXT'
	[partition.gpu]
	share = true
	gpus_per_node = 4
	gpu_mem_mib = 40536
	recovery = "gpu-recovery"
	[partition.gpu-recovery]
	gpus_per_node = 4
	gpu_mem_mib = 40536
TEXT
cp $out/lib/libcarma.so $out/shim/
mapfile -t host < <(find slurmbridge/shim -name '*.c' ! -name fake_libcarma.c)
$CC -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -rdynamic -I"${SLURM_INCLUDE:-/usr/include}" \
	-o $out/shim/bin/host "${host[@]}" -ldl -lpthread
CARMA_CONF=$PWD/$out/shim/carma.toml "${qemu[@]}" "$PWD/$out/shim/bin/host" real calm >$out/shim/log ||
	{ tail -20 $out/shim/log; exit 1; }

echo "arm64: tests of the pure packages"
mapfile -t pure < <(awk -F'`' '/^Pure \(/, /^$/ { for (i = 2; i <= NF; i += 2) print "./" $i }' docs/architecture.md)
[ ${#pure[@]} -gt 20 ] || die "docs/architecture.md names ${#pure[@]} pure packages"
"${GO:-go}" test -count=1 -timeout 60m -exec "${qemu[*]}" "${pure[@]}" >$out/tests || { grep -v '^ok' $out/tests; exit 1; }
"${GO:-go}" test -count=1 -timeout 60m -exec "${qemu[*]}" -run 'TestGolden$' ./cmd/carma-sim
echo "arm64: $files programs and libraries; the tests of $(grep -c '^ok' $out/tests) pure packages pass"
