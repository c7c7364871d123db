#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs, upgrades and removes the RPM packages on a scratch root with rpm,
# beside stand-ins for glibc and slurmctld. usage: check-rpm.sh PACKAGES-DIR
set -euo pipefail

packages=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{etc/slurm,run,var/lib/rpm,usr/bin,usr/lib,usr/lib64}
for d in bin lib lib64; do ln -s usr/$d "$root/$d"; done

fail() { echo "packages: rpm: $*" >&2; tail -20 "$work/log" >&2; exit 1; }
r() { rpm --root="$root" --dbpath=/var/lib/rpm --nosignature "$@" >"$work/log" 2>&1; }

# rpm runs scripts inside the root: what they call must be there.
for f in sh install rm rmdir grep sed; do
	path=$(command -v $f)
	for file in "$path" $(ldd "$path" | grep -o '/[^ )]*'); do install -D "$file" "$root$file"; done
done

# built NAME VERSION [LINE]: a package of little more than the name
built() {
	local top=$work/$1-$2
	mkdir -p "$top"
	printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: stand-in\nLicense: none\n%s\n%%description\n%%files\n' "$1" "$2" "${3:-}" >"$top/spec"
	rpmbuild --quiet -bb --target x86_64 --define "_topdir $top" "$top/spec" >"$work/log" 2>&1 || fail "stand-in $1"
	find "$top" -name '*.rpm'
}

tools=$(ls "$packages"/carma-tools-*.rpm) node=$(ls "$packages"/carma-node-*.rpm) plugin=$(ls "$packages"/slurm-plugin-carma-*.rpm)
spank=$(ls "$packages"/slurm-spank-carma-*.rpm)
slurm=$(rpm -qp --qf '%{VERSION}' "$plugin" | sed 's/.*slurm//')
next=${slurm%.*}.$((${slurm##*.} + 1))
conf=$root/etc/slurm/slurm.conf
echo 'ClusterName=x' >"$conf"
glibc=$(built glibc "$(dpkg-query -W -f '${Version}' libc6 | cut -d- -f1)") # rpmbuild before the root has a database of packages
grep=$(built grep 3) sed=$(built sed 4)
old=$(built slurm-slurmctld "${slurm%.*}.0") fits=$(built slurm-slurmctld "$slurm") new=$(built slurm-slurmctld "$next")
slurmd=$(built slurm-slurmd "${slurm%.*}.99") later=$(built slurm-slurmd 99.05.1)

# The plugin goes only with its exact release.
r -i "$glibc" || fail "stand-in for glibc"
for p in "$node" "$plugin"; do
	for tool in grep sed; do
		if r -i "$p" || ! grep -q "$tool is needed by" "$work/log"; then fail "$p does not need $tool, which its script calls"; fi
	done
done
r -i "$grep" "$sed" || fail "stand-ins for grep and sed"
if r -i "$plugin"; then fail "the plugin can be installed without slurmctld"; fi
r -i "$old" || fail "old slurmctld"
if r -i "$plugin"; then fail "the plugin can be installed with slurmctld ${slurm%.*}.0"; fi
r -U "$fits" || fail "slurmctld $slurm"
r -i "$tools" "$node" "$plugin" || fail "install"
# Debian's rpm warns of itself, and that of Debian 13 of the root.
if grep -vE '^(rpm: |warning: private mounts in chroot not implemented$)' "$work/log" | grep -q .; then fail "installing is not silent"; fi
if r -U "$new"; then fail "slurmctld can be upgraded to $next under the plugin"; fi
grep -q "slurm-slurmctld < $next is needed by" "$work/log" || fail "the refusal does not name the plugin's need"
# The SPANK plugin goes with every slurmd of its release.
if r -i "$spank"; then fail "the SPANK plugin can be installed without slurmd"; fi
r -i "$slurmd" || fail "slurmd ${slurm%.*}.99"
r -i "$spank" || fail "install the SPANK plugin"
if r -U "$later"; then fail "slurmd can be upgraded to 99.05 under the SPANK plugin"; fi
for f in usr/sbin/carma-node usr/sbin/carma-prolog usr/lib/carma/libcarma.so usr/lib/carma/slurm/spank_carma.so usr/lib/systemd/system/carma-node.service usr/share/man/man8/carma-node.8; do
	[ -e "$root/$f" ] || fail "$f is not installed"
done
[ -d "$root/etc/carma" ] || fail "no /etc/carma: the script after the installation did not run"
r -V --nodeps carma-tools carma-node slurm-plugin-carma slurm-spank-carma || fail "files are not as the packages say"

# An upgrade keeps what the admin wrote, and runs no script of a removal.
echo "# mine" >>"$root/etc/logrotate.d/carma-node"
printf 'JobSubmitPlugins=carma\nProlog=/usr/sbin/carma-prolog\n' >>"$conf"
r -U --replacepkgs "$tools" "$node" "$plugin" "$spank" || fail "upgrade"
grep -q mine "$root/etc/logrotate.d/carma-node" || fail "the upgrade took the admin's logrotate file"

# As long as slurm.conf names them they cannot be removed.
if r -e slurm-plugin-carma; then fail "the plugin can be removed from under slurmctld"; fi
grep -q "take it out and restart slurmctld first" "$work/log" || fail "the refusal does not say what to do"
if r -e carma-node; then fail "hooks can be removed from under slurmd"; fi
echo 'ClusterName=x' >"$conf"
mkdir -p "$root/var/lib/carma"
touch "$root/var/lib/carma/carma.db" "$root/etc/carma/carma.toml"
r -e carma-tools carma-node slurm-plugin-carma slurm-spank-carma || fail "remove"
left=$(cd "$root" && find . -iname '*carma*' -type f | sort | paste -sd' ')
[ "$left" = "./etc/carma/carma.toml ./etc/logrotate.d/carma-node.rpmsave ./var/lib/carma/carma.db" ] || fail "removed, and left: $left"
r -U "$new" || fail "slurmctld cannot be upgraded after the plugin has gone"
echo "packages: install, upgrade and removal with rpm work; the plugin goes with Slurm $slurm only"
