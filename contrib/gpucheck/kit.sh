#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the archive of `make gpu-kit`: what a machine needs for half an hour with a GPU and nothing
# else. usage: kit.sh ARCHIVE. Slurm and munge are the files of this machine's Debian packages, moved into a
# prefix of their own: patchelf points each program at the libraries beside it. glibc is that of the machine
# where the kit runs, so everything is held to the symbols of the oldest (Ubuntu 22.04: 2.35).
set -euo pipefail

die() { echo "gpu-kit: $*" >&2; exit 1; }
readonly oldest=2.35 most_mib=64

[ $# = 1 ] || die "usage: kit.sh ARCHIVE"
archive=$1
top=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(mktemp -d)/carma-gpu-kit
trap 'rm -rf "$(dirname "$kit")"' EXIT
mkdir -p "$kit"/{bin,lib/slurm,share}

cp "$top"/bin/carma-{node,report,estimate} "$top"/build/gpu-kit/{gpucheck,gpuload} "$kit/bin/"
cp "$top/lib/libcarma.so" "$kit/lib/"
cp "$top/contrib/gpucheck/run" "$kit/run"
cp "$top/contrib/gpucheck/trainings.py" "$top/contrib/gpucheck/README.md" "$kit/share/"
git -C "$top" rev-parse HEAD >"$kit/share/commit" 2>/dev/null || true

# Slurm's programs, plugins and libraries, and munge.
plugins=$(dirname "$(find /usr/lib -name libslurmfull.so -print -quit 2>/dev/null)")
[ -e "$plugins/libslurmfull.so" ] || die "Slurm is missing; run: contrib/deps.sh gpu-kit"
programs=(/usr/sbin/{slurmctld,slurmd,slurmstepd,munged} /usr/bin/{sbatch,scancel,scontrol,sinfo,squeue,srun})
cp "${programs[@]}" "$kit/bin/"
cp "$plugins"/*.so "$kit/lib/slurm/"
mv "$kit/lib/slurm/libslurmfull.so" "$kit/lib/"
mkdir "$kit/share/copyright"
for p in slurmctld munge; do cp "/usr/share/doc/$p/copyright" "$kit/share/copyright/$p"; done
# The libraries that they need and a bare machine lacks. glibc, and what belongs to it, is the machine's own.
# What a plugin needs that the kit has not (MySQL, Lua, ...) makes that plugin useless, and no configuration of ours names it.
needed() { ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u; }
wanted=("${programs[@]}" "$plugins"/{auth_munge,cred_munge,select_cons_tres,task_cgroup,proctrack_cgroup,proctrack_linuxproc,cgroup_v1,cgroup_v2}.so)
for l in $(needed "${wanted[@]}"); do
	case ${l##*/} in
	ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libresolv.so* | libslurmfull.so) ;;
	*) cp -L "$l" "$kit/lib/" ;;
	esac
done
cp "$top"/lib/slurm/{job_submit_carma,spank_carma}.so "$kit/lib/slurm/"
# DT_RPATH, not RUNPATH: it also holds for what a plugin needs.
for f in "${programs[@]}"; do patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$kit/bin/${f##*/}"; done
for f in "$kit"/lib/*.so*; do patchelf --force-rpath --set-rpath "\$ORIGIN" "$f"; done
for f in "$kit"/lib/slurm/*.so; do patchelf --force-rpath --set-rpath "\$ORIGIN/.." "$f"; done

# Each GLIBC version that is asked for is one that the oldest has.
for f in "$kit"/bin/* "$kit"/lib/*.so* "$kit"/lib/slurm/*.so; do
	asks=$(objdump -T "$f" 2>/dev/null | { grep -o 'GLIBC_[0-9.]*' || true; } | sort -Vu | tail -n 1 | cut -d_ -f2)
	[ -z "$asks" ] || [ "$(printf '%s\n' "$asks" "$oldest" | sort -V | tail -n 1)" = "$oldest" ] ||
		die "${f##*/} needs glibc $asks, and Ubuntu 22.04 has $oldest; build the kit on Debian 12:" \
			"contrib/bare.sh --keep build/gpu-kit.tar.gz . bookworm root 'make gpu-kit'"
done
strip --strip-unneeded "$kit"/bin/carma-* "$kit"/bin/gpucheck 2>/dev/null || true
tar -C "$(dirname "$kit")" --owner=0 --group=0 --sort=name -cf - carma-gpu-kit | gzip -9n >"$archive"
size=$(($(stat -c %s "$archive") / 1048576 + 1))
[ "$size" -lt $most_mib ] || die "$archive has $size MiB, and less than $most_mib are carried"
echo "gpu-kit: $archive, $size MiB"
