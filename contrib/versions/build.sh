#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a release of Slurm from its public source, outside the repository, to
# run the development cluster and the integration tests on:
#
#   contrib/versions/build.sh 23.11 /opt/slurm-23.11
#   make test-integration SLURM_PREFIX=/opt/slurm-23.11
#
# Ten minutes on two cores. It needs gcc, make and libmunge-dev.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=source.sh
. "$here/source.sh"

[ $# = 2 ] || { echo "usage: build.sh VERSION PREFIX" >&2; exit 2; }
case $2 in /*) prefix=$2 ;; *) die "$2: PREFIX must be an absolute path" ;; esac
[ -e /usr/include/munge.h ] || die "munge.h is missing; install libmunge-dev"
git=$(slurm_git)
v=$1
[[ $v == *.*.* ]] || v=$(newest "$git" "$v")
git -C "$git" rev-parse -q --verify "$(tag "$v")^{commit}" >/dev/null || die "$git has no release $1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src" "$work/build"
git -C "$git" archive "$(tag "$v")" | tar x -C "$work/src"
cd "$work/build"
# What the cluster does not use is left out: less to build, nothing to install. Not
# by --without-lz4: with it configure of 26.05 fails (auxdir/x_ac_lz4.m4).
"$work/src/configure" -q --prefix="$prefix" --enable-multiple-slurmd --disable-pam --disable-slurmrestd --without-json --without-http-parser \
	--without-yaml --without-jwt --without-hdf5 --without-rdkafka --without-freeipmi --without-hwloc \
	--without-nvml --without-bpf CFLAGS="-O1 -pipe" >"$work/log" 2>&1 || { tail -20 "$work/log"; die "configure of Slurm $v failed"; }
for step in "-C src" "-C src install" "install-pkgincludeHEADERS"; do
	# shellcheck disable=SC2086
	nice make -s -j"${JOBS:-2}" $step >>"$work/log" 2>&1 || { tail -20 "$work/log"; die "make $step of Slurm $v failed"; }
done
"$prefix/sbin/slurmctld" -V
