# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# devcluster down: cancel the jobs, stop everything that up started.

cluster_down() {
	need_root
	[ -e "$dir/etc/slurm.conf" ] || return 0
	export_slurm
	if pid_of slurmctld >/dev/null; then
		cancel_all
	fi
	local n
	for n in $(nodes); do
		stop "agent.$n" &
		stop "slurmd.$n" &
	done
	stop slurmctld &
	wait
	stop_steps
	for n in $(nodes); do
		stop_mps "$n"
	done
	stop slurmdbd
	stop mysql
	stop munged
	remove_cgroups
	forget_users
}

cancel_all() {
	timeout 10 squeue -h -o %A >"$dir/log/jobs.left" 2>/dev/null || return 0
	[ -s "$dir/log/jobs.left" ] || return 0
	# shellcheck disable=SC2046
	timeout 10 scancel $(sort -u "$dir/log/jobs.left") 2>/dev/null || true
	wait_for 15 no_jobs || true
}

no_jobs() { [ -z "$(timeout 5 squeue -h)" ]; }

# having PATTERN...: the other processes with a variable like the pattern. With a grep for each process, the live tests
# started 87 greps a second.
having() { grep -lazs "$@" /proc/[0-9]*/environ | cut -d / -f 3 | grep -vx $$; }

# slurmstepd and the jobs' processes outlive slurmd. They are known by the
# SLURM_CONF in their environment.
stop_steps() {
	local pid signal=TERM found
	for _ in {1..100}; do
		found=''
		for pid in $(having -x "SLURM_CONF=$dir/etc/slurm.conf"); do
			if grep -qaz '^SLURM_JOB_ID=\|^SLURMSTEPD' "/proc/$pid/environ" 2>/dev/null; then
				kill "-$signal" "$pid" 2>/dev/null || true
				found=yes
			fi
		done
		[ -n "$found" ] || return 0
		sleep 0.2
		signal=KILL
	done
	echo "devcluster: processes of jobs do not end" >&2
}

# MPS daemons outlive the agent as long as somebody holds their GPU. What does not answer in time,
# as on a busy machine, is known by the folder of its pipes: daemons, servers and clients.
stop_mps() {
	local pipe pid
	for pipe in "$dir/run/$1"/mps/GPU-*; do
		[ -S "$pipe/control" ] || continue
		echo "quit -t 1" | CUDA_MPS_PIPE_DIRECTORY=$pipe SIMGPU_STATE=$dir/simgpu/$1 \
			timeout 10 "$dir/lib/nvidia-cuda-mps-control" >/dev/null 2>&1 || true
	done
	for _ in {1..100}; do
		for pid in $(having "^CUDA_MPS_PIPE_DIRECTORY=$dir/run/$1/mps/"); do
			kill -KILL "$pid" 2>/dev/null || true
		done
		[ -n "${pid:-}" ] || return 0
		pid=''
		sleep 0.2
	done
	echo "devcluster: processes of MPS do not end" >&2
}

# Users made for a cluster go with the last cluster.
forget_users() {
	local u
	exec 9</run
	flock 9
	rm -f "$registry/$(echo "$dir" | tr / _)"
	if rmdir "$registry" 2>/dev/null; then
		for u in "${users[@]}"; do
			if [ "$(getent passwd "$u" | cut -d: -f5)" = "$users_note" ]; then
				userdel "$u" 2>/dev/null || true
			fi
		done
	fi
	exec 9<&-
}
