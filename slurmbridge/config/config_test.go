// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

const example = "../../contrib/slurm/carma.toml"

func TestEmptyFileIsDefault(t *testing.T) {
	c, err := Parse("")
	if err != nil || !reflect.DeepEqual(c, Default()) {
		t.Errorf("got %+v, %v", c, err)
	}
}

// The example documents every key, and what it shows as a default is one.
func TestExample(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(example, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Partition["gpu"].Share || c.Partition["gpu"].Recovery != "gpu-recovery" || c.DefaultPartition() != "gpu" {
		t.Errorf("partitions: %+v", c.Partition)
	}
	uncommented := regexp.MustCompile(`(?m)^#([a-z_]+ = |\[)`).ReplaceAllString(string(text), "$1")
	all, err := Parse(uncommented)
	if err != nil {
		t.Fatal(err)
	}
	if all.NodeSet["old"].Policy != "mug" {
		t.Errorf("node set %+v", all.NodeSet)
	}
	all.Partition, all.NodeSet = nil, nil
	if len(all.Placement.AllowPolicies) == 0 {
		all.Placement.AllowPolicies = nil
	}
	if want := Default(); !reflect.DeepEqual(all, want) {
		t.Errorf("a default in the example is none:\ngot  %+v\nwant %+v", all, want)
	}
	for _, key := range keysOf(reflect.TypeOf(Config{}), "") {
		if !strings.Contains(uncommented, "\n"+key[strings.LastIndex(key, ".")+1:]+" = ") {
			t.Errorf("%s does not stand in %s", key, example)
		}
	}
}

func keysOf(typ reflect.Type, prefix string) (keys []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := prefix + f.Tag.Get("toml")
		switch f.Type.Kind() {
		case reflect.Struct:
			keys = append(keys, keysOf(f.Type, name+".")...)
		case reflect.Map:
			keys = append(keys, keysOf(f.Type.Elem(), name+".*.")...)
		default:
			keys = append(keys, name)
		}
	}
	return keys
}

// Where the agent observes, what would act is off, whatever the file says.
func TestObserve(t *testing.T) {
	c, err := Parse("mode = \"observe\"\n[idle]\naction = \"cancel\"\n[accounting]\nforward = \"slurmdbd\"\n")
	if err != nil || !reflect.DeepEqual(c, Default().Observing()) || !c.Observes() || c.Idle.Action != "none" {
		t.Errorf("got %+v, %v", c, err)
	}
	c, err = Parse("mode = \"advise\"\n[accounting]\nforward = \"slurmdbd\"\n")
	want := Default().Observing()
	want.Mode, want.Accounting.Forward = ModeAdvise, "slurmdbd"
	if err != nil || !reflect.DeepEqual(c, want) || !c.Observes() {
		t.Errorf("got %+v, %v", c, err)
	}
}

