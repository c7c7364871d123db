# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Machines to try an installation on: Debian or Ubuntu with its own Slurm, booted with
# systemd by systemd-nspawn, on a network of their own. They are made inside
# namespaces that end with the script, so that nothing of them stays but the
# root that they share, in $cache. DEBIAN says which: bookworm, trixie or noble.

top=$(cd "$here/../.." && pwd)
die() { fail "$@"; }
# shellcheck source=contrib/root-common.sh
. "$top/contrib/root-common.sh"
cache=${NEWADMIN_CACHE:-/var/cache/carma-newadmin}
debian=${DEBIAN:-bookworm}
case $debian in bookworm | trixie | noble) ;; *) fail "DEBIAN=$debian: must be bookworm, trixie or noble" ;; esac
# systemd of Debian 13 and Ubuntu 24.04 does not boot with the old cgroups.
[ "$debian" = bookworm ] || export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1

# enter NAME SCRIPT PACKAGES-DIR: run SCRIPT again where its mounts, its network
# and its processes are its own and end with it; then prepare. What is seen goes
# to build/NAME.
enter() {
	[ "$(id -u)" = 0 ] || fail "needs root"
	packages=$(cd "$3" && pwd)
	if [ -z "${NEWADMIN_INSIDE:-}" ]; then
		make_root
		NEWADMIN_INSIDE=yes exec unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$2" "$packages"
	fi
	work=$(mktemp -d /tmp/newadmin.XXXXXX)
	seen=$top/build/$1
	rm -rf "$seen"
	mkdir -p "$seen"
	mapfile -t cgroups < <(awk '$3 ~ /^cgroup/ && ($3 == "cgroup2" || $4 ~ /name=systemd/) { print $2 }' /proc/mounts)
	group=newadmin.$(basename "$work")
	trap leave EXIT
	trap 'exit 130' INT TERM
	start_network
}

leave() {
	local m
	for m in head gpu1 gpu2; do
		[ ! -d "$work/$m/root/var/log/slurm" ] || cp -r "$work/$m/root/var/log/slurm" "$seen/slurm.$m"
		[ -z "${leader_of[$m]:-}" ] || run $m "journalctl -b --no-pager" >"$seen/journal.$m" || true
		[ ! -e "$work/$m/console" ] || cp "$work/$m/console" "$seen/console.$m"
	done
	halt_all
	for m in head gpu1 gpu2; do umount "$work/$m/root" 2>/dev/null || true; done
	rm -rf "$work"
}

say() { printf '%4ds  %s\n' $SECONDS "$*"; }

# make_root: a release with its own Slurm, once; two minutes and the network.
make_root() {
	[ ! -e "$cache/$debian/done" ] || return 0
	"$here/../deps.sh" test-newadmin
	echo "newadmin: making a root of $debian in $cache"
	rm -rf "${cache:?}/$debian"
	mkdir -p "$cache"
	debootstrap_of "$debian" "$cache/$debian" "$cache/log" systemd,systemd-sysv,dbus,procps,iproute2,udev,python3-apt,man-db
	install_slurm >>"$cache/log" 2>&1 || { tail -5 "$cache/log" >&2; fail "Slurm could not be installed in $cache/$debian"; }
	touch "$cache/$debian/done"
}

# install_slurm: no daemon starts in a root that is not booted (policy-rc.d).
install_slurm() {
	printf '#!/bin/sh\nexit 101\n' >"$cache/$debian/usr/sbin/policy-rc.d" &&
		chmod 755 "$cache/$debian/usr/sbin/policy-rc.d" &&
		DEBIAN_FRONTEND=noninteractive chroot "$cache/$debian" apt-get install -y --no-install-recommends \
			munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins &&
		rm "$cache/$debian/usr/sbin/policy-rc.d"
}

# start_network: of the machines only; the namespace has no way out.
start_network() {
	ip link set lo up
	ip link add lan type bridge
	ip link set lan up
}

declare -A pid_of leader_of

# boot NAME ADDRESS: its disk is a layer over the shared root.
boot() {
	local name=$1 address=$2 disk=$work/$1 h
	mkdir -p "$disk"/{up,tmp,root}
	mountpoint -q "$disk/root" ||
		mount -t overlay "$name" -o "lowerdir=$work/site:$cache/$debian,upperdir=$disk/up,workdir=$disk/tmp" "$disk/root"
	echo "$name" >"$disk/root/etc/hostname"
	(
		# Where the kernel has the old cgroups, systemd wants one of its own in each.
		for h in "${cgroups[@]}"; do
			mkdir -p "$h/$group/$name"
			echo $BASHPID >"$h/$group/$name/cgroup.procs"
		done
		exec systemd-nspawn --quiet --directory="$disk/root" --machine="$name" --boot --register=no --keep-unit \
			--network-bridge=lan --capability=CAP_MKNOD,CAP_SYS_MODULE --console=read-only \
			--bind="$work/home:/home" --bind-ro="$packages:/root/packages"
	) </dev/null >>"$disk/console" 2>&1 &
	pid_of[$name]=$!
	wait_until 60 "the first process of $name" first_process "$name"
	wait_until 60 "the network of $name" run "$name" "ip addr replace $address/24 dev host0 && ip link set host0 up"
	wait_until 120 "the end of $name's boot" booted "$name"
}

# first_process NAME: nspawn's own child comes first and goes again.
first_process() {
	leader_of[$1]=$(pgrep -P "${pid_of[$1]}" -x systemd)
	[ -n "${leader_of[$1]}" ]
}

booted() { case $(run "$1" "systemctl is-system-running" 2>/dev/null || true) in running | degraded) ;; *) return 1 ;; esac; }

# run NAME COMMAND [USER]: as a login on that machine would.
run() {
	local as=(bash -c)
	[ -z "${3:-}" ] || as=(setpriv --reuid="$3" --regid="$3" --init-groups --inh-caps=-all bash -c)
	nsenter --target "${leader_of[$1]}" --all --wdns="/home/${3:-}" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
		HOME="/home/${3:-}" USER="${3:-root}" SIMGPU_STATE=/dev/shm/simgpu "${as[@]}" "$2"
}

# halt NAME: the disk stays until the script ends.
halt() {
	kill -TERM "${pid_of[$1]}"
	wait "${pid_of[$1]}" || true
	unset "pid_of[$1]" "leader_of[$1]"
}

halt_all() {
	local name h
	for name in "${!pid_of[@]}"; do halt "$name"; done
	for h in "${cgroups[@]}"; do
		[ ! -d "$h/$group" ] || find "$h/$group" -depth -type d -exec rmdir {} +
	done
}

# wait_until SECONDS WHAT COMMAND...
wait_until() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || fail "waited in vain for $what"
		sleep 0.3
	done
}
