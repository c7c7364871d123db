#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command in surroundings that it has to hold in, one after the other, and says
# of each in one line whether it passed. As root, in a checkout that is built; make
# test-surroundings does it in a new Debian 12 and 13.
# usage: surroundings.sh NAME[+NAME...],... COMMAND     all: every one of the names
# A+B is B within A, at once; container, which may mount nothing, comes last.
# Without arguments it prints the names.
set -uo pipefail
self=$(realpath "$0")

names=(short-uptime tmpfs overlayfs umask-077 no-home locale no-ipv6 one-cpu load-20 container)
usage() { echo "usage: surroundings.sh all|NAME[+NAME...],... COMMAND; the names: ${names[*]}" >&2; exit 2; }
die() { echo "surroundings: $*" >&2; exit 1; }

# short-uptime: a machine that started a minute ago.
short-uptime() {
	local ago
	ago=$(awk '{ printf "%d", $1 - 60 }' /proc/uptime)
	unshare --time --boottime "-$ago" --monotonic "-$ago" --fork bash -c "$1"
}

# with_tmp KIND OPTIONS COMMAND: TMPDIR on a file system of its own
with_tmp() {
	# shellcheck disable=SC2016
	unshare --mount --propagation private bash -c 'mkdir "$0/tmp" && mount -t "$1" -o "$2" try "$0/tmp" && chmod 1777 "$0/tmp" &&
		export TMPDIR=$0/tmp && eval "$3"' "$work" "$1" "$2" "$3"
}
tmpfs() { with_tmp tmpfs size=4G "$1"; }
overlayfs() {
	mkdir "$work/low" "$work/up" "$work/work"
	with_tmp overlay "lowerdir=$work/low,upperdir=$work/up,workdir=$work/work" "$1"
}

umask-077() { (umask 077 && bash -c "$1"); }
no-home() { env -u HOME bash -c "$1"; }

# locale: capital i has a dot there, decimals a comma, and clocks go by quarters of an hour.
locale() {
	mkdir "$work/locales"
	localedef -i tr_TR -f UTF-8 "$work/locales/tr_TR.UTF-8" && chmod -R a+rX "$work/locales" || return 1
	LOCPATH=$work/locales LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 TZ=Asia/Kathmandu bash -c "$1"
}

# no-ipv6: nor another network. As in bare.sh, with an address beside 127.0.0.1.
no-ipv6() {
	# shellcheck disable=SC2016
	unshare --net bash -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 && echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 &&
		ip link set lo up && ip addr add 127.0.0.2/8 dev lo && eval "$0"' "$1"
}

one-cpu() { taskset -c "$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')" bash -c "$1"; }

# load-20: another session keeps 20 processes busy. In this one they would take all but a 20th of
# what the kernel gives a session (sched_autogroup), and the command hours.
load-20() {
	local busy status=0
	setsid bash -c 'for _ in {1..20}; do while :; do :; done & done; wait' &
	busy=$!
	bash -c "$1" || status=$?
	kill -- -"$busy"
	return $status
}

# container: root with what docker and podman leave it: no mounts, no namespaces of its
# own, no tracing; cgroups for reading only.
container() {
	local left=+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap
	# shellcheck disable=SC2016
	unshare --mount --propagation private bash -c 'awk "index(\$2, \"/sys\") == 1 { print \$2 }" /proc/self/mounts |
			while read -r point; do mount -o remount,bind,ro "$point"; done
		exec setpriv --bounding-set "-all,$0" --inh-caps -all bash -c "$1"' "$left" "$1"
}

[ $# = 0 ] && { printf '%s\n' "${names[@]}"; exit 0; }
[ $# = 2 ] || usage
[ "$(id -u)" = 0 ] || die "needs root"
command=$2
wanted=("${names[@]}")
[ "$1" = all ] || IFS=, read -ra wanted <<<"$1"
for name in "${wanted[@]}"; do
	IFS=+ read -ra parts <<<"$name"
	for part in "${parts[@]}"; do [[ " ${names[*]} " = *" $part "* ]] || usage; done
done
work=
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
said=() failed=
for name in "${wanted[@]}"; do
	work=$(mktemp -d /var/tmp/carma-try.XXXXXX)
	chmod 755 "$work"
	SECONDS=0 word=passed
	echo "surroundings: $name: $command"
	inner=$command
	[[ $name != *+* ]] || inner=$(printf '%q ' "$self" "${name#*+}" "$command")
	"${name%%+*}" "$inner" || { word=FAILED failed=yes; }
	rm -rf "$work"
	said+=("$(printf 'surroundings: %-12s %s in %d s' "$name" "$word" $SECONDS)")
done
printf '%s\n' "${said[@]}"
[ -z "$failed" ]
