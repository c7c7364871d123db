// SPDX-License-Identifier: Apache-2.0

//go:build abuse

package abuse

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// spy stands before one of Slurm's commands and notes what it was started with.
const spy = `#!/bin/sh
{ echo "command $0"; echo "umask $(umask)"; echo "path $PATH"; env | sed 's/^/env /'; ls -l /proc/self/fd | sed 's/^/fd /'; } >>DIR/spied
`

// What slurmd, or a user who found a way to shape it, hands to a hook does not
// get further: no PATH, no working directory, no variables, no umask and no open
// file of theirs reaches the commands that the hook starts or the files it makes.
func TestAbuseHookSurroundings(t *testing.T) { retried(surroundings)(t) }

func surroundings(t *testing.T, last bool) (again bool) {
	n := newNode(t)
	for _, name := range []string{"squeue", "scontrol"} {
		text, err := os.ReadFile(n.dir + "/bin/" + name)
		n.must(err)
		n.must(os.WriteFile(n.dir+"/bin/"+name, []byte(strings.ReplaceAll(spy, "DIR", n.dir)+strings.TrimPrefix(string(text),
			"#!/bin/sh\n")), 0o755))
	}
	// Programs of the same names where a PATH or the working directory leads.
	evil := filepath.Join(n.dir, "evil")
	n.must(os.Mkdir(evil, 0o755))
	for _, name := range []string{"squeue", "scontrol", "sh", "ls", "dcgmi", "nvidia-cuda-mps-control", "getent", "id"} {
		n.must(os.WriteFile(filepath.Join(evil, name), []byte("#!/bin/sh\necho "+name+" >>"+n.dir+"/fooled\n"), 0o755))
	}
	secret := filepath.Join(n.dir, "secret")
	n.must(os.WriteFile(secret, []byte("secret"), 0o600))
	job := filepath.Join(n.dir, "home", "job.err")
	prefix := []string{"/bin/sh", "-c", "umask 000; cd " + evil + "; exec 7<" + secret + " 9>>" + secret + `; exec "$@"`,
		"sh"}
	vars := []string{"PATH=" + evil, "LD_LIBRARY_PATH=" + evil, "TMPDIR=" + evil, "HOME=" + evil,
		"SLURM_CONF=" + n.dir + "/slurm.conf",
		"SQUEUE_FORMAT=evil", "SLURM_JOB_STDERR=" + job, "SLURM_JOB_EXIT_CODE2=1:0", "CARMA_CONF=" + evil, "IFS=x",
		"BASH_ENV=" + evil + "/sh", "ENV=" + evil + "/sh"}
	for _, name := range []string{"prolog", "epilog"} {
		if name == "epilog" {
			n.asUser("job.err", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n")
		}
		if out, _, err := n.hook(name, 7, prefix, vars...); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	requeued := strings.Contains(n.calls(), "requeuehold 7")
	if !requeued && !last && n.late() {
		return true
	}
	if text, err := os.ReadFile(n.dir + "/fooled"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("programs of PATH or the working directory ran: %s %v", text, err)
	}
	text, err := os.ReadFile(n.dir + "/spied")
	n.must(err)
	spied := string(text)
	if calls := strings.Count(spied, "command "); calls < 4 || !requeued {
		t.Errorf("%d commands spied upon, of Slurm: %s", calls, n.calls())
	}
	for what, pattern := range map[string]string{
		"a umask other than 077":        `(?m)^umask (?:\d?\d?[0-6]\d|\d?\d?\d[0-6])$`,
		"a PATH other than its own":     `(?m)^path (?:/usr/bin:/bin.+|[^/].*|/[^u].*)$`,
		"a variable of the surrounding": `(?m)^env (LD_LIBRARY_PATH|TMPDIR|HOME|SQUEUE_FORMAT|CARMA_CONF|BASH_ENV|ENV|SPANK_\w+|SLURM_JOB_\w+)=.*$`,
		"an open file":                  `(?m)^fd .* (?:7|9) -> .*$`,
		"the secret":                    `(?m)^fd .*secret$`,
	} {
		if m := regexp.MustCompile(pattern).FindString(spied); m != "" {
			t.Errorf("a command got %s: %s", what, m)
		}
	}
	// No file of ours may be written by others, and none but these read.
	readable := regexp.MustCompile(`/(run|run/jobs|var|var/carma\.db(-wal|-shm)?|run/jobs/\d+\.json)$`)
	n.must(filepath.WalkDir(n.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(path, n.run) && !strings.HasPrefix(path, n.dir+"/var") &&
			path != n.dir+"/hooks.log" {
			return err
		}
		info, err := d.Info()
		if err == nil && (info.Mode()&0o022 != 0 || info.Mode()&0o044 != 0 && !readable.MatchString(path)) {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	}))
	row(t, "PATH, variables, umask, descriptors of others", fmt.Sprintf("%d commands started, none saw them",
		strings.Count(spied, "command ")))
	return false
}

// Whatever slurmd's variables hold, a hook ends with status 0 and soon.
func TestAbuseHookEnvironment(t *testing.T) {
	n := newNode(t)
	var slowest time.Duration
	tries := 0
	for _, name := range []string{"SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_JOB_GPUS", "SLURMD_NODENAME", "SLURM_JOB_USER",
		"SLURM_JOB_PARTITION", "SLURM_NODELIST",
		"SLURM_JOB_WORK_DIR", "SLURM_JOB_STDERR", "SLURM_JOB_EXIT_CODE2", "SLURM_JOB_RESTART_COUNT", "SPANK_CARMA_MEM_MIB",
		"SPANK_CARMA_MODE", "SPANK_CARMA_V", "SLURM_CONF"} {
		for _, value := range []string{"", "-1", "99999999999999999999", "x", "0-4096", "../../../etc/shadow", "$(reboot)",
			"a\nb", strings.Repeat("x", 100000), "\xff\xfe"} {
			for _, hook := range []string{"prolog", "task-prolog", "epilog"} {
				out, took, err := n.hook(hook, 7, nil, "SLURM_JOB_EXIT_CODE2=1:0", name+"="+value)
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					t.Errorf("%s with %s=%.20q: %v\n%s", hook, name, value, err, out)
				}
				slowest = max(slowest, took)
				tries++
			}
		}
	}
	row(t, fmt.Sprintf("%d hooks with variables that are wrong", tries),
		fmt.Sprintf("status 0, slowest %s", slowest.Round(time.Millisecond)))
}
