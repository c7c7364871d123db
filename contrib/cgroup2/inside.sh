#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the machine of run.sh does when it has booted. Its own disk ends with it; $seen
# lies on the machine that it runs on.
seen=$(sed -n 's/.*carma\.seen=\([^ ]*\).*/\1/p' /proc/cmdline)
mkdir -p /mnt/seen
mount -t hostfs none /mnt/seen -o "$seen" || exit 1
# getaddrinfo with AI_ADDRCONFIG, which Slurm's daemons listen by, wants an address
# beside 127.0.0.1.
ip link set lo up
ip addr add 127.0.0.2/8 dev lo
# logs brings what the clusters of the tests have written; a test takes minutes, and somebody may wait.
logs() {
	for d in /var/tmp/cdc*; do [ ! -d "$d" ] || cp -r "$d/log" "$d/etc" /mnt/seen/; done
}
while sleep 60; do logs; done 2>/dev/null &
{
	echo "kernel $(uname -r), Slurm $(slurmd -V), $(stat -fc %T /sys/fs/cgroup)"
	cd /carma/contrib/devcluster && PATH=$PATH:/usr/sbin:/sbin \
		./devcluster.test -test.v -test.parallel 1 -test.timeout 115m -test.run "$(cat /tests)" 2>&1
	echo $? >/mnt/seen/status
} >/mnt/seen/tests.log 2>&1
kill $!
logs
journalctl -b --no-pager >/mnt/seen/journal
sync
