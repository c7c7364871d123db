#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The packages of Debian and Ubuntu that building and trying CARMA needs, by target of the
# Makefile, beside what the README names. usage: deps.sh TARGET... installs what
# is missing; deps.sh --list prints the list. Services that the packages bring
# are kept from starting: the development cluster starts its own.
set -eu

# A line is a target and its packages, or @ and another target whose packages it needs too.
list() {
	cat <<-'TEXT'
	all              libc6-dev libslurm-dev
	cluster          @all slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
	demo             @cluster
	lint             @all codespell shellcheck
	test-unit        @all slurm-client python3 prometheus tzdata
	test-trace       git python3 python3-numpy python3-regex python3-safetensors python3-torch python3-torchvision python3-tqdm
	test-shim        @all binutils
	test-spank       @all binutils
	test-simgpu      @all
	test-mps         @cluster debian-archive-keyring
	gpu-kit          @cluster binutils patchelf
	test-gpu-kit     @gpu-kit @test-mps debootstrap
	test-hooks       @all strace
	test-integration @cluster slurmdbd slurm-wlm-mysql-plugin mariadb-server
	test             @lint @test-unit @test-shim @test-spank @test-simgpu @test-hooks @test-integration
	test-situations  @test-integration libpam-slurm-adopt openssh-client openssh-server
	test-forecast    @test-integration
	test-cgroup2     @all debootstrap user-mode-linux e2fsprogs
	test-confine-kill @test-integration
	test-containers  @cluster busybox-static crun git jq musl-tools parallel podman squashfs-tools uidmap
	test-abuse       @test-integration strace
	test-soak        @cluster
	bench-scale      @cluster
	test-pages       chromium fonts-dejavu-core
	test-packages    @test-arm64 rpm
	release          debootstrap
	test-surroundings debootstrap locales
	test-newadmin    @all debootstrap systemd-container
	test-ansible     @test-newadmin ansible
	test-arm64       @all binutils gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
	test-debian12    debootstrap
	test-debian13    debootstrap
	TEXT
}

# packages TARGET: its own and those of the targets it names
packages() {
	words=$(list | sed -n "s/^$1  *//p")
	[ -n "$words" ] || { echo "deps: no target '$1'; contrib/deps.sh --list names them" >&2; return 1; }
	# In a subshell, for the words of each target are its own.
	for word in $words; do
		case $word in @*) (packages "${word#@}") || return 1 ;; *) echo "$word" ;; esac
	done
}

case ${1:-} in
--list | list) list; exit 0 ;;
'' | -*) echo "usage: deps.sh TARGET... | --list" >&2; exit 2 ;;
esac
wanted=
for target in "$@"; do
	some=$(packages "$target") || exit 2
	wanted="$wanted $some"
done
missing=
# shellcheck disable=SC2086
for p in $(printf '%s\n' $wanted | sort -u); do
	dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "deps: need root or sudo to install:$missing" >&2; exit 1; }
	as_root=sudo
fi
echo "deps: installing packages:$missing"

# policy-rc.d is what Debian's packages ask before they start a service.
policy=/usr/sbin/policy-rc.d
made_policy=
log=$(mktemp)
leave() {
	[ -z "$made_policy" ] || $as_root rm -f "$policy"
	rm -f "$log"
}
trap leave EXIT
trap 'exit 130' INT TERM
if [ ! -e "$policy" ]; then
	made_policy=yes
	printf '#!/bin/sh\nexit 101\n' | $as_root sh -c "umask 022; cat >$policy && chmod 755 $policy"
fi
$as_root apt-get update -qq >"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "deps: apt-get update failed" >&2; exit 1; }
case $missing in
*slurm*) slurm=$(apt-cache policy libslurm-dev | sed -n 's/.*Candidate: \([0-9][^-]*\).*/\1/p') ;;
*) slurm= ;;
esac
if [ -n "$slurm" ] && dpkg --compare-versions "$slurm" lt 22.05; then
	echo "deps: this release has Slurm $slurm; CARMA needs 22.05 or later: Debian 12 or 13, or Ubuntu 24.04" >&2
	exit 1
fi
# umask: what dpkg's scripts make is for all users.
if ! $as_root sh -c "umask 022
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing" >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "deps: apt-get could not install$missing" >&2
	exit 1
fi
echo "deps: done"
