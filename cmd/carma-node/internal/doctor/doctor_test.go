// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// site is the site of contrib/slurm with nothing wrong; change edits its
// slurm.conf before it is read.
func site(t *testing.T, change ...string) Facts {
	t.Helper()
	c, err := config.Load("../../../../contrib/slurm/carma.toml", os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "../../../../contrib/slurm/slurm.conf")
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(text, change[i]) {
			t.Fatalf("contrib/slurm/slurm.conf has no %q", change[i])
		}
		text = strings.ReplaceAll(text, change[i], change[i+1])
	}
	conf, err := slurmconf.Parse(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	gresConf, err := slurmconf.Parse(read(t, "../../../../contrib/slurm/gres.conf"), nil)
	if err != nil {
		t.Fatal(err)
	}
	running := map[string]string{"slurm_version": "24.11.5", "selecttype": "select/cons_tres", "jobrequeue": "1"}
	maps.Copy(running, conf.Settings)
	v := sctl.Version{Major: 24, Minor: 11, Micro: 5}
	root := func(path string) Path { return Path{Path: path, Mode: 0o755} }
	f := Facts{Extras: map[string]string{"gpu1": `{"carma1":40536,"carmaall":4}`, "gpu2": ""},
		ConfigPath: "/etc/carma/carma.toml", Config: c, SlurmConf: conf, Running: running, Installed: v,
		Controller: &Controller{PluginPath: "/usr/lib/carma/slurm/job_submit_carma.so", PluginVersion: v,
			Library: root("/usr/lib/carma/libcarma.so"), ConfigFile: root("/etc/carma/carma.toml")},
		Node: &Node{Name: "gpu1", State: "IDLE",
			Gres: "gpu:12,carma:162144", GresConf: gresConf,
			Hooks: map[string]Path{}, Guard: "cgroup v2", MPS: root("/usr/bin/nvidia-cuda-mps-control"), Driver: "550.163.01",
			RunDir: root("/run/carma"), OnTmpfs: true}}
	for _, h := range hookNames {
		f.Node.Hooks[h.setting] = root("/usr/sbin/carma-" + h.command)
	}
	for i := range 12 {
		f.Node.Slots = append(f.Node.Slots, Path{Path: fmt.Sprintf("/dev/carma/slot%d", i), Major: 120})
	}
	for i := range 4 {
		f.Node.Samples = append(f.Node.Samples, gres.Sample{GPU: gres.GPU{Index: i, TotalMiB: 40536},
			Source: figure.SourceGPM})
	}
	return f
}

// On one node there is nothing to choose.
func TestOneNodeNeedsNoLLN(t *testing.T) {
	for _, f := range Diagnose(site(t, "PartitionName=gpu Nodes=gpu[1-2] Default=YES LLN=YES",
		"PartitionName=gpu Nodes=gpu1 Default=YES")) {
		if strings.Contains(f.What, "LLN") {
			t.Errorf("%+v", f)
		}
	}
}

func TestNothingWrong(t *testing.T) {
	findings := Diagnose(site(t))
	for _, f := range findings {
		if f.Level != Pass || f.Do != "" {
			t.Errorf("%+v", f)
		}
	}
	if len(findings) != 20 || Worst(findings) != Pass {
		t.Errorf("%d findings", len(findings))
	}
}

func ofRelease(f *Facts, major, minor, micro int) {
	f.Installed = sctl.Version{Major: major, Minor: minor, Micro: micro}
	f.Controller.PluginVersion = f.Installed
	f.Running["slurm_version"] = versionText(f.Installed)
}

func key(f *Facts, file Path) { f.Config.Slurm.UserKey, f.UserKey = "/k", file }

// A Slurm that hides jobs and has a key, and defaults that leave room, are as they should be.
func TestRoomAndKey(t *testing.T) {
	f := site(t, "PrologFlags=", "PrivateData=jobs\nDefCpuPerGPU=12\nSelectTypeParameters=CR_Core_Memory\nPrologFlags=",
		"DefMemPerCPU=4000", "DefMemPerGPU=100000")
	key(&f, Path{Path: "/k", Mode: 0o400, UID: 64030})
	f.Running["slurmuser"] = "slurm(64030)"
	if findings := Diagnose(f); Worst(findings) != Pass {
		t.Errorf("%+v", findings)
	}
}

