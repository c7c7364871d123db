// SPDX-License-Identifier: Apache-2.0

// Package facts gathers the facts for package doctor's findings and lines.
package facts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carma/cmd/carma-node/internal/doctor"
	"carma/cmd/internal/cli"
	"carma/db"
	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/sampler"
	"carma/prolog"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/frameworks"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// Gather collects the facts for a diagnosis of this machine, which is called name
// as a node; path is the path of carma.toml. A missing fact is an error among the
// facts.
func Gather(ctx context.Context, path, name string, controller, node bool) doctor.Facts {
	f := doctor.Facts{ConfigPath: path}
	if f.Config, f.ConfigErr = cli.Config(path); f.ConfigErr != nil {
		return f
	}
	_, err := os.Stat(path)
	f.NoConfig = errors.Is(err, fs.ErrNotExist)
	_, err = os.Stat(filepath.Join(filepath.Dir(path), "carma.disable"))
	f.Disabled = err == nil
	slurm := sctl.For(f.Config.Slurm, os.Getenv("SLURM_CONF"))
	asking, cancel := half(ctx)
	defer cancel()
	f.Installed, _ = slurm.Version(asking)
	text, err := slurm.ShowConfig(asking)
	f.Running, f.RunningErr = slurmconf.Running(text), err
	if err == nil {
		if t, err := slurm.Time(asking); err == nil {
			f.Skew = time.Since(t).Truncate(time.Second)
		}
		f.Federation, _ = slurm.Federation(asking)
	}
	slurmConf := slurmConfPath(slurm, f.Running)
	f.SlurmConf, f.SlurmConfErr = slurmconf.Read(slurmConf)
	for _, dir := range filepath.SplitList(f.SlurmConf.Setting("PluginDir")) {
		f.PluginDirs = append(f.PluginDirs, look(dir))
	}
	f.SPANK = gatherSPANK(f, slurmConf)
	if key := f.Config.Slurm.UserKey; key != "" {
		if f.UserKey = look(key); f.UserKey.Err == nil {
			_, f.UserKey.Err = extra.ReadTags(key, os.ReadFile)
		}
	}
	if !controller && !node {
		controller, node = whatThisIs(f.SlurmConf, name)
	}
	var status sctl.NodeStatus
	var statusErr error
	if f.RunningErr == nil && node { // first: slurmdbd may take all of the time
		status, statusErr = slurm.NodeStatus(asking, name)
	}
	if f.RunningErr == nil && !f.Config.Observes() {
		tell(asking, &f, slurm, controller, name)
	}
	if controller {
		f.Controller = gatherController(f, path)
	}
	if node {
		f.Config = f.Config.ForNode(name)
		f.Node = gatherNode(ctx, f, name, slurmConf)
		f.Node.State, f.Node.Reason, f.Node.Gres, f.Node.StateErr = status.State, status.Reason, status.Gres, statusErr
	}
	return f
}

// half leaves a half of the time to the machine's own facts: sacctmgr waits 45 s by default for a hanging slurmdbd
// (dbd_conn.c, 24.11.5), and the driver is not to be blamed for the time.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(end)/2)
	}
	return context.WithCancel(ctx)
}

// tell asks Slurm for the settings of administrators and agents; limits and reservations without an answer are not
// judged. A node asks about itself alone: slurmctld starts the health checks of all nodes at once.
func tell(ctx context.Context, f *doctor.Facts, slurm sctl.Client, controller bool, name string) {
	if !controller {
		if f.Installed.Publishes() {
			if text, err := slurm.Node(ctx, name); err == nil {
				f.Extras = map[string]string{name: text}
			}
		}
		return
	}
	f.Reservations, _ = sctl.Reservations(ctx, slurm)
	if f.Installed.Publishes() {
		var nodes []schedule.Node
		nodes, f.ExtrasErr = slurm.Nodes(ctx, f.Config.PartitionNames())
		f.Extras = make(map[string]string, len(nodes))
		for _, n := range nodes {
			f.Extras[n.Name] = n.Extra
		}
	}
	if f.Running["accountingstoragetype"] == "accounting_storage/slurmdbd" {
		f.Limits, _ = sctl.Accounting(slurm).Limits(ctx, f.Running["clustername"])
	}
}