const partitions = "[partition.gpu]\nshare = true\ngpus_per_node = 4\ngpu_mem_mib = 40536\n"

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"mode = \"watch\"\n", "line 1: mode: \"watch\" is not one of share, advise, observe"},
		{"[smact]\nmax_pct = 80\nmax_pct_ = 80\n", "line 3: smact.max_pct_: unknown key"},
		{"[smakt]\nmax_pct = 80\n", "line 1: smakt: unknown key"},
		{partitions + "colour = 1\n", "line 5: partition.gpu.colour: unknown key"},
		{"[smact]\nmax_pct = \"high\"\n", "line 2 (last key \"smact.max_pct\"): incompatible types"},
		{"[smact]\nwindow = \"soon\"\n", "line 2: smact.window: \"soon\" is not a duration"},
		{"[smact]\nwindow = \"-1s\"\n", "line 2: smact.window: \"-1s\" is not a duration"},
		{"[smact\n", "expected '.' or ']' to end table name"},
		{"\n\n[smact]\nmax_pct = 0\n", "line 4: smact.max_pct: must be more than 0"},
		{"[placement]\nmax_slowdown = 1\n", "line 2: placement.max_slowdown: must be above 1 and at most 100, or 0"},
		{"[placement]\nmax_slowdown = nan\n", "line 2: placement.max_slowdown: must be above 1"},
		{"[placement]\nmax_slowdown = -2.0\n", "line 2: placement.max_slowdown: must be above 1"},
		{"[smact]\nmax_pct = 101\n", "line 2: smact.max_pct: must be more than 0 and at most 100"},
		{"[nvml]\ninterval = \"1ms\"\n", "line 2: nvml.interval: must be between 50ms and 1m0s"},
		{"[placement]\npolicy = \"best\"\n", "line 2: placement.policy: \"best\" is not one of"},
		{"[placement]\nmax_jobs = 49\n", "line 2: placement.max_jobs: must be 1 to 48"},
		{"[placement]\nmargin_mib = -1\n", "line 2: placement.margin_mib: must not be negative"},
		{"[placement]\ncross_user = \"maybe\"\n", "line 2: placement.cross_user: \"maybe\" is not one of"},
		{"[submit]\nestimator = \"guess\"\n", "line 2: submit.estimator: \"guess\" is not one of " +
			strings.Join(estimators, ", ")},
		{partitions + "directive = \"mem=9G batch\"\n",
			"line 5: partition.gpu.directive: batch: needs a value; write batch=32"},
		{partitions + "directive = \"mem=50G\"\n", "line 5: partition.gpu.directive: mem is more than gpu_mem_mib"},
		{partitions + "directive = \"job=x\"\n", "line 5: partition.gpu.directive: job is the name of one user's run"},
		{partitions + "base_cudnn_mib = 50000\n", "line 5: partition.gpu.base_cudnn_mib: must be 0 or a part"},
		{"[submit]\non_bad_directive = \"cry\"\n", "line 2: submit.on_bad_directive: \"cry\" is not one of reject, ignore"},
		{"[smact]\nstatistic = \"max\"\n", "line 2: smact.statistic: \"max\" is not one of mean"},
		{"[smact]\nmax_pct = 101\n", "line 2: smact.max_pct: must be more than 0"},
		// Keys that there were.
		{"[smact]\nsmocc_max_pct = 0\n", "line 2: smact.smocc_max_pct: unknown key; contrib/slurm/carma.toml"},
		{"[recovery]\nenabled = true\n", "line 2: recovery.enabled: unknown key; contrib/slurm/carma.toml"},
		{"[placement]\nallow_policies = [\"magm\", \"x\"]\n", "line 2: placement.allow_policies: \"x\" is not one of"},
		{"[placement.margin]\nuser = 1\n", "line 1: placement.margin: unknown key"}, // of earlier versions
		{"[hold]\ntimeout = \"30m\"\n", "line 2: hold.timeout: unknown key"},
		{"[accounting]\nsample = \"10s\"\n", "line 2: accounting.sample: unknown key"},
		{"[smact]\ncoarse_max_pct = 95\n", "line 2: smact.coarse_max_pct: unknown key"},
		{"[nodeset.a]\npolicy = \"lug\"\n", "nodeset.a.nodes: \"\" is no node list"},
		{"[nodeset.a]\nnodes = \"gpu[\"\n", "line 2: nodeset.a.nodes: \"gpu[\" is no node list"},
		{"[nodeset.a]\nnodes = \"gpu1\"\npolicy = \"x\"\n", "line 3: nodeset.a.policy: \"x\" is not one of"},
		{"[hooks]\nvetoes = -1\n", "line 2: hooks.vetoes: must be 0 to 1000"},
		{"[mps]\nmax_clients = 48\n", "line 2: mps.max_clients: unknown key"},
		{"[export]\ntextfile = \"x.prom\"\n", "line 2: export.textfile: must be an absolute path"},
		{"[paths]\nrun_dir = \"run\"\n", "line 2: paths.run_dir: must be an absolute path"},
		{"[slurm]\nbin_dir = \"bin\"\n", "line 2: slurm.bin_dir: must be an absolute path"},
		{"[nvml]\nlibrary = \"lib/x.so\"\n", "line 2: nvml.library: must be a library name or an absolute path"},
		{"[partition.gpu]\ngpu_mem_mib = 40536\n", "partition.gpu.gpus_per_node: must be 1 to 64"},
		{"[partition.gpu]\ngpus_per_node = 4\n", "partition.gpu.gpu_mem_mib: must be the memory of one GPU"},
		{partitions + "recovery = \"gpu\"\n", "line 5: partition.gpu.recovery: must be another partition"},
		{partitions + "recovery = \"x\"\n", "line 5: partition.gpu.recovery: there is no [partition.x]"},
		{partitions + "recovery = \"b\"\n[partition.b]\nshare = true\ngpus_per_node = 4\ngpu_mem_mib = 40536\n",
			"line 5: partition.gpu.recovery: partition b shares its GPUs"},
		{"[frameworks.XLA_CLIENT_MEM_FRACTION]\nsharing = \"0.3\"\n",
			"line 1: frameworks.XLA_CLIENT_MEM_FRACTION: JAX refuses it beside XLA_PYTHON_CLIENT_MEM_FRACTION"},
		{"[frameworks.A]\nsharing = \"{memory}\"\n", "line 2: frameworks.A.sharing: {memory} is not one of {reserve_mib}"},
		{"[frameworks.A]\nall = \"a b\"\n", "line 2: frameworks.A.all: must be at most 256 printable characters"},
		{"[frameworks.\"A-B\"]\nall = \"1\"\n", "frameworks.A-B: is no name of a variable"},
		{"[frameworks.A]\nalone = \"1\"\n", "line 2: frameworks.A.alone: unknown key"},
		{partitions + "default = true\n[partition.a]\ndefault = true\ngpus_per_node = 4\ngpu_mem_mib = 40536\n",
			"line 5: partition.gpu.default: only one partition"},
	} {
		_, err := Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestLoadNamesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.toml")
	if err := os.WriteFile(path, []byte("[mps]\nenabld = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path, os.ReadFile)
	if want := path + ": line 2: mps.enabld: unknown key"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := Load(path+".none", os.ReadFile); err == nil || !strings.Contains(err.Error(), path+".none") {
		t.Errorf("missing file: %v", err)
	}
}

func TestPathsOfNode(t *testing.T) {
	c, err := Parse("[paths]\nrun_dir = \"/x/%n\"\ndb = \"/y/%n.db\"\n[hooks]\nwait = \"250ms\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.RunDir("n1"), " ", c.DBPath("n1"), " ", c.Hooks.Wait.D()); got != "/x/n1 /y/n1.db 250ms" {
		t.Errorf("got %s", got)
	}
	if Default().Hooks.Wait.D() != 5*time.Second {
		t.Error("parsing changed the defaults")
	}
}

func TestForNode(t *testing.T) {
	c, err := Parse("[nodeset.b]\nnodes = \"gpu[1-9]\"\npolicy = \"lug\"\n[nodeset.a]\nnodes = \"gpu[3-4]\"\nmax_jobs " +
		"= 2\nsmact_max_pct = 70\ncross_user = \"timeslice\"\n")
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{"gpu0": "magm 3 85 never", "gpu1": "lug 3 85 never",
		"gpu3": "magm 2 70 timeslice"} {
		n := c.ForNode(node)
		if got := fmt.Sprint(n.Placement.Policy, " ", n.Placement.MaxJobs, " ", n.SMAct.MaxPct, " ",
			n.Placement.CrossUser); got != want {
			t.Errorf("%s: %s, want %s", node, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("[partition.gpu]\ngpus_per_node = 4\n")
	f.Add("a.b.c = 1\n")
	f.Fuzz(func(t *testing.T, text string) { Parse(text) })
}

func TestIdleOnly(t *testing.T) {
	for want, list := range map[bool][]Placement{
		true:  {{Policy: "exclusive"}, {Policy: "exclusive", AllowPolicies: []string{"exclusive"}}},
		false: {{Policy: "magm"}, {Policy: "exclusive", AllowPolicies: []string{"exclusive", "rr"}}},
	} {
		for _, p := range list {
			if p.IdleOnly() != want {
				t.Errorf("%s, jobs may ask for %v: %v", p.Policy, p.AllowPolicies, !want)
			}
		}
	}
}
