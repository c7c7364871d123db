#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A command in a root of another release, which is kept between runs: to try a live test on the
# Slurm of that release within seconds. usage: root.sh RELEASE COMMAND
#   contrib/root.sh trixie 'make all && go test -tags integration -run TestSteps ./contrib/devcluster'
# RELEASE: bookworm (Slurm 22.05), trixie (24.11), forky (26.05) or noble (23.11).
# The command runs as root in this checkout, at the same path; bin, lib and build are the release's
# own, below build/roots. What the command writes elsewhere goes with the run: any number of runs
# stand side by side, each with its own processes, /tmp, users, ports and cgroups.
# The first run makes the root, with the packages that `make test` needs and those of the targets
# in ROOT_DEPS, in ${XDG_CACHE_HOME:-~/.cache}/carma-roots; remove the folder to make it anew.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/carma-roots

usage() { echo "usage: root.sh bookworm|trixie|forky|noble COMMAND" >&2; exit 2; }
die() { echo "root: $*" >&2; exit 1; }
# shellcheck source=contrib/root-common.sh
. "$here/root-common.sh"
# shellcheck source=contrib/cgroups.sh
. "$here/cgroups.sh"

# prepare RELEASE: makes the kept root
prepare() {
	local new=$cache/$1.new
	mkdir -p "$cache"
	rm -rf --one-file-system "$new"
	echo "root: makes $1 in $cache, once" >&2
	bootstrap "$1" "$new" "$cache/$1.log"
	mkdir -p "$new/root/.cache/go-build" "$new/root/go/pkg/mod"
	mv "$new" "$cache/$1"
}

# install RELEASE TARGET...: what the targets need, kept
install_deps() {
	local release=$1
	shift
	cp "$here/deps.sh" "$cache/$release/root/deps.sh"
	unshare --mount --pid --fork --kill-child --mount-proc --uts --ipc --propagation private \
		"$0" --install "$cache/$release" "$(go env GOROOT)" "$*"
	echo "$*" >"$cache/$release/root/deps.have"
}

# has_deps RELEASE TARGETS: what the targets need is there
has_deps() {
	local have
	have=$(cat "$cache/$1/root/deps.have" 2>/dev/null || true)
	# shellcheck disable=SC2086
	[ -z "$(comm -23 <(printf '%s\n' $2 | sort -u) <(printf '%s\n' $have | sort -u))" ]
}

# hierarchies: of the machine, writable for processes
# shellcheck disable=SC2317 # by the trap, too
hierarchies() {
	local h
	for h in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do [ ! -e "$h/cgroup.procs" ] || echo "$h"; done
}

# mount_cgroups ROOT: the hierarchies of this machine, as the cgroup namespace shows them
mount_cgroups() {
	local kind at options c
	mount -t tmpfs -o mode=755 cgroup "$1/sys/fs/cgroup"
	awk '$3 == "cgroup" || $3 == "cgroup2" { print $3, $2, $4 }' "$2" | while read -r kind at options; do
		if [ "$kind" = cgroup2 ] && [ "$at" = /sys/fs/cgroup ]; then
			umount "$1/sys/fs/cgroup"
			mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
			continue
		fi
		mkdir -p "$1$at"
		if [ "$kind" = cgroup2 ]; then
			mount -t cgroup2 cgroup2 "$1$at"
			continue
		fi
		c=$(tr , '\n' <<<"$options" | grep -vE '^(rw|ro|relatime|nosuid|nodev|noexec|clone_children|xattr|release_agent.*)$' | paste -sd,)
		mount -t cgroup -o "$c" cgroup "$1$at"
	done
}

