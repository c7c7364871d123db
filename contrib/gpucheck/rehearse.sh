#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The kit without a GPU: in a bare root without a network, on simulated GPUs, where a driver would be.
# usage: rehearse.sh ARCHIVE ROOT...   ROOT is bookworm, trixie, jammy, noble, or host: this machine's own.
# FULL=yes makes all parts in their full length in place of the short form; KILLS is how often `run` is killed (10).
# What bare.sh says of its roots holds here. Ubuntu's packages come by https, and are not checked beyond that.
set -euo pipefail

die() { echo "rehearse: $*" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/carma-gpu-kit

# make_root RELEASE: a minimal root as a tar archive, made once
make_root() {
	local from=https://archive.ubuntu.com/ubuntu check=--no-check-gpg
	case $1 in
	bookworm | trixie)
		# shellcheck disable=SC2016
		from=$(apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)' 'Created-By: Packages' |
			awk -F '|' '$2 == "Debian" && $3 == "Debian" && $4 == "main" { print $1; exit }')
		check=--force-check-gpg
		;;
	jammy | noble) ;;
	*) die "no root '$1'" ;;
	esac
	[ ! -e "$cache/$1.tar" ] || return 0
	mkdir -p "$cache"
	# Debian 12's debootstrap does not know Ubuntu 24.04, whose script is that of 22.04.
	script=
	[ "$1" != noble ] || [ -e /usr/share/debootstrap/scripts/noble ] || script=/usr/share/debootstrap/scripts/jammy
	debootstrap --variant=minbase $check "$1" "$work/new" "${from:-http://deb.debian.org/debian}" \
		${script:+"$script"} >"$work/log" 2>&1 ||
		{ tail -n 5 "$work/log" >&2; die "debootstrap could not make a root of $1"; }
	tar -C "$work/new" --exclude=./var/cache/apt/archives --exclude=./var/lib/apt/lists -cf "$cache/$1.tar.$$" .
	mv "$cache/$1.tar.$$" "$cache/$1.tar"
	rm -rf --one-file-system "$work/new"
}

# furnish DIR: what the rehearsal needs below DIR: the kit, and a stand-in for the driver
furnish() {
	mkdir -p "$1/a kit" "$1/nvidia"
	tar -xzf "$archive" -C "$1/a kit"
	cp "$top"/lib/simgpu/* "$top/bin/simgpu" "$here/nvidia-smi.sh" "$1/nvidia/"
	mv "$1/nvidia/nvidia-smi.sh" "$1/nvidia/nvidia-smi"
	cp "$here/inside.sh" "$1/"
	mps=$("$top/contrib/simgpu/fetch-mps.sh") && mkdir -p "$1/mps" && for v in 535 550; do
		mkdir -p "$1/mps/$v"
		cp "$mps/$v/usr/bin/nvidia-cuda-mps-control" "$1/mps/$v/"
	done || echo "rehearse: the real MPS daemons could not be fetched: their checks are SKIPPED"
}

[ $# -ge 2 ] || die "usage: rehearse.sh ARCHIVE ROOT..."
[ "$(id -u)" = 0 ] || die "needs root"
archive=$1
shift
work=$(mktemp -d /var/tmp/carma-kit.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$work"
what="FULL=${FULL:-} KILLS=${KILLS:-10} bash"
for name in "$@"; do
	SECONDS=0
	if [ "$name" = host ]; then
		furnish "$work/host"
		(cd / && eval "$what '$work/host/inside.sh'")
	else
		make_root "$name"
		root=$work/$name
		mkdir -p "$root"
		tar -C "$root" -xf "$cache/$name.tar"
		# Where bare.sh runs its commands, and what it wants there.
		mkdir -p "$root/root/carma" "$root/usr/local/go"
		furnish "$root/root/carma"
		echo "$name" >"$root/etc/hostname"
		unshare --mount --pid --fork --kill-child --mount-proc --uts --ipc --net --propagation private \
			"$top/contrib/bare.sh" --inside "$root" "$(go env GOROOT)" root-offline "$what ./inside.sh"
	fi
	echo "rehearse: $name: passed in $SECONDS s"
done
