// SPDX-License-Identifier: Apache-2.0

//go:build integration && containers

package devcluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Each test starts a job's tasks in containers of one kind, and beside them another user's job
// on a GPU of its own. A task opens its job's GPUs and no other; its variables are there; it
// reaches its own MPS daemon and no other.

// containers builds what the containers are made of, below the cluster's directory.
func (c *cluster) containers(what string) (dir string) {
	c.t.Helper()
	dir = filepath.Join(c.dir, "containers")
	build := exec.Command("../containers/build.sh", dir, what)
	if out, err := build.CombinedOutput(); build.ProcessState.ExitCode() == 3 {
		c.t.Skipf("the sources of %s cannot be had; contrib/containers/build.sh names what to set\n%s", what, out)
	} else if err != nil {
		c.t.Fatalf("contrib/containers/build.sh: %v\n%s", err, out)
	}
	return dir
}

// separated starts a cluster whose jobs are kept apart by cgroups, or by access lists where
// no cgroup can be made, as in contrib/bare.sh.
func separated(t *testing.T) *cluster {
	t.Helper()
	if !cgroup2() && unix.Access("/sys/fs/cgroup/devices", unix.W_OK) != nil {
		t.Log("no cgroup can be made here: access lists keep the jobs apart")
		return up(t, "--nodes", "1", "--confine", "--spank", "--time-scale", "10")
	}
	return confined(t, "--spank", "--time-scale", "10")
}

// contained starts slurmd anew, so that it sees no cgroup v2 beside v1: crun 1.8 does not run
// where both have controllers. slurmd sees the cluster's cgroups where enroot looks for cgroups. env is added to
// slurmd's environment.
func (c *cluster) contained(env ...string) {
	c.t.Helper()
	restart := exec.Command("unshare", "--mount", "sh", "-c",
		"! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; "+
			"for h in "+c.dir+"/cgroup/*/; do [ ! -d $h ] || mount --bind $h /sys/fs/cgroup/$(basename $h); done; "+
			"exec ./devcluster restart "+c.dir+" slurmd")
	restart.Env = append(os.Environ(), env...)
	if out, err := restart.CombinedOutput(); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %t") }, "idle")
}

// neighbour starts bob's job that others are not to reach, and returns its pipe directory.
func (c *cluster) neighbour() string {
	c.t.Helper()
	id := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY\nsleep 1h\n")
	var pipe string
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		_, pipe, _ = strings.Cut(strings.TrimSpace(string(text)), "pipe=")
		return pipe
	}, "^/.*/GPU-")
	return pipe
}

// mounts are the directories that a container needs: the GPUs' device nodes, the MPS pipes,
// and the state of the simulated GPUs.
func (c *cluster) mounts() []string {
	return []string{c.dir + "/dev/n1", c.dir + "/run/n1/mps", c.dir + "/simgpu"}
}

// probe says what a task has; what it opens as it was told, with its variables unset, and
// overwritten. NVIDIA's daemon does not serve clients in other PID
// namespaces here, for the simulated one tells them by their numbers.
func probe(pipeOfOthers, more string) string {
	return `o() { "$@" simgpu devices $SIMGPU_DEV; }; echo "opens $(o env) $(o env -i PATH=$PATH) ` +
		`$(o env CUDA_VISIBLE_DEVICES=0,1,2,3 NVIDIA_VISIBLE_DEVICES=all)"; ` +
		`echo "told $CARMA_GPU_UUIDS $CARMA_RESERVE_MIB $CARMA_MEM_FRACTION"; ` +
		`[ -w $CUDA_MPS_PIPE_DIRECTORY/control ] && echo "reaches own"; ` +
		`ls ` + pipeOfOthers + ` 2>/dev/null && echo "reaches others"; ` + more
}

// holds compares what probe printed with the job's lease.
func (c *cluster) holds(id, out string, tasks int) {
	c.t.Helper()
	m := regexp.MustCompile(`(?m)^batch (\d) (GPU-\S+)$`).FindStringSubmatch(out)
	if m == nil {
		c.t.Fatalf("job %s printed\n%s", id, out)
	}
	for _, want := range []string{"opens " + m[1] + " " + m[1] + " " + m[1], "told " + m[2] + " 10240 0.2273", "reaches own"} {
		if got := len(regexp.MustCompile("(?m)^"+want+"$").FindAllString(out, -1)); got != tasks {
			c.t.Errorf("job %s: %d of %d tasks print %q\n%s", id, got, tasks, want, out)
		}
	}
	if strings.Contains(out, "reaches others") {
		c.t.Errorf("job %s reaches another user's MPS daemon\n%s", id, out)
	}
}