func slurmConfPath(slurm sctl.Client, running map[string]string) string {
	for _, path := range []string{slurm.Conf, running["slurm_conf"]} {
		if path != "" {
			return path
		}
	}
	return "/etc/slurm/slurm.conf"
}

// whatThisIs tells this machine's roles from slurm.conf.
func whatThisIs(conf slurmconf.File, name string) (controller, node bool) {
	for _, n := range conf.Nodes {
		node = node || hostlist.Contains(n.Name, name)
	}
	controller = slices.ContainsFunc(conf.Hosts, isHost)
	return controller, node || !controller
}

// isHost tells whether a SlurmctldHost value, "head(10.0.0.1)", names this
// machine.
func isHost(value string) bool {
	name, _, _ := strings.Cut(value, "(")
	host, err := os.Hostname()
	if err != nil {
		return false
	}
	short, _, _ := strings.Cut(host, ".")
	return slices.Contains([]string{host, short, "localhost"}, name)
}

func setting(f doctor.Facts, name string) string {
	if v := f.SlurmConf.Setting(name); v != "" {
		return v
	}
	return f.Running[strings.ToLower(name)]
}

func gatherController(f doctor.Facts, configPath string) *doctor.Controller {
	c := &doctor.Controller{ConfigFile: look(configPath)}
	if file := f.Config.History.File; file != "" {
		info, err := os.Stat(file)
		if c.HistoryErr = err; err == nil {
			c.HistoryAge = time.Since(info.ModTime())
		}
	}
	for _, dir := range filepath.SplitList(setting(f, "PluginDir")) {
		path := filepath.Join(dir, "job_submit_carma.so")
		if _, err := os.Stat(path); err != nil {
			continue
		}
		c.PluginPath = path
		c.PluginVersion, c.PluginErr = doctor.PluginVersion(path)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			real = path
		}
		library := filepath.Join(filepath.Dir(filepath.Dir(real)), "libcarma.so") // worker.c, load()
		c.Library, c.LibraryErr = look(library), doctor.CheckLibrary(library)
		break
	}
	return c
}

func gatherSPANK(f doctor.Facts, slurmConf string) doctor.SPANK {
	s := doctor.SPANK{Path: setting(f, "PlugStackConfig")}
	if s.Path == "" || s.Path == "(null)" {
		s.Path = filepath.Join(filepath.Dir(slurmConf), "plugstack.conf")
	}
	text, _ := os.ReadFile(s.Path) // a missing file counts as empty
	s.Plugins = slurmconf.Plugstack(string(text), func(pattern string) (texts []string) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(s.Path), pattern)
		}
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, _ := os.ReadFile(file)
			texts = append(texts, string(text))
		}
		return texts
	})
	if !s.Named() {
		return s
	}
	s.File = s.Own().Path
	if !filepath.IsAbs(s.File) {
		for _, dir := range filepath.SplitList(setting(f, "PluginDir")) {
			if _, err := os.Stat(filepath.Join(dir, s.Own().Path)); err == nil {
				s.File = filepath.Join(dir, s.Own().Path)
				break
			}
		}
	}
	s.Version, s.Err = doctor.SPANKVersion(s.File)
	program := "/usr/sbin/carma-task-prolog" // the Makefile's CARMA_TASK_PROLOG
	if args := s.Own().Args; len(args) > 0 {
		program = args[0]
	}
	s.Program = look(program)
	return s
}

func look(path string) doctor.Path {
	p := doctor.Path{Path: path}
	st, err := os.Stat(path)
	if err != nil {
		p.Err = err
		return p
	}
	p.Mode = st.Mode()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		p.UID = sys.Uid
		if st.Mode()&fs.ModeCharDevice != 0 {
			p.Major = unix.Major(sys.Rdev)
		}
	}
	return p
}

