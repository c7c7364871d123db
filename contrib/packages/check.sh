#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs, upgrades, removes and purges the packages on a scratch root with
# dpkg, beside stand-ins for slurmctld. usage: check.sh PACKAGES-DIR STAGE
# STAGE is what they were built from.
set -euo pipefail

packages=$(cd "$1" && pwd) stage=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root"/{etc/slurm,run,var/log}
: >"$root/var/lib/dpkg/status"
: >"$root/var/lib/dpkg/available"

fail() { echo "packages: $*" >&2; tail -20 "$work/log" >&2; exit 1; }

# Maintainer scripts run outside the root and are told it in DPKG_ROOT.
d() { dpkg --root="$root" --force-script-chrootless --log=/dev/null "$@" >"$work/log" 2>&1; }

# empty NAME VERSION: a package of nothing but the name
empty() {
	mkdir -p "$work/$1-$2/DEBIAN"
	printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: x <x@localhost>\nDescription: stand-in\n' "$1" "$2" >"$work/$1-$2/DEBIAN/control"
	dpkg-deb -b "$work/$1-$2" "$work/$1-$2.deb" >/dev/null
	echo "$work/$1-$2.deb"
}

version() { dpkg --root="$root" -s "$1" 2>/dev/null | sed -n 's/^Version: //p'; }
state() { dpkg-query --admindir="$root/var/lib/dpkg" -W -f='${db:Status-Status}' "$1" 2>/dev/null || true; }
files() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -type f -print -o -type l -print | sort); }

