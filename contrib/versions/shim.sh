#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the job_submit shim against the public headers of other releases of
# Slurm, all warnings being errors, and runs its tests without a slurmctld
# (slurmbridge/shim/check.sh) on each.
# usage: shim.sh [VERSION...]   23.11 means its last release, 23.11.4 that one
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=source.sh
. "$here/source.sh"

[ $# -gt 0 ] || set -- 22.05 23.02 23.11 24.05 24.11 25.05 25.11 26.05
[ -e "$root/lib/libcarma.so" ] || die "lib/libcarma.so is missing; run: make"
git=$(slurm_git)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# headers VERSION DIR: what `make install` of that release puts into include/slurm
headers() {
	local f number
	mkdir -p "$2/slurm"
	for f in slurm.h slurm_errno.h; do
		git -C "$git" show "$(tag "$1"):slurm/$f" >"$2/slurm/$f"
	done
	# configure writes the number into slurm_version.h.
	number=$(printf '0x%02x%02x%02x' "$((10#$(cut -d. -f1 <<<"$1")))" "$((10#$(cut -d. -f2 <<<"$1")))" "$(cut -d. -f3 <<<"$1")")
	git -C "$git" show "$(tag "$1"):slurm/slurm_version.h.in" |
		sed "s/^#undef SLURM_VERSION_NUMBER.*/#define SLURM_VERSION_NUMBER $number/" >"$2/slurm/slurm_version.h"
}

for v in "$@"; do
	[[ $v == *.*.* ]] || { minor=$v v=$(newest "$git" "$v"); [ -n "$v" ] || die "$git has no release of $minor"; }
	git -C "$git" rev-parse -q --verify "$(tag "$v")^{commit}" >/dev/null || die "$git has no tag $(tag "$v")"
	dir=$work/$v
	headers "$v" "$dir/include"
	# A plugin of its own directory: make builds it anew.
	make -s -C "$root" shim SLURM_INCLUDE="$dir/include" SHIM_OUT="$dir/job_submit_carma.so"
	SLURM_INCLUDE=$dir/include N=${N:-500} "$root/slurmbridge/shim/check.sh" "$dir/check" "$dir/job_submit_carma.so" "$root/lib/libcarma.so" >"$dir/log" 2>&1 ||
		{ cat "$dir/log"; die "the shim's tests fail with the headers of $v"; }
	echo "shim: slurm $v: builds without warnings, tests pass"
done
