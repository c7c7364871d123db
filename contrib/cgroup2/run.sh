#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A part of the integration tests where cgroup v2 stands alone: in a Debian 13 with its
# own Slurm, booted with systemd under user-mode-linux, which needs no virtualisation.
# Slurm's cgroup/v2 refuses a kernel that has v1 too. usage: run.sh TESTS, a pattern of go
# test -run. As root; make has built everything. What is seen goes to build/cgroup2.
set -euo pipefail

[ $# = 1 ] || { echo "usage: run.sh TESTS" >&2; exit 2; }
tests=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${CGROUP2_CACHE:-/var/cache/carma-cgroup2}
seen=$top/build/cgroup2

fail() { echo "cgroup2: $*" >&2; exit 1; }
say() { echo "cgroup2: $SECONDS s: $*"; }

# make_root: Debian 13 with its Slurm, once; three minutes and the network.
make_root() {
	[ ! -e "$cache/done" ] || return 0
	say "making a Debian 13 in $cache"
	rm -rf "$cache/root"
	mkdir -p "$cache"
	install_root >"$cache/log" 2>&1 || { tail -n 5 "$cache/log" >&2; fail "Debian could not be installed in $cache/root"; }
	touch "$cache/done"
}

# install_root: no daemon starts in a root that is not booted (policy-rc.d), nor later by
# itself: the development cluster starts its own.
install_root() {
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,iproute2,kmod trixie "$cache/root" &&
		printf '#!/bin/sh\nexit 101\n' >"$cache/root/usr/sbin/policy-rc.d" &&
		chmod 755 "$cache/root/usr/sbin/policy-rc.d" &&
		DEBIAN_FRONTEND=noninteractive chroot "$cache/root" apt-get install -y --no-install-recommends \
			munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm-dev nfs-kernel-server nfs-common &&
		chroot "$cache/root" apt-get clean &&
		chroot "$cache/root" systemctl mask slurmctld slurmd munge nfs-server rpcbind rpcbind.socket nfs-blkmap \
			rpc-statd-notify e2scrub_reap getty@tty1 serial-getty@tty0 apt-daily.timer apt-daily-upgrade.timer man-db.timer
}

# make_image: the root, with the kernel's modules, this tree and its tests.
make_image() {
	local tree=$cache/root/carma
	rm -rf "$tree" "$cache/root/lib/modules"
	mkdir -p "$tree/contrib" "$cache/root/lib/modules" "$cache/root/etc/systemd/system/default.target.wants"
	cp -r /usr/lib/uml/modules/* "$cache/root/lib/modules/"
	cp -r "$top/bin" "$top/lib" "$tree/"
	rm -f "$tree/lib/slurm/job_submit_carma.so" # is for this machine's Slurm
	cp -r "$top/contrib/devcluster" "$top/contrib/cgroups.sh" "$tree/contrib/"
	mkdir "$work/include" # Slurm's alone: the C library is this machine's
	cp -r "$cache/root/usr/include/slurm" "$work/include/"
	local source
	for source in "$tree"/contrib/devcluster/testdata/*.c; do # the machine has no compiler
		grep -q '<slurm/' "$source" || ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -O2 -o "${source%.c}" "$source"
	done
	make -s -C "$top" shim SLURM_INCLUDE="$work/include" SHIM_OUT="$tree/lib/slurm/job_submit_carma.so"
	(cd "$top" && ${GO:-go} test -c -tags integration -o "$tree/contrib/devcluster/devcluster.test" ./contrib/devcluster)
	install -m 755 "$here/inside.sh" "$cache/root/inside.sh"
	cp "$here/carma-tests.service" "$cache/root/etc/systemd/system/"
	ln -sf ../carma-tests.service "$cache/root/etc/systemd/system/default.target.wants/"
	echo "$tests" >"$cache/root/tests"
	rm -f "$work/image"
	mkfs.ext4 -q -F -d "$cache/root" "$work/image" 2500M
}

[ "$(id -u)" = 0 ] || fail "needs root"
make_root
rm -rf "$seen"
mkdir -p "$seen"
# On a disk: linux.uml itself takes its memory from /dev/shm.
work=$(mktemp -d /var/tmp/carma-cgroup2.XXXXXX)
machine=
trap '[ -z "$machine" ] || kill "$machine" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
${CC:-cc} -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -shared -o "$work/xstate.so" "$here/xstate.c"
make_image
say "booting; the console is in $seen/console"
LD_PRELOAD=$work/xstate.so timeout -k 10 7200 linux.uml ubd0="$work/image" root=/dev/ubda rw mem=3072M \
	con=null con0=null,fd:1 quiet "carma.seen=$seen" </dev/null >"$seen/console" 2>&1 &
machine=$!
wait "$machine" || true
machine=
[ -e "$seen/status" ] || { tail -n 20 "$seen/console" >&2; fail "the machine has not come to the tests"; }
cat "$seen/tests.log"
! grep -q 'warning: no tests to run' "$seen/tests.log" || fail "no test is called $tests"
say "ended"
exit "$(cat "$seen/status")"
