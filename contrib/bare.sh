#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A new Debian with nothing but what the README names, and commands in it: what a
# new user sees. usage: bare.sh [--keep PATH DIR] RELEASE AS COMMAND [AS COMMAND]...
# RELEASE is bookworm, trixie, forky, noble or jammy. AS is user (who has sudo), root, or root-offline:
# root without a network. Each command runs in a clone of the last commit. For AS the word until may stand, with
# a time in seconds since 1970 for COMMAND: later no command behind begins, and a line names each; not with --keep.
# PATH of that clone, the last command's, is copied to DIR when all have passed. It ends with 3 where debootstrap
# cannot make the root.
#
# The root is made for this run and goes with it. Only Debian's packages and Go's
# modules are kept, in ${XDG_CACHE_HOME:-~/.cache}/carma-bare. The mirror, proxies
# and certificates are those of this machine; Go is this machine's, read-only.
# Inside: no systemd, its own processes and /tmp, devices and cgroups as in a
# container.
set -euo pipefail

usage() {
	echo "usage: bare.sh [--keep PATH DIR] bookworm|trixie|forky|noble|jammy" \
		"(user|root|root-offline COMMAND | until TIME)..." >&2
	exit 2
}
# A caller can tell a root that no mirror gives from a command that fails.
making=''
die() { echo "bare: $*" >&2; exit "${making:-1}"; }

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/carma-bare

# shellcheck source=contrib/root-common.sh
. "$here/root-common.sh"

make_root() {
	mkdir -p "$cache/$release" "$cache/mod"
	bootstrap "$release" "$root" "$work/log" --cache-dir="$cache/$release"
	find "$cache/$release" -name '*.deb' -exec cp -t "$root/var/cache/apt/archives" {} +
	for home in root home/dev; do
		mkdir -p "$root/$home/go/pkg"
		cp -a "$cache/mod" "$root/$home/go/pkg/mod"
		git clone --quiet --no-local "$top" "$root/$home/carma"
	done
	chroot "$root" chown -R dev: /home/dev
}

# keep_cache: what this run has fetched is there for the next one.
keep_cache() {
	local home
	cp -nt "$cache/$release" "$root"/var/cache/apt/archives/*.deb 2>/dev/null || true
	for home in root home/dev; do
		[ ! -d "$root/$home/go/pkg/mod/cache" ] || cp -aTn "$root/$home/go/pkg/mod" "$cache/mod" 2>/dev/null || true
	done
	chown -R "$(id -u):$(id -g)" "$cache/mod"
}

# inside AS COMMAND: as a login of the user in the root. Its first process is this
# script's, which takes what daemons leave behind.
inside() {
	local namespaces=(--mount --pid --fork --kill-child --mount-proc --uts --ipc --propagation private)
	[ "$1" != root-offline ] || namespaces+=(--net)
	unshare "${namespaces[@]}" "$0" --inside "$root" "$(go env GOROOT)" "$1" "$2"
}

# first_process ROOT GOROOT AS COMMAND
first_process() {
	local root=$1 user=root
	hostname "$(cat "$root/etc/hostname")"
	# getaddrinfo with AI_ADDRCONFIG, which Slurm's daemons listen by, wants an address
	# beside 127.0.0.1, as a machine has whose network is cut.
	[ "$3" != root-offline ] || { ip link set lo up && ip addr add 127.0.0.2/8 dev lo; }
	mount --bind "$root" "$root"
	mount_root "$root" "$2"
	[ "$3" != user ] || user=dev
	enter "$root" "$user" "cd carma && $4"
}

# main: all of it is read before it runs, for a run may outlast an edit.
main() {
	if [ "${1:-}" = --inside ]; then
		shift
		first_process "$@"
		return
	fi
	local keep='' keep_in
	if [ "${1:-}" = --keep ]; then
		[ $# -gt 3 ] || usage
		keep=$2 keep_in=$3
		shift 3
	fi
	if [ $# -lt 3 ] || [ $(($# % 2)) = 0 ]; then usage; fi
	release=$1
	distribution_of "$release" >/dev/null || usage
	shift
	local i
	for ((i = 1; i < $#; i += 2)); do
		[ "${!i}" != until ] || [[ ${*:i+1:1} =~ ^[0-9]+$ && ! $keep ]] || usage
	done
	[ "$(id -u)" = 0 ] || die "needs root"
	command -v debootstrap >/dev/null || die "debootstrap is missing; run: contrib/deps.sh test-debian12"
	command -v go >/dev/null || die "there is no Go on this machine"
	work=$(mktemp -d /var/tmp/carma-bare.XXXXXX)
	root=$work/$release
	trap 'rm -rf --one-file-system "$work"' EXIT
	trap 'exit 130' INT TERM

	SECONDS=0
	making=3
	make_root
	making=''
	local name began word failed='' home until=''
	# shellcheck disable=SC1091
	name=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
	echo "bare: $name made in $SECONDS s;" \
		"in it are $(chroot "$root" dpkg-query -W | wc -l) packages and $(go version | cut -d' ' -f3)"
	while [ $# -gt 0 ]; do
		if [ "$1" = until ]; then
			until=$2
			shift 2
			continue
		fi
		if [ -n "$until" ] && [ "$(date +%s)" -gt "$until" ]; then
			echo "bare: $name, as $1: $2: NOT TRIED, for time is short"
			shift 2
			continue
		fi
		began=$SECONDS word=passed
		echo "bare: $name, as $1: $2"
		inside "$1" "$2" || { word=FAILED failed=yes; }
		echo "bare: $name, as $1: $2: $word in $((SECONDS - began)) s"
		[ "$1" = user ] && home=$root/home/dev || home=$root/root
		shift 2
	done
	keep_cache
	[ -z "$failed" ] || return 1
	[ -z "$keep" ] || cp -rT --no-preserve=ownership "$home/carma/$keep" "$keep_in"
}

main "$@"
exit