func slot(f *Facts, partition string, slot time.Duration) {
	p := f.Config.Partition[partition]
	p.TimeSlot = config.Duration(slot)
	f.Config.Partition = maps.Clone(f.Config.Partition)
	f.Config.Partition[partition] = p
}

// says gives a partition a directive for jobs that say nothing.
func says(f *Facts, partition, keys string, more func(p *config.Partition)) {
	p := f.Config.Partition[partition]
	p.Directive = keys
	if more != nil {
		more(&p)
	}
	f.Config.Partition = maps.Clone(f.Config.Partition)
	f.Config.Partition[partition] = p
}

// The doctor says where jobs share though their users say nothing.
func TestSharingByDefault(t *testing.T) {
	for keys, want := range map[string]string{"": "", "on": "gpu", "mem=9G": "gpu", "off": "", "policy=exclusive": "",
		"policy=shared": "gpu"} {
		f := site(t)
		says(&f, "gpu", keys, nil)
		for _, finding := range Diagnose(f) {
			shown := strings.Contains(finding.What, "; jobs that say nothing share in "+want+" (directive)")
			if finding.Level != Pass || finding.Part == "partitions" && shown != (want != "") {
				t.Errorf("%q: %+v", keys, finding)
			}
		}
	}
	f := site(t)
	says(&f, "gpu", "signal=USR1@300", func(p *config.Partition) { p.Share = false })
	for _, finding := range Diagnose(f) {
		if strings.Contains(finding.What, "directive") {
			t.Errorf("a directive about the end of jobs alone: %+v", finding)
		}
	}
}

// MaxTime is the time slot, in whatever spelling.
func TestTimeSlotIsMaxTime(t *testing.T) {
	for _, text := range []string{"240", "4:00:00", "0-4"} {
		f := site(t, "Default=YES", "Default=YES MaxTime="+text)
		slot(&f, "gpu", 4*time.Hour)
		if findings := Diagnose(f); Worst(findings) != Pass {
			t.Errorf("%s: %+v", text, findings)
		}
	}
}