// trains is what a task does that reaches its MPS daemon: it trains, but not with more memory
// than its job has.
const trains = "simjob --mem 4G --smact 5 --ramp 0s --duration 1s && echo trains; " +
	"simjob --mem 20G --smact 5 --ramp 0s --duration 1s 2>/dev/null || echo is held"

func (c *cluster) trained(id, out string, tasks int) {
	c.t.Helper()
	for _, word := range []string{"trains", "is held"} {
		if got := strings.Count(out, word+"\n"); got != tasks {
			c.t.Errorf("job %s: %d of %d tasks print %q\n%s", id, got, tasks, word, out)
		}
	}
}

// said logs what a job printed, if the test has failed.
func (c *cluster) said(id string) {
	if c.t.Failed() {
		c.t.Logf("job %s printed\n%s", id, c.output(id))
	}
}

// batchLine is the line that a batch script begins with outside of its containers.
const batchLine = "echo batch $(simgpu devices $SIMGPU_DEV) $CARMA_GPU_UUIDS\n"

func TestPyxis(t *testing.T) {
	c := separated(t)
	dir := c.containers("pyxis")
	c.sh("", fmt.Sprintf("echo 'required %[1]s/spank_pyxis.so runtime_path=%[1]s/pyxis' >>%s/etc/plugstack.conf", dir,
		c.dir))
	c.contained("PATH=" + dir + "/enroot/bin:" + os.Getenv("PATH")) // pyxis finds enroot by it, and makes runtime_path
	pipe := c.neighbour()
	container := " --container-image=" + dir + "/image.sqsh --container-mounts=" + strings.Join(c.mounts(), ",") + " "
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -n 2\n#CARMA mem=10G\n"+batchLine+
		"srun"+container+"sh -c "+quote(probe(pipe, trains))+"\n")
	defer c.said(id)
	c.ends(id, "COMPLETED")
	out := c.output(id)
	c.holds(id, out, 2)
	c.trained(id, out, 2)
	gpu := regexp.MustCompile("GPU-[-0-9a-f]+").FindString(out)

	// An allocation and a step in one, whose environment nobody has told before.
	const says = `echo "$SLURM_JOB_ID $CARMA_GPU_UUIDS $(simgpu devices $SIMGPU_DEV)"`
	direct := c.sh(alice, "srun --gres=gpu:1"+container+"sh -c "+quote(says))
	m := regexp.MustCompile(`^(\d+) (GPU-\S+) [0-3]$`).FindStringSubmatch(direct)
	if m == nil {
		t.Fatalf("srun printed %q", direct)
	}
	if none := c.sh(carol, "srun -p plain"+container+"sh "+
		"-c "+quote(says)); !regexp.MustCompile(`^\d+  none$`).MatchString(none) {
		t.Errorf("a task without a GPU printed %q", none)
	}
	// enroot's hook has been told the jobs' GPUs, and not the image's word, which is all; of the
	// job without one it has brought in nothing.
	log := c.sh("", "cat "+dir+"/home/cli.log")
	want := "^job=" + id + " .* --device=" + gpu + " .*\njob=" + m[1] + " .* --device=" + m[2] + " .*$"
	if !regexp.MustCompile(want).MatchString(log) {
		t.Errorf("enroot's hook was told\n%s\nwant %s", log, want)
	}
	c.sh("", "scancel -u "+bob)
	c.noDrain()
}

