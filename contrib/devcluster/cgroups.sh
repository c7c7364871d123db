# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Cgroups of v1 for a cluster. slurmd names cgroups after nodes, and the nodes of all clusters have the
# same names: so each cluster has a cgroup in each hierarchy, slurmds and agents of the cluster stand
# there in a cgroup namespace, and $dir/cgroup shows the cluster's cgroup as the top. Where cgroup v2 is
# alone, systemd makes the cgroups of slurmd below systemd's top, and clusters with cgroups meet.
# shellcheck source=../cgroups.sh
. "$root/contrib/cgroups.sh"

# hierarchies: of v1, writable for root here, each with the names of the controllers
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

# make_cgroups: the cgroups, and $dir/cgroup: the hierarchies, for slurmd, agent and hooks
make_cgroups() {
	local at controller
	mkdir -p "$dir/cgroup"
	for at in $(hierarchies); do
		mkdir -p "$dir/cgroup/${at##*/}"
		for controller in $(tr , ' ' <<<"${at##*/}"); do # cpu and cpuacct share a hierarchy on many machines
			[ -e "$dir/cgroup/$controller" ] || ln -s "${at##*/}" "$dir/cgroup/$controller"
		done
	done
	# shellcheck disable=SC2016,SC2046 # the inner shell's; a word for each hierarchy
	(
		own_cgroups "$(group_name)" $(hierarchies)
		exec unshare --cgroup bash -euc 'for at; do mount -t cgroup -o "${at##*/}" cgroup "$0/cgroup/${at##*/}"; done' \
			"$dir" $(hierarchies)
	) || die "cannot make the cluster's cgroups, or mount these below $dir/cgroup"
}

# in_cgroups COMMAND...: becomes the command, in the cluster's cgroups
in_cgroups() {
	local top
	[ -d "$dir/cgroup" ] || exec "$@"
	for top in "$dir"/cgroup/*/cgroup.procs; do echo "$BASHPID" >"$top"; done
	exec unshare --cgroup "$@"
}

# remove_cgroups: the cgroups and the mounts
remove_cgroups() {
	local at
	[ -d "$dir/cgroup" ] || return 0
	for at in "$dir"/cgroup/*/; do umount "$at" 2>/dev/null || true; done
	# shellcheck disable=SC2046
	forget_cgroups "$(group_name)" $(hierarchies)
	rm -rf --one-file-system "$dir/cgroup"
}
