# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Roots of Debian and Ubuntu, for bare.sh (a new root for each run) and root.sh (a kept one).
# Users of a root read what is made in it.
umask 022

# distribution_of RELEASE: the distribution of a release that CARMA names
distribution_of() {
	case $1 in
	bookworm | trixie | forky) echo debian ;;
	jammy | noble) echo ubuntu ;;
	*) return 1 ;;
	esac
}

# mirror DISTRIBUTION: apt knows the mirror of this machine's own distribution, where the
# machine's settings may have put another one than the distribution's.
mirror() {
	if [ "$1" = ubuntu ]; then
		echo http://archive.ubuntu.com/ubuntu
		return
	fi
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)' 'Created-By: Packages' |
		awk -F '|' '$2 == "Debian" && $3 == "Debian" && $4 == "main" { print $1; exit }'
}

# debootstrap_of RELEASE ROOT LOG PACKAGES [OPTION...]: debootstrap with these packages, from this machine's mirror
debootstrap_of() {
	local release=$1 root=$2 log=$3 packages=$4 from script components=main check=()
	shift 4
	from=$(mirror "$(distribution_of "$release")")
	[ -n "$from" ] || { apt-get update -qq && from=$(mirror debian); }
	[ -n "$from" ] || die "apt names no mirror of Debian; see apt-get indextargets"
	# debootstrap of Debian 12 has no script for later releases; those of sid and noble's
	# predecessors serve.
	script=/usr/share/debootstrap/scripts/$release
	if [ "$(distribution_of "$release")" = ubuntu ]; then
		components=main,universe
		[ -e "$script" ] || script=/usr/share/debootstrap/scripts/jammy
		[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || check=(--no-check-gpg)
	else
		[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
	fi
	debootstrap --variant=minbase "${check[@]}" --components=$components \
		--include="$packages" "$@" "$release" "$root" "$from" "$script" >"$log" 2>&1 ||
		{ tail -n 20 "$log" >&2; die "debootstrap could not make a root of $release"; }
	apt-config dump | grep -iE '^Acquire::(.*proxy|Check-(Date|Valid-Until))' >"$root/etc/apt/apt.conf.d/90machine" || true
	cp /etc/resolv.conf "$root/etc/"
}

# bootstrap RELEASE ROOT LOG [OPTION...]: a root with the packages that the README names, with
# sudo, and with this machine's certificates, proxies and Go settings.
bootstrap() {
	local release=$1 root=$2 log=$3 v
	shift 3
	debootstrap_of "$release" "$root" "$log" gcc,libc6-dev,make,git,ca-certificates,sudo "$@"
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
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
}

# mount_root ROOT GOROOT: what a container has: Go read-only, proc, sys, and devices of its own
mount_root() {
	local root=$1 d name major minor point
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
}

# enter ROOT USER COMMAND: as a login of the user. Not chroot alone: the kernel makes no user
# namespace in one, and containers of users need it.
enter() {
	cd "$1" || exit
	pivot_root . .
	umount -l .
	chroot . runuser -l "$2" -c "$3" </dev/null
}
