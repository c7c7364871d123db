# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# The site that CARMA comes to: its slurm.conf, its GPUs, its users' jobs, and
# how it is compared with itself.

make_site() {
	local m
	mkdir -p "$work"/site/etc/{slurm,tmpfiles.d} "$work/home"
	cp "$here"/site/{slurm.conf,gres.conf} "$work/site/etc/slurm/"
	# The machines have no controllers of cgroups for slurmd, and no job here asks for any. 22.05 does without by
	# itself. 23.11 has no word for none; the plugin cgroup/v1 there needs no controller before a job asks.
	case $debian in
	noble) echo CgroupPlugin=cgroup/v1 ;;
	trixie) echo CgroupPlugin=disabled ;;
	esac >"$work/site/etc/slurm/cgroup.conf"
	printf '127.0.0.1 localhost\n10.77.0.1 head\n10.77.0.2 gpu1\n10.77.0.3 gpu2\n' >"$work/site/etc/hosts"
	for m in head gpu1 gpu2; do
		mkdir -p "$work/$m"/{up,tmp,root}
		mount -t overlay "$m" -o "lowerdir=$work/site:$cache/$debian,upperdir=$work/$m/up,workdir=$work/$m/tmp" "$work/$m/root"
		chroot "$work/$m/root" useradd --uid 2001 --no-create-home --shell /bin/bash alice
		chroot "$work/$m/root" useradd --uid 2002 --no-create-home --shell /bin/bash bob
		[ $m = head ] || rm -f "$work/$m/root/etc/systemd/system/multi-user.target.wants/slurmctld.service"
	done
	install -d -o 2001 -g 2001 "$work/home/alice"
	install -d -o 2002 -g 2002 "$work/home/bob"
	# GPUs: device nodes as the driver makes them, and stand-ins for what reads them.
	for m in gpu1 gpu2; do
		install -m 755 "$top"/bin/{simgpu,simjob} "$top"/lib/simgpu/{nvidia-cuda-mps-control,dcgmi} "$work/$m/root/usr/bin/"
		install -m 644 "$top/lib/simgpu/libnvidia-ml.so.1" "$work/$m/root/usr/lib/x86_64-linux-gnu/"
		printf '#!/bin/sh\nexec simjob --mem 9G --smact 20 --duration 20s\n' >"$work/$m/root/usr/local/bin/python"
		chmod 755 "$work/$m/root/usr/local/bin/python"
		echo SIMGPU_STATE=/dev/shm/simgpu >"$work/$m/root/etc/default/carma-node"
		for i in 0 1 2 3; do echo "c /dev/nvidia$i 0666 root root - 195:$i"; done >"$work/$m/root/etc/tmpfiles.d/nvidia.conf"
	done
}

plug_in_gpus() { run "$1" "simgpu create /dev/shm/simgpu --model dgx-a100 --time-scale 4 && systemd-tmpfiles --create nvidia.conf && systemctl restart slurmd"; }

nodes_are() { [ "$(run head "sinfo -h -N -t $2 -o %N" | sort -u | wc -l)" = "$1" ]; }
none_in_queue() { [ -z "$(run head 'squeue -h')" ]; }
running() { [ "$(run head 'squeue -h -t R' | wc -l)" = "$1" ]; }

# train USER OPTION...: a job on a GPU until /home/watched exists, and for ten seconds at least
train() {
	local job="while simjob --mem 9G --smact 20 --duration 40s && [ ! -e /home/watched ]; do :; done"
	run head "sbatch -J train -o /dev/null --gres=gpu:1 ${*:2} --wrap '$job'" "$1" >>"$seen/steps"
}

# watched: agents without a carma.toml have recorded the two jobs of train; all users read of both jobs, as in squeue.
watched() {
	local m who
	for m in gpu1 gpu2; do
		for who in "" bob; do echo "$m: $(run $m "carma-report -n -P -o User,State,PeakMem --name train" "$who")"; done
	done >"$seen/train" 2>&1
	diff "$seen/train" - <<-'TEXT'
	gpu1: alice|COMPLETED|9216
	gpu1: alice|COMPLETED|9216
	gpu2: bob|COMPLETED|9216
	gpu2: bob|COMPLETED|9216
	TEXT
}

