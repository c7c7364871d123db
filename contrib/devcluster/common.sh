# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# What the commands of devcluster share. $dir is the cluster, $root the project.

# Ordinary users for jobs. They are made if the machine has none of the name,
# and removed again with the last cluster.
users=(carma-alice carma-bob carma-carol carma-dave)
users_note="carma devcluster"
registry=/run/carma-devcluster
programs=(carma-node carma-report carma-estimate carma-sim simgpu simjob)

need_root() { [ "$(id -u)" = 0 ] || die "$command needs root: slurmd starts jobs as their users; try sudo"; }

# pid_of NAME: the process that we started under the name, or its successor.
pid_of() { started "$1" || successor "$1"; }

# started NAME: the process of a pid file, if it still is what we started. A
# number alone may be somebody else's by now.
started() {
	local file=$dir/pid/$1 pid start now
	[ -r "$file" ] || return 1
	read -r pid start <"$file" || return 1
	now=$(start_time "$pid") || return 1
	[ -z "$start" ] || [ "$start" = "$now" ] || return 1
	echo "$pid"
}

# successor NAME: from 23.11 on a slurmctld or slurmd that reads its
# configuration again is a new process, which writes the pid file of slurm.conf.
successor() {
	local pid
	[ -s "$dir/pid/$1.raw" ] || return 1
	pid=$(cat "$dir/pid/$1.raw")
	{ tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qxF "$dir/etc/slurm.conf" || return 1
	remember "$1" "$pid"
	echo "$pid"
}

# start_time PID: when the process started, in clock ticks since boot. One that
# has ended and waits for its parent is gone.
start_time() {
	local stat
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
	stat=${stat##*) }
	# shellcheck disable=SC2086
	set -- $stat
	[ "$1" != Z ] || return 1
	echo "${20}"
}

# remember NAME PID
remember() { echo "$2 $(start_time "$2")" >"$dir/pid/$1"; }

# wait_for SECONDS COMMAND...: until it succeeds
wait_for() {
	local until=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $until ] || return 1
		sleep 0.1
	done
}

# stop NAME [SIGNAL]: end a process of ours and wait for it.
stop() {
	local pid
	while pid=$(pid_of "$1"); do
		kill "-${2:-TERM}" "$pid" 2>/dev/null || true
		if ! wait_for 60 gone "$pid"; then
			echo "devcluster: $1 (pid $pid) did not end in 60 s; killed" >&2
			kill -KILL "$pid" 2>/dev/null || true
			wait_for 5 gone "$pid" || break
		fi
	done
	rm -f "$dir/pid/$1"
}

gone() { ! start_time "$1" >/dev/null; }

# nodes of the cluster, n1 n2 ...
nodes() { cat "$dir/etc/nodes"; }

carma_on() { [ -e "$dir/etc/carma.toml" ]; }

export_slurm() {
	export SLURM_CONF=$dir/etc/slurm.conf
	export PATH=$slurm_bin:$slurm_sbin:$PATH
}

# daemon NAME COMMAND...: start a process that puts itself in the background
# and leaves its number in $dir/pid/NAME.raw
daemon() {
	local name=$1
	shift
	("$@") >>"$dir/log/$name.out" 2>&1 </dev/null 8<&- || die "$name did not start; see $dir/log/"
	wait_for 180 test -s "$dir/pid/$name.raw" || die "$name left no pid file; see $dir/log/"
	remember "$name" "$(cat "$dir/pid/$name.raw")"
}

start_slurmctld() {
	CARMA_CONF=$dir/etc/carma.toml daemon slurmctld "$slurm_sbin/slurmctld" -f "$SLURM_CONF" "$@"
}

start_slurmd() { daemon "slurmd.$1" in_cgroups "$slurm_sbin/slurmd" -f "$SLURM_CONF" -N "$1"; }

start_agent() {
	local state=$dir/simgpu/$1
	SIMGPU_STATE=$state in_cgroups setsid "$dir/bin/carma-node" --config "$dir/etc/carma.toml" --node "$1" agent \
		>>"$dir/log/agent.$1.log" 2>&1 </dev/null &
	remember "agent.$1" $!
	disown
	# slurmctld ends the process group of a ResumeProgram that has ended: the agent is to have its own before.
	wait_for 180 leads_session $! || true
}

# leads_session PID: setsid has made the process a session, or the process has ended
leads_session() { [ ! -e "/proc/$1" ] || [ "$(sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f4)" = "$1" ]; }

cluster_env() {
	[ -e "$dir/etc/slurm.conf" ] || die "$dir is no cluster; see devcluster up"
	cat <<-TEXT
	export SLURM_CONF='$dir/etc/slurm.conf'
	export CARMA_CONF='$dir/etc/carma.toml'
	export CARMA_DEVCLUSTER='$dir'
	export CARMA_USERS='${users[*]}'
	export PATH='$dir/bin:$slurm_bin:$slurm_sbin':"\$PATH"
	TEXT
}

cluster_restart() {
	need_root
	[ $# -ge 1 ] || bad "restart what?"
	export_slurm
	local n
	case $1 in
	slurmctld) stop slurmctld; rm -f "$dir/pid/slurmctld.raw"; start_slurmctld ;;
	slurmd) for n in ${2:-$(nodes)}; do stop "slurmd.$n"; rm -f "$dir/pid/slurmd.$n.raw"; start_slurmd "$n"; done ;;
	agent) for n in ${2:-$(nodes)}; do stop "agent.$n"; start_agent "$n"; done ;;
	slurmdbd) stop slurmdbd; rm -f "$dir/pid/slurmdbd.raw"; start_slurmdbd ;;
	*) bad "restart slurmctld, slurmd, agent or slurmdbd" ;;
	esac
}
