# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# devcluster up: write the configuration, start everything, wait until jobs can
# be submitted.

cluster_up() {
	node_count=2 gpu_model=dgx-a100 time_scale=1 carma=yes dbd=no slurm_user=root real_mps=no confine=no spank=no observe=no
	while [ $# -gt 0 ]; do
		case $1 in
		--nodes) node_count=${2:-}; shift ;;
		--gpu-model) gpu_model=${2:-}; shift ;;
		--time-scale) time_scale=${2:-}; shift ;;
		--no-carma) carma=no ;;
		--slurmdbd) dbd=yes ;;
		--slurm-user) slurm_user=${2:-}; shift ;;
		--real-mps) real_mps=yes ;;
		--confine) confine=yes ;;
		--spank) spank=yes ;;
		--observe) observe=yes carma=no ;;
		*) bad "up: unknown option '$1'" ;;
		esac
		shift
	done
	[[ $node_count =~ ^[1-9][0-9]?$ ]] || bad "--nodes takes a number from 1 to 99"
	[[ $time_scale =~ ^[0-9]+(\.[0-9]+)?$ && ! $time_scale =~ ^[0.]+$ ]] || bad "--time-scale takes a number above 0"
	case $gpu_model in
	dgx-a100) gpus=4 gpu_mib=40536 gpu_type=a100 ;;
	h100) gpus=8 gpu_mib=81559 gpu_type=h100 ;;
	*) bad "--gpu-model is dgx-a100 or h100" ;;
	esac
	need_root
	check_parts
	[ "$dbd" = no ] || check_dbd_parts
	if pid_of slurmctld >/dev/null; then
		die "$dir: a cluster is up there already; see devcluster down"
	fi
	# What is half up when something fails or Ctrl-C comes goes down again.
	trap 'cluster_down' EXIT
	trap 'exit 130' INT TERM
	cluster_down # what an earlier up that was killed left
	make_users
	getent passwd "$slurm_user" >/dev/null || die "--slurm-user: no user '$slurm_user'"
	write_all
	start_all
	trap - EXIT INT TERM
}