// Each misconfiguration is found, by one finding that says what to do.
func TestPlanted(t *testing.T) {
	for name, c := range map[string]struct {
		conf  []string // edits of slurm.conf: from, to
		plant func(f *Facts)
		want  string // "level part: text"
	}{
		"not to be confined": {nil, func(f *Facts) { f.Node.Guard, f.Node.GuardErr = "", errors.New("no\nscope") },
			"warn confinement: open every GPU: no; scope"},
		"must be confined": {nil, func(f *Facts) {
			f.Config.Devices.Confine, f.Node.Guard, f.Node.GuardErr = "cgroup", "", errors.New("no scope")
		}, "fail confinement: jobs wait because they cannot be confined: no scope"},
		"access lists": {nil, func(f *Facts) { f.Node.Guard = "access lists" },
			"warn confinement: a user's jobs can open each other's"},
		"ordinals of nobody": {nil, func(f *Facts) {
			f.Config.Devices.Names, f.Node.Guard = "ordinal", "access lists"
		}, "warn confinement: GPUs, and devices.names = \"ordinal\" has no effect"},
		"TaskProlog of the site": {nil, func(f *Facts) { f.Node.TaskPrologSets = 4 },
			"warn confinement: /usr/sbin/carma-task-prolog line 4 sets CUDA_VISIBLE_DEVICES after carma-task-prolog"},
		"profile": {nil, func(f *Facts) { f.Node.SetsDevices = []string{"/etc/profile.d/gpu.sh line 3"} },
			"warn confinement: /etc/profile.d/gpu.sh line 3 sets CUDA_VISIBLE_DEVICES"},
		"no limit of memory": {nil, func(f *Facts) {
			f.Config.MPS.Enabled, f.Node.UnlimitedBy = false, errors.New("R614")
		}, "warn memory: nothing limits the memory of jobs that share a GPU: R614"},
		"carma.toml broken": {nil, func(f *Facts) {
			f.ConfigErr = errors.New("carma.toml: line 3: smact.windo: " +
				"unknown key")
		}, "fail carma.toml: line 3: smact.windo"},
		"no partition": {nil, func(f *Facts) { f.Config.Partition = nil }, "fail carma.toml: no partition"},
		"switched off": {nil, func(f *Facts) { f.Disabled = true }, "warn carma.toml: carma.disable"},
		"slurmctld silent": {nil, func(f *Facts) { f.RunningErr = errors.New("no route") },
			"warn slurm: does not answer"},
		"no Slurm in bin_dir": {nil, func(f *Facts) {
			f.Installed = sctl.Version{}
			f.Controller.PluginVersion = sctl.Version{}
		}, "fail slurm: do not answer in /usr/bin"},
		"slurmctld upgraded": {nil, func(f *Facts) { f.Running["slurm_version"] = "24.11.4" },
			"warn slurm: slurmctld is 24.11.4, the commands here are 24.11.5"},
		"federation": {nil, func(f *Facts) { f.Federation = "sites" },
			"fail slurm: the cluster belongs to federation sites"},
		"clock off":     {nil, func(f *Facts) { f.Skew = -20 * time.Second }, "warn slurm: by -20s"},
		"clock far off": {nil, func(f *Facts) { f.Skew = 10 * time.Minute }, "fail slurm: by 10m0s"},
		"slurm.conf unreadable": {nil, func(f *Facts) { f.SlurmConfErr = errors.New("slurm.conf: permission denied") },
			"fail slurm: permission denied"},
		"plugin not enabled": {[]string{"JobSubmitPlugins=carma", "JobSubmitPlugins=lua"}, nil,
			"fail slurm.conf: JobSubmitPlugins lacks carma"},
		"plugin before another": {[]string{"JobSubmitPlugins=carma", "JobSubmitPlugins=carma,lua"}, nil,
			"warn slurm.conf: runs lua after carma"},
		"no Prolog": {[]string{"\nProlog=/usr/sbin/carma-prolog", ""}, nil,
			"fail slurm.conf: Prolog is not set"},
		"no TaskProlog": {[]string{"TaskProlog=/usr/sbin/carma-task-prolog", ""}, nil,
			"fail slurm.conf: TaskProlog is not set"},
		"no Epilog": {[]string{"Epilog=/usr/sbin/carma-epilog", ""}, nil,
			"fail slurm.conf: Epilog is not set"},
		"PrologFlags": {[]string{"PrologFlags=Alloc,Contain", ""}, nil,
			"fail slurm.conf: PrologFlags lacks Alloc"},
		"RunInJob": {[]string{"Alloc,Contain", "Alloc,Contain,RunInJob"}, nil, "warn slurm.conf: RunInJob"},
		"short timeout": {[]string{"PrologFlags=", "PrologEpilogTimeout=30\nPrologFlags="}, nil,
			"fail slurm.conf: PrologEpilogTimeout=30 is less"},
		"short timeout of Epilogs": {[]string{"PrologFlags=", "EpilogTimeout=60\nPrologFlags="}, nil,
			"fail slurm.conf: EpilogTimeout=60 is less"},
		"select/linear": {[]string{"PrologFlags=", "SelectType=select/linear\nPrologFlags="}, nil,
			"fail slurm.conf: SelectType=select/linear"},
		"SchedulerParameters": {[]string{",nohold_on_prolog_fail", ""}, nil,
			"warn slurm.conf: lacks nohold_on_prolog_fail"},
		"suspend": {[]string{"PrologFlags=",
			"PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nPrologFlags=", "PriorityTier=2", ""}, nil,
			"fail slurm.conf: PreemptMode=SUSPEND,GANG: a suspended job keeps its GPU memory"},
		"partition suspends": {[]string{"Default=YES", "Default=YES PreemptMode=suspend"}, nil,
			"fail slurm.conf: PartitionName=gpu PreemptMode=suspend"},
		"recovery preempts": {[]string{"PrologFlags=",
			"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nPrologFlags="}, nil,
			"warn slurm.conf: jobs of gpu-recovery, which were requeued after OOM, may preempt"},
		"no requeue": {[]string{"PrologFlags=", "JobRequeue=0\nPrologFlags="}, nil,
			"warn slurm.conf: JobRequeue=0"},
		"slurmctld not restarted": {nil, func(f *Facts) { f.Running["jobsubmitplugins"] = "" },
			"warn slurm.conf: still runs with JobSubmitPlugins=(none)"},
		"node without gpu": {[]string{"Gres=gpu:12,", "Gres="}, nil, "fail nodes: has no gpu"},
		"too few slots": {[]string{"Gres=gpu:12,", "Gres=gpu:4,"}, nil,
			"warn nodes: counts 4 slots: 4 GPUs shared by 3 jobs need 12"},
		"a reservation of another partition": {nil, func(f *Facts) {
			f.Reservations = map[string]string{"course": "cpu", "same": "gpu"}
		}, "warn partitions: reservation course is of partition cpu: its jobs that name no partition run there, and are " +
			"booked"},
		"a reservation of a managed partition": {[]string{" Default=YES", ""}, func(f *Facts) {
			gpu := f.Config.Partition["gpu"]
			gpu.Default = false
			f.Config.Partition["gpu"] = gpu
			f.Reservations = map[string]string{"course": "gpu"}
		}, "warn partitions: reservation course is of partition gpu: its jobs that name no partition run there, and are " +
			"not"},
		"time slot and no MaxTime": {nil, func(f *Facts) { slot(f, "gpu", 4*time.Hour) },
			"warn partitions: partition gpu has MaxTime=INFINITE, more than its time slot"},
		"time slot and a longer MaxTime": {[]string{"Default=YES", "Default=YES MaxTime=1-0"},
			func(f *Facts) { slot(f, "gpu", 4*time.Hour) }, "warn partitions: partition gpu has MaxTime=1-0, more than"},
		"time slot and a shorter MaxTime": {[]string{"Default=YES", "Default=YES MaxTime=120"},
			func(f *Facts) { slot(f, "gpu", 4*time.Hour) }, "fail partitions: partition gpu has MaxTime=120, less than"},
		"directive of a partition that does not share": {nil, func(f *Facts) {
			says(f, "gpu", "on", func(p *config.Partition) { p.Share = false })
		}, "warn partitions: [partition.gpu] directive = \"on\" lets no job share: share = false"},
		"directive of a recovery partition": {nil, func(f *Facts) {
			says(f, "gpu-recovery", "mem=9G", nil)
		}, "warn partitions: [partition.gpu-recovery] directive = \"mem=9G\" meets no job"},
		"directive of no partition": {[]string{"PartitionName=gpu-recovery", "PartitionName=other"}, func(f *Facts) {
			says(f, "gpu-recovery", "on", nil)
		}, "fail partitions: no partition gpu-recovery, and its directive holds for no job"},
		"partition missing": {[]string{"PartitionName=gpu-recovery", "PartitionName=other"}, nil,
			"fail partitions: no partition gpu-recovery"},
		"default differs": {[]string{"Default=YES", ""}, nil, "fail partitions: Default=(none)"},
		"no LLN": {[]string{"Default=YES LLN=YES", "Default=YES"}, nil,
			"warn partitions: partition gpu has no LLN"},
		"no recovery": {nil, func(f *Facts) {
			p := f.Config.Partition["gpu"]
			p.Recovery = ""
			f.Config.Partition["gpu"] = p
		}, "warn partitions: no recovery partition"},
		"recovery without nodes": {[]string{"PartitionName=gpu-recovery Nodes=gpu[1-2]",
			"PartitionName=gpu-recovery Nodes=none"}, nil, "fail partitions: partition gpu-recovery has no node"},
		"recovery down": {[]string{"PriorityTier=2", "State=DOWN"}, nil,
			"fail partitions: gpu-recovery is State=DOWN"},
		"plugin missing": {nil, func(f *Facts) { f.Controller.PluginPath = "" },
			"fail plugin: no job_submit_carma.so"},
		"plugin of another Slurm": {nil, func(f *Facts) { f.Controller.PluginVersion.Micro = 9 },
			"fail plugin: built for Slurm 24.11.9, installed is 24.11.5"},
		"plugin broken": {nil, func(f *Facts) { f.Controller.PluginErr = errors.New("x.so: no plugin") },
			"fail plugin: x.so: no plugin"},
		"libcarma missing": {nil, func(f *Facts) {
			f.Controller.LibraryErr = errors.New("libcarma.so: no such " +
				"file")
		}, "fail plugin: libcarma.so: no such file"},
		"libcarma writable": {nil, func(f *Facts) { f.Controller.Library.Mode = 0o777 },
			"fail plugin: can be changed by users other than root"},
		"carma.toml a user's": {nil, func(f *Facts) { f.Controller.ConfigFile.UID = 1000 },
			"fail permissions: can be changed by users other than root"},
		"carma.toml hidden": {nil, func(f *Facts) { f.Controller.ConfigFile.Mode = 0o600 },
			"warn permissions: cannot be read by users"},
		"nothing is learned": {nil, func(f *Facts) { f.Controller.HistoryErr = fs.ErrNotExist },
			"warn history: nothing is learned"},
		"what was learned is hidden": {nil, func(f *Facts) { f.Controller.HistoryErr = fs.ErrPermission },
			"warn history: read what was learned: permission denied"},
		"nothing is learned any more": {nil, func(f *Facts) { f.Controller.HistoryAge = 25 * time.Hour },
			"warn history: was written 25h0m0s ago: what jobs have used since"},
		"hook missing": {nil, func(f *Facts) { f.Node.Hooks["Prolog"] = Path{Err: os.ErrNotExist} },
			"fail hooks: Prolog: file does not exist"},
		"hook not executable": {nil, func(f *Facts) { f.Node.Hooks["Epilog"] = Path{Path: "/e", Mode: 0o644} },
			"fail hooks: Epilog: /e is not executable"},
		"hook writable": {nil, func(f *Facts) { f.Node.Hooks["TaskProlog"] = Path{Path: "/t", Mode: 0o775} },
			"fail hooks: TaskProlog: /t can be changed"},
		"node unknown": {nil, func(f *Facts) { f.Node.State = "" }, "fail node: slurmctld has no node gpu1"},
		"node drained": {nil, func(f *Facts) { f.Node.State, f.Node.Reason = "IDLE+DRAIN", "Prolog error" },
			"fail node: IDLE+DRAIN: Prolog error"},
		"gres.conf with few slots": {nil, func(f *Facts) { f.Node.Slots = f.Node.Slots[:4] },
			"fail gres.conf: names 4 slots, slurm.conf counts gpu:12"},
		"PluginDir missing": {nil, func(f *Facts) {
			f.PluginDirs = []Path{{Path: "/x",
				Err: errors.New("stat /x: no such file")}}
		}, "fail slurm.conf: PluginDir: stat /x: no such file"},
		"gres.conf missing": {nil, func(f *Facts) { f.Node.GresConfErr = os.ErrNotExist },
			"fail gres.conf: file does not exist"},
		"AutoDetect": {nil, func(f *Facts) { f.Node.GresConf.Settings["autodetect"] = "nvml" },
			"fail gres.conf: AutoDetect=nvml"},
		"slots missing": {nil, func(f *Facts) {
			f.Node.Slots[3].Err = errors.New("/dev/carma/slot3: no such " +
				"file")
		}, "fail gres.conf: slot /dev/carma/slot3"},
		"real GPUs as slots": {nil, func(f *Facts) { f.Node.Constrained = true; f.Node.Slots[0].Major = 195 },
			"fail gres.conf: is a real GPU"},
		"no NVML": {nil, func(f *Facts) { f.Node.NVMLErr = errors.New("open NVML: no such library") },
			"fail gpus: no such library"},
		"GPU lost": {nil, func(f *Facts) {
			f.Node.Samples = append(f.Node.Samples,
				gres.Sample{Unreadable: "GPU is lost"})
		}, "fail gpus: GPU is lost"},
		"coarse SM activity": {nil, func(f *Facts) { f.Node.Samples[3].Source = figure.SourceUtilisation },
			"warn gpus: overstates"},
		"old MPS": {nil, func(f *Facts) { f.Node.Driver = "535.261.03" },
			"fail mps: MPS of driver 535.261.03"},
		"no MPS": {nil, func(f *Facts) { f.Node.MPS.Err = os.ErrNotExist },
			"fail mps: file does not exist"},
		"no agent": {nil, func(f *Facts) { f.Node.LedgerErr = errors.New("no ledger") },
			"fail agent: no ledger"},
		"agent asleep":           {nil, func(f *Facts) { f.Node.AgentAge = time.Hour }, "fail agent: 1h0m0s ago"},
		"run directory writable": {nil, func(f *Facts) { f.Node.RunDir.Mode = 0o777 }, "fail agent: could forge leases"},
		"run directory on disk":  {nil, func(f *Facts) { f.Node.OnTmpfs = false }, "warn agent: not on tmpfs"},
		"database not writable": {nil, func(f *Facts) { f.Node.DBErr = errors.New("read-only") },
			"fail database: read-only"},
		"scheduled without gpu": {[]string{"GresTypes=gpu,", "GresTypes="}, nil, "fail slurm.conf: GresTypes lacks gpu"},
		"GresTypes incomplete": {[]string{"GresTypes=gpu,carma", "GresTypes=gpu"}, nil,
			"fail slurm.conf: GresTypes lacks carma"},
		"serial Prologs": {[]string{"Alloc,Contain", "Alloc,Serial"}, nil,
			"fail slurm.conf: holds up the Epilogs that would free one"},
		"TRES not accounted": {[]string{"AccountingStorageTRES=gres/gpu,gres/carma",
			"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu"}, nil,
			"warn slurm.conf: AccountingStorageTRES lacks gres/carma"},
		"too old a Slurm": {nil, func(f *Facts) { ofRelease(f, 21, 8, 5) },
			"fail slurm: CARMA needs Slurm 22.05 or later; this is 21.08.5"},
		"licences forgotten": {nil, func(f *Facts) { ofRelease(f, 25, 11, 6) }, "warn slurm: forgets the licences"},
		"carma of one GPU": {[]string{"carma:162144", "carma:40536"}, func(f *Facts) { f.Node.Gres = "gpu:12,carma:40536" },
			"fail nodes: counts carma:40536; its GPUs have 162144 MiB"},
		"no carma": {[]string{",carma:162144", ""}, func(f *Facts) { f.Node.Gres = "gpu:12" },
			"fail nodes: counts carma:0;"},
		"carma not consumed": {[]string{"carma:162144", "carma:no_consume:162144"}, nil,
			"fail nodes: would not consume carma"},
		"carma of another slurm.conf": {nil, func(f *Facts) { f.Node.Gres = "gpu:12,carma:40536" },
			"fail node: counts carma:40536 on gpu1, slurm.conf 162144"},
		"state not told": {nil, func(f *Facts) { f.Node.State, f.Node.StateErr = "", errors.New("scontrol: timed out") },
			"warn node: slurmctld does not tell the node's state: scontrol: timed out"},
		"nothing published": {nil, func(f *Facts) { f.Extras["gpu1"] = `{"rack":1}` },
			"warn node: the Extra of gpu1 has no count"},
		"gres.conf counts less": {nil, func(f *Facts) {
			f.Node.GresConf.Other = append(f.Node.GresConf.Other, slurmconf.Record{Name: "carma",
				Values: map[string]string{"count": "40536"}})
		}, "fail gres.conf: Name=carma Count=40536 is less than slurm.conf's 162144"},
		"an older Slurm": {nil, func(f *Facts) { ofRelease(f, 22, 5, 8) },
			"warn capacity: Slurm 22.05.8 is not told what the GPUs can give: slots and carma alone"},
		"no extra_constraints": {[]string{",extra_constraints", ""}, nil,
			"warn capacity: SchedulerParameters lacks extra_constraints"},
		"text in Extra": {nil, func(f *Facts) { f.Extras["gpu2"] = "of group 7" },
			`fail capacity: gpu2: read "of group 7"`},
		"nodes not told": {nil, func(f *Facts) { f.Extras, f.ExtrasErr = nil, errors.New("sinfo: timed out") },
			"fail capacity: what the nodes tell in Extra is not known: sinfo: timed out"},
		"private jobs": {[]string{"PrologFlags=", "PrivateData=jobs,usage\nPrologFlags="}, nil,
			"warn capacity: PrivateData hides jobs"},
		"no key": {nil, func(f *Facts) { key(f, Path{Err: os.ErrNotExist}) },
			"fail capacity: slurm.user_key: file does not exist"},
		"a key for all": {nil, func(f *Facts) { key(f, Path{Path: "/k", Mode: 0o440}) },
			"fail capacity: /k can be read by others"},
		"a user's key": {nil, func(f *Facts) { key(f, Path{Path: "/k", Mode: 0o400, UID: 1000}) },
			"fail capacity: /k belongs to a user"},
		"billed as nothing": {[]string{`TRESBillingWeights="gres/carma=0.02466943"`,
			`TRESBillingWeights="CPU=1,gres/carma=0.00002467"`}, nil, `warn billing: partition gpu: TRESBillingWeights=CPU=1,gres/carma=0.00002467 is rounded down to whole numbers`},
		"billed by slots": {[]string{`Default=YES LLN=YES DefMemPerCPU=4000 TRESBillingWeights="gres/carma=0.02466943"`,
			`Default=YES LLN=YES DefMemPerCPU=4000 TRESBillingWeights="CPU=1,GRES/gpu:a100=2"`}, nil,
			"warn billing: partition gpu: TRESBillingWeights=CPU=1,GRES/gpu:a100=2 counts a job that shares"},
		"priority by slots": {[]string{"PrologFlags=", "PriorityWeightTRES=gres/gpu=1000\nPrologFlags="}, nil,
			"warn billing: PriorityWeightTRES=gres/gpu=1000"},
		"limited by slots": {nil, func(f *Facts) {
			f.Limits = []sctl.Limit{{Of: "QOS normal", Name: "GrpTRES", TRES: "cpu=1,gres/gpu=8"},
				{Of: "QOS low", Name: "GrpTRES", TRES: "gres/carma=8"}}
		}, "warn billing: QOS normal GrpTRES=cpu=1,gres/gpu=8 counts a job"},
		"all cores for four jobs": {[]string{"PrologFlags=", "DefCpuPerGPU=16\nPrologFlags="}, nil,
			"warn room: DefCpuPerGPU=16 leaves no core of the 64 of gpu[1-2]"},
		"all memory for four jobs": {[]string{"PrologFlags=", "SelectTypeParameters=CR_Core_Memory\nPrologFlags=",
			"YES LLN=YES DefMemPerCPU=4000", "YES LLN=YES DefMemPerGPU=128000"}, nil,
			"warn room: DefMemPerGPU=128000 leaves no memory of the 512000 MiB"},
		"no default memory": {[]string{"PrologFlags=", "SelectTypeParameters=CR_Core_Memory\nPrologFlags=",
			"YES LLN=YES DefMemPerCPU=4000", "YES LLN=YES"}, nil,
			"warn room: partition gpu has no default memory"},
	} {
		t.Run(name, func(t *testing.T) {
			f := site(t, c.conf...)
			if c.plant != nil {
				c.plant(&f)
			}
			var found []string
			for _, f := range Diagnose(f) {
				if f.Level == Pass {
					continue
				}
				found = append(found, fmt.Sprintf("%s %s: %s", f.Level, f.Part, f.What))
				if f.Do == "" {
					t.Errorf("nothing to do about: %s", f.What)
				}
			}
			head, text, _ := strings.Cut(c.want, ": ")
			if len(found) != 1 || !strings.HasPrefix(found[0], head+": ") || !strings.Contains(found[0], text) {
				t.Errorf("got %q, want %s", found, c.want)
			}
		})
	}
}