tools=$(ls "$packages"/carma-tools_*.deb) node=$(ls "$packages"/carma-node_*.deb) plugin=$(ls "$packages"/slurm-plugin-carma_*.deb)
spank=$(ls "$packages"/slurm-spank-carma_*.deb)
slurm=$(dpkg-deb -f "$plugin" Version | sed 's/.*+slurm//')
next=${slurm%.*}.$((${slurm##*.} + 1))
printf '# the site'"'"'s own\nClusterName=x\n' >"$root/etc/slurm/slurm.conf"
before=$(md5sum <"$root/etc/slurm/slurm.conf")

# The plugin goes only with its exact release.
d -i "$(empty libc6 "$(dpkg-query -W -f '${Version}' libc6)")" || fail "stand-in for libc6"
if d -i "$plugin"; then fail "the plugin can be installed without slurmctld"; fi
d -r slurm-plugin-carma || true
old=$(empty slurmctld "${slurm%.*}.0-1") new=$(empty slurmctld "$next-1") fits=$(empty slurmctld "$slurm-4+deb0u1")
d -i "$old" || fail "old slurmctld"
if d -i "$plugin"; then fail "the plugin can be installed with slurmctld $(version slurmctld)"; fi
d -i "$fits" || fail "slurmctld $slurm"
d -i "$tools" "$node" "$plugin" || fail "install"
# The SPANK plugin goes with every slurmd of its release.
if d -i "$spank"; then fail "the SPANK plugin can be installed without slurmd"; fi
d -r slurm-spank-carma || true
d -i "$(empty slurmd "${slurm%.*}.99-1")" || fail "slurmd ${slurm%.*}.99"
d -i "$spank" || fail "install the SPANK plugin"
if d -i "$(empty slurmd 99.05.1-1)"; then fail "slurmd can be upgraded to 99.05 under the SPANK plugin"; fi
for p in carma-tools carma-node slurm-plugin-carma slurm-spank-carma; do [ "$(state $p)" = installed ] || fail "$p is $(state $p)"; done
if d -i "$new"; then fail "slurmctld can be upgraded to $next under the plugin"; fi
[ "$(version slurmctld)" = "$slurm-4+deb0u1" ] || fail "slurmctld became $(version slurmctld)"

# What is there: all that make install installs.
missing=$(comm -23 <(cd "$stage" && find . -type f -o -type l | sort) <(files))
[ -z "$missing" ] || fail "in no package: $missing"
for f in usr/bin/carma-report usr/bin/carma-estimate usr/sbin/carma-node usr/lib/carma/libcarma.so usr/lib/carma/slurm/job_submit_carma.so usr/lib/carma/slurm/spank_carma.so \
	usr/lib/systemd/system/carma-node.service usr/lib/tmpfiles.d/carma.conf etc/logrotate.d/carma-node usr/share/carma/carma.toml usr/share/carma/slurm.conf; do
	[ -s "$root/$f" ] || fail "$f is not installed"
	[ "$(stat -c %u:%g "$root/$f")" = 0:0 ] || fail "$f is not root's"
done
[ -e "$root$(readlink "$root/usr/lib/$(gcc -print-multiarch)/slurm-wlm/job_submit_carma.so")" ] || fail "Slurm would not find the plugin in its own directory"
for c in trace summary; do
	"$root/usr/bin/carma-$c" --help 2>/dev/null | grep -q "usage: carma-$c" || fail "the installed carma-$c does not start"
	[ -s "$root/usr/share/man/man1/carma-$c.1" ] || fail "carma-$c has no manual page"
done
for h in prolog task-prolog epilog; do
	[ "$(readlink "$root/usr/sbin/carma-$h")" = carma-node ] || fail "carma-$h is no link to carma-node"
done
"$root/usr/sbin/carma-node" --config "$root/usr/share/carma/carma.toml" check >/dev/null || fail "the installed carma-node does not take the installed carma.toml"
[ "$(md5sum <"$root/etc/slurm/slurm.conf")" = "$before" ] || fail "slurm.conf was edited"

# An upgrade keeps what the admin wrote. The same packages under a higher version
# stand for the next release.
echo "# mine" >>"$root/etc/logrotate.d/carma-node"
echo 'partition = {}' >"$root/etc/carma/carma.toml"
for p in "$tools" "$node" "$plugin" "$spank"; do
	dpkg-deb -R "$p" "$work/next"
	sed -i 's/^Version: 0/Version: 9/' "$work/next/DEBIAN/control"
	dpkg-deb -b "$work/next" "$work/next-$(basename "$p")" >/dev/null
	rm -rf "$work/next"
done
d -i "$work"/next-*.deb || fail "upgrade"
case $(version carma-node) in 9*) ;; *) fail "carma-node is $(version carma-node) after the upgrade" ;; esac
grep -q mine "$root/etc/logrotate.d/carma-node" || fail "the upgrade took the admin's logrotate file"
[ -s "$root/etc/carma/carma.toml" ] || fail "the upgrade took carma.toml"

# As long as slurm.conf names them they cannot be removed.
printf 'JobSubmitPlugins=lua,carma\nProlog=/usr/sbin/carma-prolog\n' >>"$root/etc/slurm/slurm.conf"
if d -r slurm-plugin-carma; then fail "the plugin can be removed from under slurmctld"; fi
grep -q "take it out and restart slurmctld first" "$work/log" || fail "the refusal does not say what to do"
if d -r carma-node; then fail "hooks can be removed from under slurmd"; fi
# And the agent runs on: dpkg calls both scripts.
mkdir "$work/bin"
printf '#!/bin/sh\necho "$*" >>"%s"\n' "$work/called" | tee "$work/bin/systemctl" >"$work/bin/systemd-tmpfiles"
chmod 755 "$work/bin"/*
for call in "prerm remove" "postinst abort-remove"; do
	sed 's:/run/systemd/system:/:' "$(dirname "$0")/node.${call%% *}" >"$work/script"
	PATH=$work/bin:$PATH SLURM_CONF=$root/etc/slurm/slurm.conf sh "$work/script" "${call#* }" >"$work/log" 2>&1 || true
done
[ ! -e "$work/called" ] || fail "a removal that is refused calls systemctl $(paste -sd, "$work/called")"
printf 'ClusterName=x\nJobSubmitPlugins=lua # was: carma\n' >"$root/etc/slurm/slurm.conf"

# Removal leaves configuration and records, purge what the admin wrote himself.
mkdir -p "$root/var/lib/carma" "$root/run/carma" "$root/var/log/carma-mps/GPU-1"
touch "$root/var/log/carma-mps/GPU-1/control.log" "$root/var/lib/carma/carma.db" "$root/var/log/carma.log" "$root/var/log/carma.log.1.gz"
d -r carma-tools carma-node slurm-plugin-carma slurm-spank-carma || fail "remove"
for f in usr/sbin/carma-node usr/sbin/carma-prolog usr/lib/carma/libcarma.so usr/bin/carma-report; do
	[ ! -e "$root/$f" ] || fail "removed, and $f is still there"
done
for f in var/lib/carma/carma.db etc/logrotate.d/carma-node; do
	[ -e "$root/$f" ] || fail "removal took $f"
done
d -P carma-tools carma-node slurm-plugin-carma slurm-spank-carma || fail "purge"
left=$(files | grep -v '^./etc/slurm/slurm.conf$' || true)
[ "$left" = "./etc/carma/carma.toml" ] || fail "purged, and left: $left"
echo "packages: install, upgrade, remove and purge work; the plugin goes with Slurm $slurm only"
