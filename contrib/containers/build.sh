#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what make test-containers starts, into DIR: an image, or that with enroot and pyxis, or
# with Apptainer, from their public sources. usage: build.sh DIR image | pyxis | apptainer
# It ends with 3 where the sources cannot be had. ENROOT_GIT, PYXIS_GIT and APPTAINER_GIT name
# clones of the sources, where github.com cannot be reached.
# SLURM_PREFIX is as in contrib/devcluster. Needs what contrib/deps.sh test-containers lists.
set -euo pipefail

case "$#${2:-}" in
2image | 2pyxis | 2apptainer) ;;
*) echo "usage: build.sh DIR image | pyxis | apptainer" >&2; exit 2 ;;
esac
mkdir -p "$1"
dir=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT # Go's modules are read-only

enroot=v4.1.2 pyxis=v0.24.0 apptainer=v1.4.5

# source_of OWNER NAME TAG [CLONE]: the files of a release
source_of() {
	local from=${4:-https://github.com/$1/$2}
	shift
	mkdir -p "$work/$1"
	if [ -d "$from" ]; then
		git -C "$from" archive "$2" | tar x -C "$work/$1"
	else
		git -c advice.detachedHead=false clone -q --depth 1 --branch "$2" "$from" "$work/$1" || exit 3
	fi
}

# Its Makefile fetches musl, Linux's headers and makeself by git; Debian's musl-tools and
# the machine's headers do. Bundles, for which makeself is, are not made here.
build_enroot() {
	local util done=()
	cd "$work/enroot"
	mkdir -p headers deps/dist/makeself/bin
	ln -s /usr/include/linux /usr/include/asm-generic headers/
	ln -s "/usr/include/$(gcc -print-multiarch)/asm" headers/asm
	for util in aufs2ovlfs mksquashovlfs mount switchroot nsenter; do
		musl-gcc -static -std=c99 -O2 -w -DHAVE_DIRFD -DHAVE_DIRENT_H -DLIBBSD_OVERLAY -isystem deps/libbsd/include/bsd \
			-isystem deps/libbsd/include -isystem headers -o "bin/enroot-$util" "bin/enroot-$util.c" deps/libbsd/src/*.c
		done+=(-o "bin/enroot-$util")
	done
	printf '#!/bin/sh\nexit 1\n' >deps/dist/makeself/bin/enroot-makeself
	make -s -o deps "${done[@]}" -o deps/dist/makeself/bin/enroot-makeself FORCE_GLIBC=1 install "prefix=$dir/enroot"
	cat >"$dir/enroot/etc/enroot/enroot.conf" <<-TEXT
	ENROOT_RUNTIME_PATH $dir/home/run-\$(id -u)
	ENROOT_CACHE_PATH $dir/home/cache-\$(id -u)
	ENROOT_DATA_PATH $dir/home/data-\$(id -u)
	ENROOT_LOGIN_SHELL no
	ENROOT_ROOTFS_WRITABLE yes
	TEXT
	# enroot's hook has NVIDIA's program bring the devices in: this one notes which it is told.
	cat >"$dir/enroot/bin/nvidia-container-cli" <<-TEXT
	#!/bin/sh
	echo "job=\$SLURM_JOB_ID \$*" >>$dir/home/cli.log
	TEXT
	chmod 755 "$dir/enroot/bin/nvidia-container-cli"
	: >"$dir/home/cli.log"
	chmod 666 "$dir/home/cli.log"
}

build_pyxis() {
	C_INCLUDE_PATH=${SLURM_PREFIX:-/usr}/include make -s -C "$work/pyxis" spank_pyxis.so
	install -m 644 "$work/pyxis/spank_pyxis.so" "$dir/"
}

# For users who have no rights: no program is setuid. Only what a job needs is built, and without
# .clean-starter, by which its Makefile empties Go's cache for all.
build_apptainer() {
	local to=$dir/apptainer
	cd "$work/apptainer"
	echo "${apptainer#v}" >VERSION
	# Not among those of the user who became root for the tests.
	export GOMODCACHE=$work/modules
	go mod download >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 3; }
	./mconfig --without-suid --without-seccomp --without-libsubid --without-network --prefix="$to" >/dev/null
	make -s -C builddir -o "$PWD/builddir/.clean-starter" "$to/bin/apptainer" "$to/libexec/apptainer/bin/starter" \
		"$to"/etc/apptainer/{apptainer.conf,nvliblist.conf,capability.json} >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
	mkdir -p "$to/var/apptainer/mnt/session"
}

# A root directory with busybox and the simulated GPUs' programs, whose environment asks
# for all GPUs, as those of NVIDIA's images do.
build_image() {
	local image=$dir/bundle/rootfs lib name
	mkdir -p "$image"/{bin,sbin,usr/bin,usr/sbin,etc,proc,sys,dev/pts,dev/shm,tmp,run,var,root}
	cp /bin/busybox "$image/bin/"
	chroot "$image" /bin/busybox --install -s
	for name in simgpu simjob; do
		install -m 755 "$root/bin/$name" "$image/usr/bin/"
		for lib in $(ldd "$root/bin/$name" | grep -o '/[^ )]*'); do install -D "$lib" "$image$lib"; done
	done
	echo 'root:x:0:0:root:/root:/bin/sh' >"$image/etc/passwd"
	printf 'NVIDIA_VISIBLE_DEVICES=all\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n' >"$image/etc/environment"
	for name in etc/group etc/hosts etc/hostname etc/resolv.conf run/.containerenv; do : >"$image/$name"; done
	ln -s /proc/mounts "$image/etc/mtab"
	mkdir -p "$image${dir%/*}"/{dev/n1,run/n1/mps,simgpu} # what the tests mount
	chmod -R a+rX "$dir/bundle"
	mksquashfs "$image" "$dir/image.sqsh" -quiet -no-progress >/dev/null
	chmod 644 "$dir/image.sqsh"
}

mkdir -p "$dir/home" # for what users have
chmod 1777 "$dir/home"
build_image
case $2 in
pyxis)
	source_of NVIDIA enroot $enroot "${ENROOT_GIT:-}"
	source_of NVIDIA pyxis $pyxis "${PYXIS_GIT:-}"
	build_pyxis
	build_enroot
	;;
apptainer)
	source_of apptainer apptainer $apptainer "${APPTAINER_GIT:-}"
	build_apptainer
	;;
esac
