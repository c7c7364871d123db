// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// share: two jobs of a user share, and the second takes more than its booking.
func (c *cluster) share() {
	load := func(mem, pct int, ms int) string {
		return fmt.Sprintf("echo \"attempt $SLURM_RESTART_COUNT gpu=$CUDA_VISIBLE_DEVICES pipes=$CUDA_MPS_PIPE_DIRECTORY\"\n"+
			"exec %s/gpuload --mem %dM --smact %d --duration %dms", c.bin, mem, pct, ms)
	}
	const one = "#SBATCH --gres=gpu:1\n#CARMA mem=4G"
	// The neighbour is a training where there is PyTorch, and the program of ours elsewhere.
	steady := load(wellMiB, 30, 12000)
	if c.hasTorch() {
		steady = fmt.Sprintf("exec %s %s --one resnet18 --steps 400", c.python(), c.trainings())
	}
	var neighbour, over, undisturbed string
	c.check("undisturbed", "a job alone on the GPU completes", "", func(r *check) error {
		id, err := c.submit("undisturbed", one, steady)
		if err != nil {
			return err
		}
		state, err := c.ends(id, 60*time.Second)
		undisturbed = c.result("undisturbed")
		r.text("output", read(filepath.Join(c.dir, "jobs", "undisturbed.txt")))
		r.judge(err == nil && state == "COMPLETED" && undisturbed != "", "%s, result %s of: %s", state, undisturbed,
			steady[strings.LastIndex(steady, "exec"):])
		return nil
	})
	c.check("share", "two jobs of a user that book 4 GiB each run on the GPU at once", "gres/choose",
		func(r *check) (err error) {
			gate, open := c.gate("share")
			defer func() { err = errors.Join(err, open()) }()
			if neighbour, err = c.submit("neighbour", one, gate+steady); err != nil {
				return err
			}
			if _, err = c.eventually(30*time.Second, func() (string, bool) {
				s := c.state(neighbour,
					"JobState")
				return s, s == "RUNNING"
			}); err != nil {
				return err
			}
			// Both jobs book the same; only the second one takes more.
			if over, err = c.submit("overshooter", one, gate+"sleep 3\n"+load(overMiB, 30, 3000)); err != nil {
				return err
			}
			both, err := c.eventually(40*time.Second, func() (string, bool) {
				s := c.state(neighbour, "JobState") + " " + c.state(over, "JobState")
				return s, s == "RUNNING RUNNING"
			})
			err = errors.Join(err, open())
			c.pause(2 * time.Second) // the neighbour has begun to compute
			r.text("nvidia-smi", c.tool("nvidia-smi"))
			r.judge(err == nil, "neighbour and overshooter: %s", both)
			return nil
		})
	c.check("requeue", "the job that took more than it booked is requeued alone, and completes alone on the GPU",
		"prolog: Epilog; docs/adr/0005",
		func(r *check) error {
			if over == "" {
				r.skip("it was not submitted")
				return nil
			}
			state, err := c.ends(over, 100*time.Second)
			r.text("output", read(filepath.Join(c.dir, "jobs", "overshooter.txt")))
			r.text("carma-report", c.says("carma-report", "--config", filepath.Join(c.dir, "carma.toml"), "--json",
				"-j", over))
			r.judge(err == nil && state == "COMPLETED" && c.state(over, "Restarts") == "1",
				"%s after %s restarts, in %s",
				state, c.state(over, "Restarts"), c.state(over, "Partition"))
			return nil
		})
	c.check("neighbour", "the job beside it goes on, and its result is that of an undisturbed run, bit by bit",
		"docs/user.md: out of memory",
		func(r *check) error {
			if neighbour == "" {
				r.skip("it was not submitted")
				return nil
			}
			state, err := c.ends(neighbour, 60*time.Second)
			got := c.result("neighbour")
			r.text("output", read(filepath.Join(c.dir, "jobs", "neighbour.txt")))
			r.judge(err == nil && state == "COMPLETED" && c.state(neighbour, "Restarts") == "0" && got != "" &&
				got == undisturbed,
				"%s after %s restarts; result %s, undisturbed %s", state, c.state(neighbour,
					"Restarts"), got, undisturbed)
			return nil
		})
	c.cancelled(one, steady, load(wellMiB, 60, 600000), undisturbed)
}