# advised: a job with a #CARMA line has its estimate in AdminComment, and in its node's records.
advised() {
	local id
	printf '#!/bin/sh\n#CARMA mem=10G\nexec simjob --mem 9G --smact 20 --duration 40s\n' >"$work/home/alice/advised.sh"
	id=$(run head "sbatch --parsable -w gpu1 --gres=gpu:1 -o /dev/null /home/alice/advised.sh" alice)
	run head "scontrol show job $id" | grep -q 'AdminComment=carma-advice=.*"est_mib":10240' || fail "job $id has no estimate"
	wait_until 120 "the end of the job" none_in_queue
	wait_until 60 "the estimate in the record of job $id" estimated "$id"
}
estimated() { [ "$(run gpu1 "carma-report -n -P -o EstMem,PeakMem -j $1")" = "10240|9216" ]; }

# submissions: as users make them, good and bad.
submissions() {
	local n=0 user args
	while IFS='|' read -r user args; do
		n=$((n + 1))
		echo "$user: sbatch $args"
		run head "sbatch -J job$n -o /dev/null $args --wrap 'while [ ! -e /home/go ]; do sleep 0.2; done; echo \$CUDA_VISIBLE_DEVICES'" "$user" 2>&1 |
			sed 's/job [0-9]*$/job #/' || true
	done <<-'TEXT'
	alice|--gres=gpu:1
	alice|--gres=gpu:2
	alice|--gpus=1
	bob|--gres=gpu:4
	bob|--gpus-per-node=1 -N 2
	bob|-p cpu -n 2
	alice|-w gpu1 --gres=gpu:1
	alice|--constraint=a100 --gres=gpu:1
	bob|--array=1-2 --gres=gpu:1
	bob|--gres=gpu:5
	TEXT
}

# Without slurmdbd 23.11 gives a waiting job the reason None, and InvalidAccount after a while.
queue() { run head "squeue -h -r -o '%j %u %P %t %r %b %C %D %N' | sed 's/ InvalidAccount / None /' | sort"; }

# picture DIR: what can be seen of Slurm, less times and job numbers.
picture() {
	local last='' first
	mkdir -p "$1"
	first=$(run head "scontrol show config" | sed -n 's/^NEXT_JOB_ID *= //p')
	run head "scontrol show config" | grep -Ev '^(Configuration data|BOOT_TIME|NEXT_JOB_ID|HASH_VAL|Slurmctld\(primary\))' >"$1/config"
	run head "sinfo -N -o '%N %T %G %P %c %m %f %w'" >"$1/nodes"
	run head "scontrol show partition" >"$1/partitions"
	rm -f "$work/home/go"
	submissions >"$1/submissions"
	# Twice the same, with more than a pass of backfill between.
	for _ in 1 2 3 4 5 6; do
		queue >"$1/queue"
		[ "$(cat "$1/queue")" != "$last" ] || break
		last=$(cat "$1/queue")
		sleep 11
	done
	run head "scontrol -o show job" | since "$first" | tr ' ' '\n' | grep -E '^(JobName|UserId|Partition|NumNodes|NumCPUs|TRES|TresPer[A-Za-z]*|MemPer[A-Za-z]*|MinCPUsNode|Features|ReqNodeList|Requeue|AdminComment|Comment|TimeLimit)=' >"$1/jobs"
	touch "$work/home/go"
	wait_until 90 "the end of the submissions" none_in_queue
	run head "scontrol -o show job" | since "$first" | tr ' ' '\n' | grep -E '^(JobName|JobState|ExitCode|Restarts)=' >"$1/ends"
}

# since ID: of lines of scontrol -o, those of jobs from ID on
since() { awk -v id="$1" '{ split($1, w, "=") } w[2] >= id'; }

# take_over: what setup printed goes into the files, the same on every machine.
# A line of slurm.conf replaces that of the same name; those of new names come
# before the nodes.
take_over() {
	local m
	run gpu1 "cat /root/carma-lines" >"$work/lines"
	part() { awk -v file="$1" '/^# ---- / { on = index($0, file) } on && !/^# ----/' "$work/lines"; }
	part slurm.conf | grep -v '^#' | grep . >"$work/slurm.lines"
	awk '
		function key(line) { split(line, w, " "); if (w[1] ~ /^(NodeName|PartitionName)=/) return w[1]; sub(/=.*/, "", w[1]); return w[1] }
		FNR == NR { new[key($0)] = $0; order[++n] = key($0); next }
		/^(NodeName|PartitionName)=/ && !told { told = 1; for (i = 1; i <= n; i++) if (!(order[i] in old) && order[i] !~ /^(NodeName|PartitionName)=/) print new[order[i]] }
		{ k = key($0); if (k in new) { print new[k]; old[k] = 1 } else print }
		END { for (i = 1; i <= n; i++) if (!(order[i] in old) && order[i] ~ /^(NodeName|PartitionName)=/) print new[order[i]] }
	' "$work/slurm.lines" "$here/site/slurm.conf" >"$work/slurm.conf"
	part gres.conf | grep . >"$work/gres.conf"
	part carma.toml >"$work/carma.toml"
	part carma-slots.conf >"$work/slots.conf"
	for m in head gpu1 gpu2; do
		cp "$work/slurm.conf" "$work/gres.conf" "$work/$m/root/etc/slurm/"
		install -D -m 644 "$work/carma.toml" "$work/$m/root/etc/carma/carma.toml"
		[ $m = head ] || cp "$work/slots.conf" "$work/$m/root/etc/tmpfiles.d/carma-slots.conf"
	done
}