# first_process KEPT GOROOT WORK TOP COMMON COMMAND
first_process() {
	local kept=$1 goroot=$2 work=$3 top=$4 common=$5 command=$6 root=$3/root d
	hostname "$(cat "$kept/etc/hostname")"
	ip link set lo up
	ip addr add 127.0.0.2/8 dev lo # see bare.sh
	mount -t tmpfs -o mode=755 carma-root "$work"
	mkdir "$root" "$work/upper" "$work/overlay"
	mount -t overlay -o "lowerdir=$kept,upperdir=$work/upper,workdir=$work/overlay" overlay "$root"
	cat /proc/self/mounts >"$work/mounts"
	mount_root "$root" "$goroot"
	umount -R "$root/sys/fs/cgroup"
	mount_cgroups "$root" "$work/mounts"
	mkdir -p "$root$top" "$root$common"
	mount --bind "$top" "$root$top"
	[ "$common" = "$top/.git" ] || mount --bind "$common" "$root$common"
	for d in bin lib build contrib/simgpu/build; do
		mkdir -p "$top/$d" "$top/build/roots/$release/$d"
	done
	for d in bin lib contrib/simgpu/build build; do mount --bind "$top/build/roots/$release/$d" "$root$top/$d"; done
	if [ -d "$top/../shared" ]; then
		d=$(cd "$top/.." && pwd)/shared
		mkdir -p "$root$d"
		mount --bind "$(readlink -f "$d")" "$root$d"
	fi
	mount --bind "$kept/root/.cache/go-build" "$root/root/.cache/go-build"
	mount --bind "$kept/root/go/pkg/mod" "$root/root/go/pkg/mod"
	rm -f "$root/usr/sbin/policy-rc.d"
	enter "$root" root "cd '$top' && export GOFLAGS=-modcacherw GOPROXY=off CARMA_ROOT=$release && $command"
}

# install_inside ROOT GOROOT TARGETS
install_inside() {
	mount --bind "$1" "$1"
	mount_root "$1" "$2"
	enter "$1" root "/root/deps.sh $3"
}

main() {
	case ${1:-} in
	--install) shift; install_inside "$@"; return ;;
	--inside)
		release=$2
		shift 2
		first_process "$@"
		return
		;;
	esac
	[ $# = 2 ] || usage
	release=$1
	distribution_of "$release" >/dev/null || usage
	[ "$(id -u)" = 0 ] || die "needs root"
	command -v debootstrap >/dev/null || die "debootstrap is missing; run: contrib/deps.sh test-debian12"
	command -v go >/dev/null || die "there is no Go on this machine"
	mkdir -p "$cache"
	# Runs share the lock while they last: nothing is installed below their overlays.
	local targets="test test-situations ${ROOT_DEPS:-}" have mod
	exec 8>"$cache/$release.lock"
	flock -s 8
	until [ -d "$cache/$release" ] && has_deps "$release" "$targets"; do
		flock 8
		[ -d "$cache/$release" ] || prepare "$release"
		have=$(cat "$cache/$release/root/deps.have" 2>/dev/null || true)
		# shellcheck disable=SC2086
		has_deps "$release" "$targets" || install_deps "$release" $have $targets
		flock -s 8
	done
	# No network inside: modules come from here.
	mod=$cache/$release/root/go/pkg/mod
	(cd "$top" && GOMODCACHE=$mod GOFLAGS=-modcacherw go mod download)
	local status=0 common
	name=carma-root.$$
	work=$(mktemp -d /var/tmp/carma-root.XXXXXX)
	common=$(cd "$top" && realpath "$(git rev-parse --git-common-dir)")
	trap 'forget_cgroups "$name" $(hierarchies); rmdir "$work" 2>/dev/null || true' EXIT
	trap 'exit 130' INT TERM
	(
		# shellcheck disable=SC2046
		own_cgroups "$name" $(hierarchies)
		exec unshare --mount --pid --fork --kill-child --mount-proc --uts --ipc --net --cgroup --propagation private \
			"$0" --inside "$release" "$cache/$release" "$(go env GOROOT)" "$work" "$top" "$common" "$2"
	) || status=$?
	return $status
}

main "$@"
exit