// A count that was changed under running jobs: what mends it is a registration without
// jobs, which the general advice does not say.
func TestCountChanged(t *testing.T) {
	for _, name := range []string{"carma"} {
		f := site(t)
		f.Node.State, f.Node.Reason = "MIXED+DRAIN+INVALID_REG",
			"gres/"+name+" count changed and jobs are using them (162144 != 50776)"
		at := slices.IndexFunc(Diagnose(f), func(f Finding) bool { return f.Level == Fail })
		if at < 0 || !strings.Contains(Diagnose(f)[at].Do, "systemctl restart slurmd") {
			t.Errorf("%s: %+v", name, Diagnose(f))
		}
	}
}

// The slots stand in a file of the admin's (Setup), and not in the package's carma.conf.
func TestMissingSlots(t *testing.T) {
	f := site(t)
	f.Node.Slots[0].Err = os.ErrNotExist
	findings := Diagnose(f)
	at := slices.IndexFunc(findings, func(f Finding) bool { return f.Part == "gres.conf" })
	if do := findings[at].Do; !strings.Contains(do, "carma-slots.conf") {
		t.Errorf("to make the slots the doctor says %q", do)
	}
}

// A node outside of the pilot needs the hooks, and nothing is said of its GPUs.
func TestNodeOfOthers(t *testing.T) {
	f := site(t)
	f.Controller, f.Node = nil, &Node{Name: "cpu1", Hooks: f.Node.Hooks}
	findings := Diagnose(f)
	if last := findings[len(findings)-1]; Worst(findings) != Pass ||
		!strings.Contains(last.What, "cpu1 is in no partition of carma.toml") {
		t.Errorf("%+v", findings)
	}
	f.Node.Elsewhere = true
	if findings := Diagnose(f); !strings.Contains(findings[len(findings)-1].What,
		"leave jobs there the GPUs that Slurm gives") {
		t.Errorf("GPUs of Slurm's own: %+v", findings)
	}
	f.Node.Hooks["Prolog"] = Path{Err: os.ErrNotExist}
	if Worst(Diagnose(f)) != Fail {
		t.Error("a missing Prolog is nothing")
	}
}

