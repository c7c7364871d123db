#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A new Debian with nothing but what the README names, and commands in it: what a
# new user sees. usage: bare.sh [--keep PATH DIR] RELEASE AS COMMAND [AS COMMAND]...
# RELEASE is bookworm or trixie. AS is user (who has sudo), root, or root-offline:
# root without a network. Each command runs in a clone of the last commit. PATH of
# that clone, the last command's, is copied to DIR when all have passed.
#
# The root is made for this run and goes with it. Only Debian's packages and Go's
# modules are kept, in ${XDG_CACHE_HOME:-~/.cache}/carma-bare. The mirror, proxies
# and certificates are those of this machine; Go is this machine's, read-only.
# Inside: no systemd, its own processes and /tmp, devices and cgroups as in a
# container.
set -euo pipefail

usage() { echo "usage: bare.sh [--keep PATH DIR] bookworm|trixie (user|root|root-offline COMMAND)..." >&2; exit 2; }
die() { echo "bare: $*" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/carma-bare

# Who reads the machine's own settings, apt's and Go's, gets them from the tools.
mirror() {
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)' 'Created-By: Packages' |
		awk -F '|' '$2 == "Debian" && $3 == "Debian" && $4 == "main" { print $1; exit }'
}

make_root() {
	local from
	from=$(mirror)
	[ -n "$from" ] || { apt-get update -qq && from=$(mirror); }
	[ -n "$from" ] || die "apt names no mirror of Debian; see apt-get indextargets"
	mkdir -p "$cache/$release" "$cache/mod"
	# What the README names, what reaches Go's proxy, and sudo.
	debootstrap --variant=minbase --cache-dir="$cache/$release" --include=gcc,libc6-dev,make,git,ca-certificates,sudo \
		"$release" "$root" "$from" >"$work/log" 2>&1 ||
		{ tail -n 20 "$work/log" >&2; die "debootstrap could not make a root of $release"; }
	find "$cache/$release" -name '*.deb' -exec cp -t "$root/var/cache/apt/archives" {} +
	apt-config dump | grep -iE '^Acquire::(.*proxy|Check-(Date|Valid-Until))' >"$root/etc/apt/apt.conf.d/90machine" || true
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	cp /etc/resolv.conf "$root/etc/"
	echo "$release" >"$root/etc/hostname"
	printf '127.0.0.1 localhost %s\n::1 localhost\n' "$release" >"$root/etc/hosts"
	{
		echo "PATH=\$PATH:/usr/local/go/bin"
		echo "export GOPROXY='$(go env GOPROXY)' GOSUMDB='$(go env GOSUMDB)' GONOSUMDB='$(go env GONOSUMDB)'"
		for v in http_proxy https_proxy no_proxy; do [ -z "${!v:-}" ] || echo "export $v='${!v}'"; done
	} >"$root/etc/profile.d/machine.sh"
	mkdir -p "$root/usr/local/go"
	useradd --root "$root" --create-home --shell /bin/bash dev
	echo 'dev ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/dev"
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
	local root=$1 user=root d point
	hostname "$(cat "$root/etc/hostname")"
	# getaddrinfo with AI_ADDRCONFIG, which Slurm's daemons listen by, wants an address
	# beside 127.0.0.1, as a machine has whose network is cut.
	[ "$3" != root-offline ] || { ip link set lo up && ip addr add 127.0.0.2/8 dev lo; }
	mount --bind "$root" "$root"
	mount --bind "$2" "$root/usr/local/go"
	mount -o remount,bind,ro "$root/usr/local/go"
	mount -t proc proc "$root/proc"
	mount -t sysfs sysfs "$root/sys"
	mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
	awk -v below="$root/sys" 'index($2, below) == 1 { print $2 }' /proc/self/mounts |
		while read -r point; do mount -o remount,bind,ro "$point"; done
	mount -t tmpfs -o mode=755 dev "$root/dev"
	for d in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
		read -r name major minor <<<"$d"
		mknod -m 666 "$root/dev/$name" c "$major" "$minor"
	done
	mkdir "$root/dev/pts" "$root/dev/shm"
	mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
	mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
	for d in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${d%:*}" "$root/dev/${d#*:}"; done
	[ "$3" != user ] || user=dev
	# Not chroot alone: the kernel makes no user namespace in one, and containers of users need it.
	cd "$root"
	pivot_root . .
	umount -l .
	chroot . runuser -l "$user" -c "cd carma && $4" </dev/null
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
	case $release in bookworm | trixie) shift ;; *) usage ;; esac
	[ "$(id -u)" = 0 ] || die "needs root"
	command -v debootstrap >/dev/null || die "debootstrap is missing; run: contrib/deps.sh test-debian12"
	command -v go >/dev/null || die "there is no Go on this machine"
	work=$(mktemp -d /var/tmp/carma-bare.XXXXXX)
	root=$work/$release
	trap 'rm -rf --one-file-system "$work"' EXIT
	trap 'exit 130' INT TERM

	SECONDS=0
	make_root
	local name began word failed='' home
	name="Debian $(cat "$root/etc/debian_version")"
	echo "bare: $name made in $SECONDS s;" \
		"in it are $(chroot "$root" dpkg-query -W | wc -l) packages and $(go version | cut -d' ' -f3)"
	while [ $# -gt 0 ]; do
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
