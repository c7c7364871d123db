// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"strings"
	"testing"

	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// bySlurm is the site under placement.mode "slurm". A GPU has 37 shards:
// 40536 - 2048 MiB in whole GiB.
func bySlurm() Site {
	s := site()
	s.GresPrefix, s.Shards, s.MaxJobs = "gres/", true, 4
	return s
}

func TestShardsTakeTheGPUsPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Job)
		want TRES
	}{
		{"--gres=gpu:1", func(j *Job) { j.TRES.PerNode = "gres/gpu:1" }, TRES{PerNode: "gres/shard:10"}},
		{"--gres=gpu:a100:1", func(j *Job) { j.TRES.PerNode = "gres/gpu:a100:1" }, TRES{PerNode: "gres/shard:a100:10"}},
		{"--gres=x:3,gpu", func(j *Job) { j.TRES.PerNode = "gres/x:3,gres/gpu" }, TRES{PerNode: "gres/x:3,gres/shard:10"}},
		{"--gpus=1", func(j *Job) { j.TRES.PerJob = "gres/gpu:1" }, TRES{PerNode: "gres/shard:10"}},
		{"--gpus=a100:4 -N4", func(j *Job) { j.TRES.PerJob, j.MinNodes = "gres/gpu:a100:4", 4 },
			TRES{PerNode: "gres/shard:a100:10"}},
		{"--gpus-per-socket=1 --sockets-per-node=1", func(j *Job) { j.TRES.PerSocket, j.SocketsPerNode = "gres/gpu:1", 1 },
			TRES{PerNode: "gres/shard:10"}},
		{"--gpus-per-task=1", func(j *Job) { j.TRES.PerTask = "gres/gpu=1" }, TRES{PerNode: "gres/shard:10"}},
		{"--gpus-per-task=1 -c 2", func(j *Job) { j.TRES.PerTask = "cpu=2,gres/gpu=1" },
			TRES{PerNode: "gres/shard:10", PerTask: "cpu=2"}},
	} {
		j := job(mem10)
		c.set(&j)
		a, err := bySlurm().Annotate(j)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if a.TRES != c.want || a.Mode != jobenv.ModeShared || a.ReserveMiB != 10240 || a.Note != "" {
			t.Errorf("%s: got %+v, want %+v", c.name, a, c.want)
		}
	}
}

// What cannot be met by shards keeps its request, and has whole GPUs.
func TestWholeGPUsBySlurm(t *testing.T) {
	one := func(j *Job) { j.TRES.PerNode = "gres/gpu:1" }
	for _, c := range []struct {
		name, script string
		set          func(*Job)
		note         string
	}{
		{"no estimate", "#CARMA on\n", one, ""},
		{"exclusive", "#CARMA mem=10G policy=exclusive\n", one, ""},
		{"two GPUs", mem10, func(j *Job) { j.TRES.PerNode = "gres/gpu:2" }, "several GPUs"},
		{"more than a GPU's shards", "#CARMA mem=37889M\n", one, "no other job would fit"},
		{"--cpus-per-gpu", mem10, func(j *Job) { one(j); j.NeedsGPU = true }, "goes with whole GPUs"},
		{"step --gres=gpu", mem10 + "srun -n1 --gres=gpu:1 x\n", one, "in a step"},
		{"step --gpus over two lines", mem10 + "srun -n1 \\\n  --gpus=1 x\n", one, "in a step"},
		{"step -G1", mem10 + "time srun -G1 x\n", one, "in a step"},
		{"step --tres-per-task", mem10 + "srun --tres-per-task=cpu:1,gres/gpu:1 x\n", one, "in a step"},
		{"SLURM_GPUS_PER_NODE", mem10 + "torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE x\n", one, "SLURM_GPUS"},
	} {
		j := job(c.script)
		c.set(&j)
		a, err := bySlurm().Annotate(j)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if a.TRES != j.TRES || a.Mode != jobenv.ModeExclusive || a.ReserveMiB != full || !strings.Contains(a.Note, c.note) {
			t.Errorf("%s: got %+v", c.name, a)
		}
	}
}

func TestScriptsThatShare(t *testing.T) {
	for name, c := range map[string]struct {
		line    string
		reserve int64
	}{
		"plain step":            {"srun -n1 python train.py", 10240},
		"GPUs of the program":   {"python train.py --gpus 1", 10240},
		"SLURM_GPUS_ON_NODE":    {"torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE x", 10240},
		"a comment":             {"# srun --gres=gpu:1 was tried", 10240},
		"the line after a step": {"srun x\npython y --gpus 1", 10240},
		"a part of a GiB":       {"#CARMA seq=3\n", 10240},
	} {
		j := job(mem10 + c.line + "\n")
		j.TRES.PerNode = "gres/gpu:1"
		if a, err := bySlurm().Annotate(j); err != nil || a.Mode != jobenv.ModeShared || a.ReserveMiB != c.reserve {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	// At most four jobs share a GPU of 37 shards.
	j := job("#CARMA mem=1G\n")
	j.TRES.PerNode = "gres/gpu:1"
	if a, err := bySlurm().Annotate(j); err != nil || a.ReserveMiB != 9216 || a.EstMiB != 1024 ||
		a.TRES.PerNode != "gres/shard:9" {
		t.Errorf("a small job: %+v, %v", a, err)
	}
	j = job("#CARMA mem=10241M\n")
	j.TRES.PerNode = "gres/gpu:1"
	if a, err := bySlurm().Annotate(j); err != nil || a.ReserveMiB != 11264 || a.EstMiB != 10241 ||
		a.TRES.PerNode != "gres/shard:11" {
		t.Errorf("a part of a GiB: %+v, %v", a, err)
	}
}

// Who books shards by hand is told how to write it; a job of another partition is
// left alone.
func TestShardsByHand(t *testing.T) {
	j := job(mem10)
	j.TRES.PerNode = "gres/shard:5"
	if _, err := bySlurm().Annotate(j); err == nil || !strings.Contains(err.Error(),
		"partition gpu: ask for a GPU, such as --gres=gpu:1") {
		t.Errorf("got %v", err)
	}
	j.Partition = "cpu"
	if a, err := bySlurm().Annotate(j); err != nil || a.Managed {
		t.Errorf("got %+v, %v", a, err)
	}
	j = job(mem10)
	j.TRES.PerNode = "gres:shard:5"
	if _, err := site().Annotate(j); err != nil {
		t.Errorf("under placement.mode \"carma\": %v", err)
	}
}

func TestShardsOf(t *testing.T) {
	if n := config.ShardsOf(full, 2048); n != 37 {
		t.Errorf("got %d shards", n)
	}
	if config.ShardsFor(1) != 1 || config.ShardsFor(1024) != 1 || config.ShardsFor(1025) != 2 || config.MiBOf(2) != 2048 {
		t.Error("shards are not GiB")
	}
	if config.ShardsOf(1024, 2048) != 0 {
		t.Error("a margin above the GPU's memory")
	}
}