func gatherNode(ctx context.Context, f doctor.Facts, name, confPath string) *doctor.Node {
	c := f.Config
	n := &doctor.Node{Name: name, Hooks: map[string]doctor.Path{}, MPS: look(c.MPS.Control), RunDir: look(c.RunDir(name))}
	for _, hook := range []string{"Prolog", "TaskProlog", "Epilog"} {
		// A site's own scripts may stand beside; each is a file or a pattern.
		first, _, _ := strings.Cut(setting(f, hook), ",")
		if matches, _ := filepath.Glob(first); len(matches) > 0 {
			first = matches[0]
		}
		if first != "" {
			n.Hooks[hook] = look(first)
		}
	}
	n.GresConf, n.GresConfErr = slurmconf.Read(filepath.Join(filepath.Dir(confPath), "gres.conf"))
	n.Slots = slots(n.GresConf, name)
	n.Elsewhere = prolog.Elsewhere(c, name, confPath)
	cgroup, _ := slurmconf.Read(filepath.Join(filepath.Dir(confPath), "cgroup.conf"))
	n.Constrained = strings.EqualFold(cgroup.Setting("ConstrainDevices"), "yes")
	if h := confine.ForNode(c, name, confPath); h.HasGPUs() {
		g, err := confine.Find(c.Devices.Confine, h)
		if n.GuardErr = err; g != nil {
			n.Guard = g.String()
		}
	}
	n.Dmem, n.UnlimitedBy = confine.ForNode(c, name, confPath).Dmem(), confine.UnlimitedBy(n.RunDir.Path)
	n.Samples, n.NVMLErr = openSamples(ctx, f.ConfigPath)
	n.TaskPrologSets = setsDevicesLast(n.Hooks["TaskProlog"].Path)
	n.SetsDevices = setsDevices("/etc/environment", "/etc/profile", "/etc/profile.d/*sh", "/etc/bash.bashrc",
		"/etc/bashrc")
	_, err := os.Stat(c.SMAct.DCGMI)
	n.DCGMI = err == nil
	var st unix.Statfs_t
	n.OnTmpfs = unix.Statfs(n.RunDir.Path, &st) == nil && st.Type == unix.TMPFS_MAGIC
	n.AgentAge, n.LedgerErr = agentAge(ctx, n.RunDir.Path)
	if text, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		n.Driver = strings.TrimSpace(string(text))
	}
	n.DBErr = writable(c.DBPath(name))
	return n
}

// setsDevicesLast returns the line by which a site's own TaskProlog sets CUDA_VISIBLE_DEVICES behind the call of
// carma-task-prolog; 0: none. Slurm takes a TaskProlog's lines in their order: the last one counts.
func setsDevicesLast(taskProlog string) int {
	text, err := os.ReadFile(taskProlog)
	i := bytes.LastIndex(text, []byte("carma-task-prolog"))
	if err != nil || i < 0 || !bytes.HasPrefix(text, []byte("#!")) { // /usr/sbin/carma-task-prolog is no script
		return 0
	}
	if n := frameworks.SetsDevices(text[i:]); n > 0 {
		return bytes.Count(text[:i], []byte{'\n'}) + n
	}
	return 0
}

// setsDevices returns the files of some patterns that set CUDA_VISIBLE_DEVICES, with the line.
func setsDevices(patterns ...string) (list []string) {
	for _, pattern := range patterns {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if n := frameworks.SetsDevices(text); err == nil && n > 0 {
				list = append(list, fmt.Sprintf("%s line %d", file, n))
			}
		}
	}
	return list
}

// slots are the device files for the node's gpu in gres.conf.
func slots(conf slurmconf.File, node string) []doctor.Path {
	var files []doctor.Path
	for _, r := range conf.GPUs(node) {
		for _, file := range r.Files() {
			files = append(files, look(file))
		}
	}
	return files
}

// openSamples reads the GPUs; path is the path of carma.toml.
func openSamples(ctx context.Context, path string) ([]gres.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	samples, err := sampler.InChild(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("NVML: %w", err)
	}
	return samples, nil
}

// agentAge is the age of the agent's last reading.
func agentAge(ctx context.Context, runDir string) (time.Duration, error) {
	if _, err := os.Stat(runDir); err != nil {
		return 0, fmt.Errorf("the agent has not run: %w", err)
	}
	book, err := lease.Open(runDir, 2*time.Second)
	if err != nil {
		return 0, err
	}
	defer book.Close()
	s, err := book.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	if len(s.Readings) == 0 {
		return 0, errors.New("the agent has not seen any GPU")
	}
	return s.Readings[0].Age, nil
}

// writable tells whether records can be written to a database, without making a
// database.
func writable(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = filepath.Dir(path)
	} else if d, err := db.OpenRead(path); err != nil {
		return err
	} else {
		d.Close()
	}
	if err := unix.Access(path, unix.W_OK); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
