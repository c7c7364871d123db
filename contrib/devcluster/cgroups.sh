# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Cgroups of v1 for one cluster. slurmd names cgroups after nodes, and the nodes of all clusters have
# the same names: so each cluster has a cgroup of its own in each hierarchy, its slurmds and agents
# stand there in a cgroup namespace, and $dir/cgroup shows them that cgroup as the top. Where cgroup v2
# is alone, systemd makes the cgroups of slurmd below its own top, and clusters with cgroups meet.

# hierarchies: those of v1 that root may write to here, each with its controllers
hierarchies() {
	local at kind options
	while read -r _ at kind options _; do
		case $kind,$options in
		*name=*) ;;
		# Other clusters' mounts are elsewhere.
		cgroup,rw*) [[ $at != /sys/fs/cgroup/* || ! -w $at/cgroup.procs ]] || echo "$at" ;;
		esac
	done </proc/self/mounts
}

group_name() { echo "carma-devcluster${dir//\//_}"; }

# make_cgroups: the cgroups, and $dir/cgroup, which slurmd, agent and hooks take for the hierarchies
make_cgroups() {
	local at group name controller
	name=$(group_name)
	mkdir -p "$dir/cgroup"
	for at in $(hierarchies); do
		group=$at/$name
		mkdir -p "$group" || die "cannot make the cgroup $group"
		if [ -e "$group/cpuset.cpus" ]; then
			cat "$at/cpuset.cpus" >"$group/cpuset.cpus"
			cat "$at/cpuset.mems" >"$group/cpuset.mems"
		fi
		mkdir -p "$dir/cgroup/${at##*/}"
		for controller in $(tr , ' ' <<<"${at##*/}"); do # cpu and cpuacct are one hierarchy on many machines
			[ -e "$dir/cgroup/$controller" ] || ln -s "${at##*/}" "$dir/cgroup/$controller"
		done
	done
	# shellcheck disable=SC2016 # the inner shell's
	(
		for at in $(hierarchies); do echo "$BASHPID" >"$at/$name/cgroup.procs"; done
		exec unshare --cgroup bash -euc 'for at; do mount -t cgroup -o "${at##*/}" cgroup "$0/cgroup/${at##*/}"; done' \
			"$dir" $(hierarchies)
	) || die "cannot mount the cluster's cgroups below $dir/cgroup"
}

# in_cgroups COMMAND...: becomes the command, in the cluster's cgroups
in_cgroups() {
	local top
	[ -d "$dir/cgroup" ] || exec "$@"
	for top in "$dir"/cgroup/*/cgroup.procs; do echo "$BASHPID" >"$top"; done
	exec unshare --cgroup "$@"
}

# forget_cgroups: slurmd leaves its own
forget_cgroups() {
	local at
	[ -d "$dir/cgroup" ] || return 0
	for at in "$dir"/cgroup/*/; do umount "$at" 2>/dev/null || true; done
	for at in $(hierarchies); do
		[ ! -d "$at/$(group_name)" ] || find "$at/$(group_name)" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
	rm -rf --one-file-system "$dir/cgroup"
}