// Fewer GPUs and GPUs of another size are two findings: both are said, and once
// for the two partitions of the node.
func TestGPUsDiffer(t *testing.T) {
	f := site(t)
	f.Node.Samples = f.Node.Samples[:3]
	f.Node.Samples[0].TotalMiB = 81559
	var do []string
	for _, f := range Diagnose(f) {
		if f.Level == Fail {
			do = append(do, f.Do)
		}
	}
	want := "gpu_mem_mib = 81559 gpus_per_node = 3"
	if got := strings.Join(do, " "); got != want {
		t.Errorf("got %s", got)
	}
}

// Nodes= of a partition may name a NodeSet (slurm.conf(5), 22.05 to 26.05).
func TestNodeSetOfSlurmConf(t *testing.T) {
	f := site(t, "PartitionName=gpu Nodes=gpu[1-2]", "NodeSet=a100 Nodes=gpu[1-2]\nPartitionName=gpu Nodes=a100")
	for _, finding := range Diagnose(f) {
		if finding.Level == Fail {
			t.Errorf("%+v", finding)
		}
	}
	// By a feature of the nodes.
	f = site(t, "NodeName=gpu[1-2]", "NodeName=gpu[1-2] Feature=a100",
		"PartitionName=gpu-recovery Nodes=gpu[1-2]", "NodeSet=ns Feature=a100\nPartitionName=gpu-recovery Nodes=ns",
		"PartitionName=gpu Nodes=gpu[1-2]", "PartitionName=gpu Nodes=ns")
	for _, finding := range Diagnose(f) {
		if finding.Level == Fail {
			t.Errorf("%+v", finding)
		}
		if finding.Part == "node" && finding.What == "gpu1 is in no partition of carma.toml; it needs the hooks only" {
			t.Error("the node is not looked at: " + finding.What)
		}
	}
}