# What one GPU can take; a Slurm before 24.11 is told nothing.
published() {
	[ "$debian" != trixie ] ||
		run head "sinfo -h -N -p gpu -t idle -O Extra:100" | awk '/"carma1":40[0-9][0-9][0-9][,}]/ { n++ } END { exit n != 2 }'
}

# The ten jobs of step 6 have ended well, and the nodes' records have them all.
reported() {
	local m count=0
	for m in gpu1 gpu2; do
		run $m "carma-report --json --name first.sh" >"$seen/report.$m"
		count=$((count + $(grep -c '"state": "COMPLETED"' "$seen/report.$m" || true)))
	done
	[ $count = 10 ]
}

# Slots, run directory and agent come back with the node.
after_reboot() {
	halt gpu2
	boot gpu2 10.77.0.3
	plug_in_gpus gpu2
	wait_until 60 "gpu2 after its reboot" nodes_are 3 idle
	wait_until 60 "the agent after the reboot" run gpu2 "systemctl is-active carma-node && carma-node doctor"
}

# systemd sees that the agent is up, that it lives, and that it hangs; MPS daemons
# outlive it.
watchdog() {
	local pid mps
	run gpu1 "systemd-analyze verify carma-node.service carma-history.timer" 2>&1 | tee -a "$seen/steps" | grep carma && fail "systemd finds fault with the units"
	run gpu1 "systemd-analyze security --no-pager carma-node.service" >"$seen/security" || true
	run gpu1 "systemctl show carma-node -p Type,NotifyAccess,WatchdogUSec,SubState,StatusText" >>"$seen/steps"
	run gpu1 "mkdir -p /etc/systemd/system/carma-node.service.d
		printf '[Service]\nWatchdogSec=6\nTimeoutAbortSec=2\n' >/etc/systemd/system/carma-node.service.d/try.conf
		systemctl daemon-reload && systemctl restart carma-node"
	pid=$(run gpu1 "systemctl show carma-node -p MainPID --value")
	mps=$(daemons)
	sleep 13 # two of its periods: an agent that lives is left alone
	[ "$(run gpu1 "systemctl show carma-node -p MainPID --value")" = "$pid" ] || fail "systemd restarted an agent that lives"
	run gpu1 "kill -STOP $pid"
	wait_until 40 "the watchdog" another_agent "$pid"
	[ "$(daemons)" = "$mps" ] || fail "MPS daemons did not outlive the agent: $mps, then $(daemons)"
	run gpu1 "journalctl -u carma-node --no-pager" >"$seen/journal"
	grep -q "Watchdog timeout" "$seen/journal" || fail "the journal tells of no watchdog"
	run gpu1 "rm -r /etc/systemd/system/carma-node.service.d && systemctl daemon-reload"
}

# The daemons alone: the agent also starts the program, without -d, for each command to one.
daemons() { run gpu1 "pgrep -f '[n]vidia-cuda-mps-control -d'" | sort | paste -sd' '; }

another_agent() {
	local pid
	pid=$(run gpu1 "systemctl show carma-node -p MainPID --value") &&
		[ "$pid" != 0 ] && [ "$pid" != "$1" ] && run gpu1 "systemctl is-active carma-node"
}

# No node was drained on the way.
nodes_stayed() {
	local drained
	drained=$(run head "sinfo -h -R -o '%n %E'")
	[ -z "$drained" ] || fail "drained: $drained"
}

# nothing_left MACHINE...: removal leaves nothing but the stand-ins for GPUs here.
nothing_left() {
	local m left
	for m in "$@"; do
		left=$(run $m "find / -xdev \( -path /proc -o -path /sys -o -path /root/packages \) -prune -o -iname '*carma*' ! -path /etc/default/carma-node -print; ls -d /run/carma /dev/carma 2>/dev/null" || true)
		[ -z "$left" ] || fail "left on $m after removal: $left"
	done
}