// Slurm's own containers. Up to 22.05 a container has the environment with which srun was
// started, so srun is started by a batch script that was told.
func TestContainerOCI(t *testing.T) {
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		if _, err := os.Stat(prefix + "/lib/slurm/serializer_json.so"); err != nil {
			t.Skipf("this Slurm was built without JSON and has no --container: %v", err)
		}
	}
	c := separated(t)
	dir := c.containers("image")
	c.bundle(dir)
	var conf strings.Builder
	for _, line := range []struct{ key, command string }{
		{"Query", "state"}, {"Kill", "kill -a"}, {"Delete", "delete --force"}, {"Run", "run --bundle=%b"},
	} {
		fmt.Fprintf(&conf, "RunTime%s=\"crun --rootless=true --root=%s/home/oci-%%u %s %%n.%%u.%%j.%%s.%%t\"\n",
			line.key, dir, line.command)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "etc", "oci.conf"), []byte(conf.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	c.contained()
	pipe := c.neighbour()
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n"+batchLine+
		"srun --container="+dir+"/bundle sh -c "+quote(probe(pipe, "true"))+"\n")
	defer c.said(id)
	c.ends(id, "COMPLETED")
	c.holds(id, c.output(id), 1)
	c.sh("", "scancel -u "+bob)
	c.noDrain()
}

// bundle writes config.json for alice's containers.
func (c *cluster) bundle(dir string) {
	c.t.Helper()
	c.sh("", "cd "+dir+"/bundle && crun spec --rootless")
	path := filepath.Join(dir, "bundle", "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	var conf map[string]any
	if err := json.Unmarshal(text, &conf); err != nil {
		c.t.Fatal(err)
	}
	conf["process"].(map[string]any)["terminal"] = false
	var mounts []any
	for _, m := range conf["mounts"].([]any) {
		// The job's cgroups are not the user's to mount.
		if m.(map[string]any)["type"] != "cgroup" {
			mounts = append(mounts, m)
		}
	}
	for _, dir := range c.mounts() {
		mounts = append(mounts, map[string]any{
			"destination": dir, "source": dir, "type": "bind", "options": []string{"rbind", "rw"}})
	}
	conf["mounts"] = mounts
	linux := conf["linux"].(map[string]any)
	for key, option := range map[string]string{"uidMappings": "-u", "gidMappings": "-g"} {
		id := json.Number(c.sh("", "id "+option+" "+alice))
		linux[key] = []any{map[string]any{"containerID": 0, "hostID": id, "size": 1}}
	}
	if text, err = json.Marshal(conf); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// A user's own container, without Slurm's help: its variables are those of who starts it.
func TestPodman(t *testing.T) {
	c := separated(t)
	dir := c.containers("image")
	c.contained()
	pipe := c.neighbour()
	var mounts strings.Builder
	for _, m := range c.mounts() {
		mounts.WriteString(" -v " + m + ":" + m)
	}
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n"+batchLine+
		"export HOME="+dir+"/home/alice XDG_RUNTIME_DIR="+dir+"/home/alice/run\nmkdir -p -m 700 $HOME $XDG_RUNTIME_DIR\n"+
		"podman --cgroup-manager=cgroupfs --runtime=crun run --rm --network=none --cgroups=disabled --env-host"+
		mounts.String()+" --rootfs "+dir+"/bundle/rootfs sh -c "+quote(probe(pipe, "true"))+"\n")
	defer c.said(id)
	c.ends(id, "COMPLETED")
	c.holds(id, c.output(id), 1)
	c.sh("", "scancel -u "+bob)
	c.noDrain()
}

// As podman, but in the job's PID namespace, and with the variables of who starts it. From a
// directory that is bound no device opens (nodev); those of /dev do, as GPUs have them.
func TestApptainer(t *testing.T) {
	c := separated(t)
	dir := c.containers("apptainer")
	dev := "/dev/carma-" + filepath.Base(c.dir)
	c.sh("", "mkdir "+dev+" && mount --bind "+c.dir+"/dev/n1 "+dev)
	t.Cleanup(func() { c.sh("", "umount "+dev+" && rmdir "+dev) })
	pipe := c.neighbour()
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\n"+batchLine+
		"export SIMGPU_DEV="+dev+" HOME="+dir+"/home/alice\nmkdir -p -m 700 $HOME\n"+
		dir+"/apptainer/bin/apptainer exec --nv --bind "+c.dir+"/run/n1/mps,"+c.dir+"/simgpu "+dir+"/bundle/rootfs sh -c "+
		quote(probe(pipe, trains))+"\n")
	defer c.said(id)
	c.ends(id, "COMPLETED")
	c.holds(id, c.output(id), 1)
	c.trained(id, c.output(id), 1)
	c.sh("", "scancel -u "+bob)
	c.noDrain()
}