check_parts() {
	local f
	for f in "$slurm_sbin/slurmctld" "$slurm_sbin/slurmd" "$slurm_bin/scontrol" "$slurm_plugins" /usr/sbin/munged; do
		[ -e "$f" ] || die "$f is missing; run: make deps"
	done
	for f in "${programs[@]/#/bin/}" lib/libcarma.so lib/slurm/job_submit_carma.so lib/slurm/spank_carma.so lib/simgpu/libnvidia-ml.so.1; do
		[ -e "$root/$f" ] || die "$root/$f is missing; run: make"
	done
	# A UNIX socket's path has at most 107 bytes, and MPS makes one of the name
	# control_privileged in run/<node>/mps/<UUID>.
	[ ${#dir} -le 35 ] || die "$dir: the path is longer than 35 characters; take a shorter one"
	[ "$real_mps" = no ] || real_mps=$("$root/contrib/simgpu/fetch-mps.sh")/550/usr/bin/nvidia-cuda-mps-control
}

make_users() {
	local u made=yes
	exec 9</run
	flock 9 # another cluster may come up or go down just now
	mkdir -p "$registry"
	echo "$dir" >"$registry/$(echo "$dir" | tr / _)"
	for u in "${users[@]}"; do
		getent passwd "$u" >/dev/null ||
			useradd --no-create-home --home-dir /nonexistent --shell /bin/bash --comment "$users_note" "$u" || made=no
	done
	exec 9<&-
	[ $made = yes ] || die "cannot make the users ${users[*]}"
}

write_all() {
	rm -rf "${dir:?}"/{bin,lib,etc,pid,log,state,spool,run,simgpu,dev,hooks,plugin,munge,var,jobs,mysql,slurm}
	mkdir -p "$dir"/{bin,lib,etc,pid,log,state,spool,run,simgpu,dev,hooks,plugin/slurm,munge,var,jobs}
	chmod 755 "$dir" "$dir"/{munge,simgpu,run,var}
	chmod 1777 "$dir/jobs" # a place for users to submit from
	if [ "$slurm_user" != root ]; then chown "$slurm_user" "$dir"/{log,pid,state}; fi
	# Copies: the users' jobs run them, and a checkout below somebody's home is closed to them.
	install -m 755 "${programs[@]/#/$root/bin/}" "$dir/bin/"
	install -m 755 "$root"/lib/simgpu/* "$dir/lib/"
	[ "$real_mps" = no ] || install -m 755 "$real_mps" "$dir/lib/"
	: >"$dir/etc/nodes"
	for i in $(seq "$node_count"); do echo "n$i" >>"$dir/etc/nodes"; done
	slots=$((gpus * 4)) # for up to four jobs a GPU
	[ "$observe" = no ] || slots=$gpus
	for i in $(seq 0 $((slots - 1))); do
		# A major of the local/experimental range: no driver owns it.
		mknod "$dir/dev/slot$i" c 120 "$i"
	done
	for n in $(nodes); do
		mkdir -p "$dir/spool/$n" "$dir/run/$n"
		"$dir/bin/simgpu" create "$dir/simgpu/$n" --model "$gpu_model" --time-scale "$time_scale"
		[ "$real_mps" = no ] || : >"$dir/simgpu/$n.real-mps" # simjob does not speak with it
	done
	[ "$confine$observe" = nono ] || write_devices
	[ -z "$(hierarchies)" ] || make_cgroups
	write_cgroup_conf
	pick_ports
	write_slurm_conf
	write_gres_conf
	[ "$observe" = yes ] || write_hooks
	[ "$spank" = no ] || write_spank
	[ "$carma" = no ] || write_carma
	[ "$observe" = no ] || write_observe
	[ "$dbd" = no ] || write_dbd
}

# write_devices: device nodes of the GPUs, with NVIDIA's major and no driver behind: EPERM
# tells a denial from ENXIO.
write_devices() {
	local n i
	for n in $(nodes); do
		mkdir -m 755 "$dir/dev/$n"
		for i in $(seq 0 $((gpus - 1))); do
			mknod "$dir/dev/$n/nvidia$i" c 195 "$i"
			chmod 666 "$dir/dev/$n/nvidia$i"
		done
	done
}

# write_cgroup_conf: names the place of the cgroups, and has Slurm confine tasks.
write_cgroup_conf() {
	if [ -d "$dir/cgroup" ]; then
		printf '%s\n' CgroupPlugin=cgroup/v1 "CgroupMountpoint=$dir/cgroup"
	elif [ "$confine$observe" != nono ]; then
		if [ -e /sys/fs/cgroup/cgroup.procs ]; then echo CgroupPlugin=cgroup/v2; else echo CgroupPlugin=cgroup/v1; fi
		echo CgroupMountpoint=/sys/fs/cgroup
	fi >"$dir/etc/cgroup.conf"
	[ "$confine$observe" = nono ] || echo ConstrainDevices=yes >>"$dir/etc/cgroup.conf"
}

# cgroups: whether they can be made here. In a container root often may not.
cgroups() { [ -d "$dir/cgroup" ] || [ -w /sys/fs/cgroup/cgroup.procs ]; }

# pick_ports: for slurmctld, for each slurmd, and two for the accounting database. Above 32767 the
# kernel gives ports to outgoing connections. Until all are listened to, no other cluster picks: the lock is
# on the network namespace, shared by clusters with separate files (contrib/bare.sh).
pick_ports() {
	local try p
	exec 8</proc/self/ns/net
	flock 8
	for try in 1 2 3 4 5 6 7 8 9 10; do
		port=$((20000 + RANDOM % 12500))
		for p in $(seq $port $((port + node_count + 3))); do
			! listened "$p" || continue 2
		done
		return 0
	done
	die "found no free ports after $try tries"
}

# slurm_release: 2311 for 23.11
slurm_release() { "$slurm_sbin/slurmctld" -V | sed -E 's/^[^0-9]*([0-9]+)\.([0-9]+).*/\1\2/'; }

# extra_constraints: whether slurmctld compares jobs' --extra with what nodes have in Extra, and lets
# jobs of srun wait for it (24.11).
extra_constraints() { [ "$(slurm_release)" -ge 2411 ]; }

write_slurm_conf() {
	local names=gpu node_gres=gpu:$gpu_type:$slots extra='' n i=0
	local track=linuxproc task=none flags=Alloc
	[ "$confine$observe" = nono ] || ! cgroups || track=cgroup task=cgroup flags=Alloc,Contain
	if [ "$carma" = yes ]; then
		names+=,carma
		node_gres+=,carma:$((gpus * gpu_mib))
		! extra_constraints || extra=,extra_constraints
	fi
	{
		cat <<-TEXT
		ClusterName=carma
		SlurmctldHost=localhost(127.0.0.1)
		SlurmctldPort=$port
		SlurmUser=$slurm_user
		AuthType=auth/munge
		CredType=cred/munge
		AuthInfo=socket=$dir/munge/s,cred_expire=10
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=$dir/spool/%n
		SlurmctldPidFile=$dir/pid/slurmctld.raw
		SlurmdPidFile=$dir/pid/slurmd.%n.raw
		SlurmctldLogFile=$dir/log/slurmctld.log
		SlurmdLogFile=$dir/log/slurmd.%n.log
		ProctrackType=proctrack/$track
		TaskPlugin=task/$task
		SwitchType=switch/none
		MpiDefault=none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		GresTypes=$names
		PrologFlags=$flags
		PrologEpilogTimeout=150
		ReturnToService=2
		SchedulerParameters=bf_continue,bf_interval=2,bf_resolution=1,sched_interval=5,sched_min_interval=100000,nohold_on_prolog_fail$extra
		JobAcctGatherType=jobacct_gather/none
		JobCompType=jobcomp/none
		MinJobAge=300
		KillWait=3
		SlurmdParameters=config_overrides
		TEXT
		[ "$observe" = yes ] || printf '%s\n' "Prolog=$dir/hooks/prolog" "Epilog=$dir/hooks/epilog"
		# With the plugin no TaskProlog is needed, and with pyxis none may be there.
		if [ "$observe" = yes ]; then
			:
		elif [ "$spank" = yes ]; then
			echo "PlugStackConfig=$dir/etc/plugstack.conf"
		else
			echo "TaskProlog=$dir/hooks/task-prolog"
		fi
		if [ "$dbd" = yes ]; then
			echo "AccountingStorageType=accounting_storage/slurmdbd"
			echo "AccountingStorageHost=127.0.0.1"
			echo "AccountingStoragePort=$(dbd_port)"
			echo "AccountingStoragePass=$dir/munge/s" # munge's socket, not a password
			echo "AccountingStorageTRES=gres/gpu$([ "$carma" = no ] || echo ,gres/carma)"
		else
			echo "AccountingStorageType=accounting_storage/none"
		fi
		if [ "$carma" = yes ]; then
			echo "JobSubmitPlugins=carma"
			echo "PluginDir=$slurm_plugins:$dir/plugin/slurm"
		elif [ -n "${SLURM_PREFIX:-}" ]; then
			echo "PluginDir=$slurm_plugins"
		fi
		for n in $(nodes); do
			i=$((i + 1))
			echo "NodeName=$n NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=64 RealMemory=100000 Gres=$node_gres"
		done
		echo "PartitionName=gpu Nodes=$(nodes | paste -sd,) Default=YES LLN=YES MaxTime=INFINITE DefMemPerCPU=100"
		echo "PartitionName=gpu-recovery Nodes=$(nodes | paste -sd,) PriorityTier=2 LLN=YES MaxTime=INFINITE DefMemPerCPU=100"
		echo "PartitionName=plain Nodes=$(nodes | paste -sd,) MaxTime=INFINITE DefMemPerCPU=100"
	} >"$dir/etc/slurm.conf"
}

write_gres_conf() {
	local n
	for n in $(nodes); do
		if [ "$observe" = yes ]; then
			echo "NodeName=$n Name=gpu Type=$gpu_type File=$dir/dev/$n/nvidia[0-$((gpus - 1))]"
			continue
		fi
		echo "NodeName=$n Name=gpu Type=$gpu_type File=$dir/dev/slot[0-$((slots - 1))]"
		[ "$carma" = no ] || echo "NodeName=$n Name=carma Count=$((gpus * gpu_mib))"
	done >"$dir/etc/gres.conf"
}

# The hooks that slurm.conf names. A site names carma-prolog and so on; here
# each node also needs its simulated GPUs, and carma.toml stands elsewhere.
write_hooks() {
	local h
	for h in prolog epilog task-prolog; do
		{
			echo '#!/bin/sh'
			[ $h != task-prolog ] || echo "echo export SIMGPU_STATE=$dir/simgpu/\$SLURMD_NODENAME"
			[ "$h$confine" != task-prologyes ] || echo "echo export SIMGPU_DEV=$dir/dev/\$SLURMD_NODENAME"
			[ "$carma" = no ] || echo "SIMGPU_STATE=$dir/simgpu/\$SLURMD_NODENAME exec $dir/bin/carma-node --config $dir/etc/carma.toml $h"
		} >"$dir/hooks/$h"
		chmod 755 "$dir/hooks/$h"
	done
}

# write_spank: the SPANK plugin, and plugstack.conf
write_spank() {
	if [ -n "${SLURM_PREFIX:-}" ]; then
		make -s -C "$root" spank SLURM_INCLUDE="$SLURM_PREFIX/include" SPANK_OUT="$dir/plugin/slurm/spank_carma.so" ||
			die "the SPANK plugin for $SLURM_PREFIX could not be built"
	else
		cp "$root/lib/slurm/spank_carma.so" "$dir/plugin/slurm/"
	fi
	echo "optional $dir/plugin/slurm/spank_carma.so $dir/hooks/task-prolog" >"$dir/etc/plugstack.conf"
}

# scaled SECONDS MINIMUM: a time of the simulated world in real time
scaled() { awk -v s="$1" -v x="$time_scale" -v m="$2" 'BEGIN { t = s / x; if (t < m) t = m; printf "%dms\n", t * 1000 }'; }

write_plugin() {
	cp "$root/lib/libcarma.so" "$dir/plugin/libcarma.so"
	if [ -n "${SLURM_PREFIX:-}" ]; then
		# A plugin is of one release of Slurm.
		make -s -C "$root" shim SLURM_INCLUDE="$SLURM_PREFIX/include" SHIM_OUT="$dir/plugin/slurm/job_submit_carma.so" ||
			die "the plugin for $SLURM_PREFIX could not be built"
	else
		cp "$root/lib/slurm/job_submit_carma.so" "$dir/plugin/slurm/"
	fi
}

write_carma() {
	write_plugin
	cat >"$dir/etc/carma.toml" <<-TEXT
	# Written by devcluster. contrib/slurm/carma.toml explains every key.
	[slurm]
	bin_dir = "$slurm_bin"
	conf = "$dir/etc/slurm.conf"

	[partition.gpu]
	default = true
	share = true
	gpus_per_node = $gpus
	gpu_mem_mib = $gpu_mib
	recovery = "gpu-recovery"

	[partition.gpu-recovery]
	share = false
	gpus_per_node = $gpus
	gpu_mem_mib = $gpu_mib

	[nvml]
	library = "$dir/lib/libnvidia-ml.so.1"
	interval = "$(scaled 1 0.25)"

	[smact]
	dcgmi = "$dir/lib/dcgmi"
	window = "$(scaled 60 2)"

	[placement]
	settle = "$(scaled 30 3)"

	[capacity]
	compare = "5s"

	[mps]
	control = "$dir/lib/nvidia-cuda-mps-control"

	[accounting]
	forward = "$([ "$dbd" = yes ] && echo slurmdbd || echo none)"

	[devices]
	dir = "$dir/dev/%n"
	$([ "$confine" = no ] || cgroups || echo 'confine = "acl"')

	[history]
	file = "$dir/var/history"

	[paths]
	run_dir = "$dir/run/%n"
	db = "$dir/var/carma.db"
	log = "$dir/log/hooks.%n.log"
	TEXT
}

# write_observe: carma.toml for agents that observe, and commands of Slurm that note how the agents call them. slurm.conf
# has no line of CARMA's, not even of the plugin, which lies ready for mode = "advise". Slurm sets no SIMGPU_STATE: jobs name the state of their node themselves.
write_observe() {
	local f
	write_plugin
	mkdir "$dir/slurm"
	for f in scontrol squeue sinfo scancel sacct sacctmgr sdiag; do
		printf '#!/bin/sh\necho "%s $*" >>%s\nexec %s/%s "$@"\n' "$f" "$dir/log/asked" "$slurm_bin" "$f" >"$dir/slurm/$f"
	done
	chmod 755 "$dir"/slurm/*
	cat >"$dir/etc/carma.toml" <<-TEXT
	# Written by devcluster. contrib/slurm/carma.toml explains every key.
	mode = "observe"

	[slurm]
	bin_dir = "$dir/slurm"
	conf = "$dir/etc/slurm.conf"

	[nvml]
	library = "$dir/lib/libnvidia-ml.so.1"
	interval = "$(scaled 1 0.25)"

	[smact]
	dcgmi = "$dir/lib/dcgmi"
	window = "$(scaled 60 2)"

	[capacity]
	compare = "5s"

	[idle]
	after = "8s"

	[devices]
	dir = "$dir/dev/%n"

	[history]
	file = "$dir/var/history"

	[paths]
	run_dir = "$dir/run/%n"
	db = "$dir/var/carma.db"
	log = "$dir/log/hooks.%n.log"
	TEXT
}

start_all() {
	local n
	export_slurm
	dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 status=none
	chmod 600 "$dir/munge/key"
	# --force: munged otherwise refuses a directory whose parents others can write.
	/usr/sbin/munged --force --socket="$dir/munge/s" --key-file="$dir/munge/key" --pid-file="$dir/pid/munged.raw" \
		--log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" >>"$dir/log/munged.out" 2>&1 8<&- || die "munged did not start; see $dir/log/munged.out"
	wait_for 180 test -s "$dir/pid/munged.raw" || die "munged left no pid file"
	remember munged "$(cat "$dir/pid/munged.raw")"
	[ "$dbd" = no ] || start_dbd
	start_slurmctld -c
	for n in $(nodes); do start_slurmd "$n"; done
	wait_for 180 listening || die "slurmctld or a slurmd does not listen; see $dir/log/"
	exec 8<&-
	if carma_on; then
		for n in $(nodes); do start_agent "$n"; done
	fi
	wait_for 180 all_idle || die "the nodes did not come up; see $dir/log/"
	! carma_on || wait_for 180 all_read || die "the agents read no GPUs; see $dir/log/agent.*.log"
	! carma_on || [ "$observe" = yes ] || ! extra_constraints ||
		wait_for 180 all_published || die "the agents published no capacity; see $dir/log/agent.*.log"
}

# listened PORT: slurmctld would note a connection without a message as an error. 0A is LISTEN.
listened() { grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") [^ ]* 0A " /proc/net/tcp /proc/net/tcp6; }

listening() {
	local p
	for p in $(seq "$port" $((port + node_count))); do listened "$p" || return 1; done
}

all_idle() { [ "$(timeout 20 sinfo -N -h -p plain -t idle -o %N | sort -u | wc -l)" = "$(nodes | wc -l)" ]; }

all_published() { ! timeout 20 sinfo -N -h -p plain -O Extra:200 | grep -qv carma1; }

all_read() {
	local n
	for n in $(nodes); do
		timeout 5 "$dir/bin/carma-node" --config "$dir/etc/carma.toml" --node "$n" status --json | grep -q '"uuid"' || return 1
	done
}