// gate returns what holds jobs back at the begin of their scripts until open: one alone may end before another runs.
func (c *cluster) gate(name string) (wait string, open func() error) {
	path := filepath.Join(c.dir, "jobs", name)
	return "until [ -e " + path + " ]; do sleep 0.2; done\n", func() error { return os.WriteFile(path, nil, 0o644) }
}

// cancelled: a job beside a busy one that is cancelled.
func (c *cluster) cancelled(directives, steady, busy, undisturbed string) {
	c.check("cancelled", "a job completes beside a busy one that is cancelled, after a requeue if that end has ended the "+
		"job", "gres/mps/server_log.go; prolog: Epilog", func(r *check) (err error) {
		gate, open := c.gate("cancelled")
		defer func() { err = errors.Join(err, open()) }()
		beside, err := c.submit("beside", directives, gate+steady)
		if err != nil {
			return err
		}
		other, err := c.submit("busy", directives, gate+busy)
		if err != nil {
			return err
		}
		if _, err = c.eventually(40*time.Second, func() (string, bool) {
			s := c.state(beside, "JobState") + " " + c.state(other, "JobState")
			return s, s == "RUNNING RUNNING"
		}); err != nil {
			return err
		}
		if err = open(); err != nil {
			return err
		}
		c.pause(5 * time.Second) // both have begun to compute
		c.says("scancel", other)
		state, err := c.ends(beside, 100*time.Second)
		got := c.result("beside")
		for _, job := range []string{"beside", "busy"} {
			r.text(job, read(filepath.Join(c.dir, "jobs", job+".txt")))
		}
		r.text("carma-report", c.says("carma-report", "--config", filepath.Join(c.dir, "carma.toml"), "--json", "-j",
			beside))
		r.judge(err == nil && state == "COMPLETED" && got != "" && got == undisturbed,
			"%s after %s restarts; result %s, undisturbed %s", state, c.state(beside, "Restarts"), got, undisturbed)
		return nil
	})
}

// result is that of a job's load.
func (c *cluster) result(name string) string {
	_, after, _ := strings.Cut(read(filepath.Join(c.dir, "jobs", name+".txt")), `"result":"`)
	got, _, _ := strings.Cut(after, `"`)
	return got
}

// confined: the device files that jobs can open. The GPU's device node is the part's own,
// so that no access list of the machine is changed.
func (c *cluster) confined() {
	node := filepath.Join(c.kit.dir, "dev", fmt.Sprintf("nvidia%d", c.gpu.Minor))
	try := "if true 3<>" + node + "; then echo opened; fi"
	for _, q := range []struct {
		name, directives, assumes string
		opens                     bool
	}{
		{"confined-with", "#SBATCH --gres=gpu:1\n#CARMA mem=4G", "a job with the GPU opens its node", true},
		{"confined-without", "#SBATCH -p plain", "a job without a GPU opens none", false},
	} {
		c.check(q.name, q.assumes, "gres/confine; docs/admin.md: confinement", func(r *check) error {
			if c.confine() == "none" {
				r.skip("the driver has ModifyDeviceFiles=1, and this Slurm no cgroups: nothing to confine by")
				return nil
			}
			id, err := c.submit(q.name, q.directives, try)
			if err != nil {
				return err
			}
			state, err := c.ends(id, 60*time.Second)
			text := read(filepath.Join(c.dir, "jobs", q.name+".txt"))
			r.text("output", text)
			// Without a driver "no such device" comes after the permission.
			opened := strings.Contains(text, "opened") || strings.Contains(text, "No such device")
			r.judge(err == nil && opened == q.opens && (q.opens || strings.Contains(text, "ermission denied") ||
				strings.Contains(text, "not permitted")), "%s: %.200s", state, text)
			return nil
		})
	}
}
