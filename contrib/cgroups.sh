# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Cgroups of our own, for runs and clusters side by side on a machine (root.sh, devcluster).

# own_cgroups NAME HIERARCHY...: a cgroup of the name in each hierarchy, with this process there: the top of a
# namespace made next
own_cgroups() {
	local at name=$1
	shift
	for at; do
		mkdir -p "$at/$name"
		if [ -e "$at/$name/cpuset.cpus" ]; then
			cat "$at/cpuset.cpus" >"$at/$name/cpuset.cpus" 2>/dev/null || true
			cat "$at/cpuset.mems" >"$at/$name/cpuset.mems" 2>/dev/null || true
		fi
		echo "$BASHPID" >"$at/$name/cgroup.procs"
	done
}

# forget_cgroups NAME HIERARCHY...: removes the cgroups, with all that slurmd has left below
# shellcheck disable=SC2317 # by a trap, too
forget_cgroups() {
	local at d name=$1
	shift
	for at; do
		[ ! -d "$at/$name" ] || find "$at/$name" -depth -type d | while read -r d; do rmdir "$d" 2>/dev/null || true; done
	done
}
