#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The Ansible role on three booted machines with Debian 12 or 13: a dry run changes
# nothing and does not fail, the real one installs, a second one changes nothing;
# the same for removal. usage: ansible.sh PACKAGES-DIR
#
# Run as root (make test-ansible). It takes minutes; the machines' disk is
# that of check.sh.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "ansible: $*" >&2; exit 1; }
. "$here/machine.sh" # and $top, $cache
. "$here/site.sh"

[ $# = 1 ] || { echo "usage: ansible.sh PACKAGES-DIR" >&2; exit 2; }
[ -n "${NEWADMIN_INSIDE:-}" ] || "$here/../deps.sh" test-ansible
enter ansible "$0" "$1"

# The chroot connection, but into the machine as it runs. chroot ROOT COMMAND...
enter_machine() {
	cat >"$work/chroot" <<-TEXT
	#!/bin/bash
	case \$1 in
	TEXT
	for m in head gpu1 gpu2; do echo "$work/$m/root) leader=${leader_of[$m]} ;;"; done >>"$work/chroot"
	cat >>"$work/chroot" <<-'TEXT'
	esac
	shift
	exec nsenter --target "$leader" --all --wdns=/ env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 SIMGPU_STATE=/dev/shm/simgpu "$@"
	TEXT
	chmod +x "$work/chroot"
}

inventory() {
	cat >"$work/hosts" <<-TEXT
	[carma_controller]
	head ansible_host=$work/head/root
	[carma_nodes]
	gpu1 ansible_host=$work/gpu1/root
	gpu2 ansible_host=$work/gpu2/root
	[all:vars]
	ansible_connection=community.general.chroot
	ansible_chroot_exe=$work/chroot
	ansible_python_interpreter=/usr/bin/python3
	TEXT
}

# play NAME ARGUMENT...
play() {
	local name=$1
	shift
	ANSIBLE_NOCOLOR=1 ANSIBLE_LOCALHOST_WARNING=0 ANSIBLE_RETRY_FILES_ENABLED=0 HOME=$work LC_ALL=C.UTF-8 \
		ansible-playbook -i "$work/hosts" "$here/../ansible/pilot.yml" -e "carma_packages=$packages" -e ansible_become=false \
		"$@" >"$seen/$name" 2>&1 </dev/null || { tail -30 "$seen/$name" >&2; fail "$name failed"; }
}

unchanged() { ! grep -Eq 'changed=[1-9]' "$seen/$1" || { grep -B3 '^changed' "$seen/$1" >&2; fail "$1 changed something"; }; }

# CARMA's files on the machines. Removal leaves, as with every Debian package, the
# logrotate file and dpkg's notes, and the records.
disks() {
	(cd "$work" && find head/up gpu1/up gpu2/up \( -path '*/tmp' -o -path '*/root/.ansible' -o -path '*/var/cache' -o -path '*/var/log' -o -path '*/var/lib' -o -path '*/etc/logrotate.d' \) -prune -o -iname '*carma*' -print | sort)
}

say "three machines boot"
make_site
boot head 10.77.0.1
boot gpu1 10.77.0.2
boot gpu2 10.77.0.3
for m in gpu1 gpu2; do plug_in_gpus $m; done
enter_machine
inventory

say "a dry run on machines without CARMA"
before=$(disks)
play dry-install --check --diff
[ "$(disks)" = "$before" ] || fail "a dry run changed something: $(diff <(echo "$before") <(disks))"
say "install"
play install
# slurmd does not run CARMA's Prolog yet.
! run gpu1 "systemctl is-active carma-node" >/dev/null || fail "the agent runs before it is asked for"
say "the agents"
play agents -e carma_agent=true
for m in gpu1 gpu2; do
	run $m "systemctl is-active carma-node" >/dev/null || fail "the agent does not run on $m"
	run $m "systemctl is-enabled carma-node" >/dev/null || fail "the agent is not enabled on $m"
	[ "$(run $m "ls /dev/carma" | wc -l)" = 12 ] || fail "$m has not its slots"
done
run head "carma-node check && test -e /usr/lib/carma/slurm/job_submit_carma.so" >/dev/null || fail "the controller lacks something"
say "the same again, dry and real"
play dry-install-again --check
unchanged dry-install-again
play install-again -e carma_agent=true
unchanged install-again
say "removal, and again"
play remove -e carma_state=absent
play remove-again -e carma_state=absent
unchanged remove-again
[ "$(disks)" = "$before" ] || fail "removal left: $(diff <(echo "$before") <(disks))"
say "the role installs, changes nothing the second time, and removes"
