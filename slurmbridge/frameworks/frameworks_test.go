// SPDX-License-Identifier: Apache-2.0

package frameworks

import (
	"strings"
	"testing"
)

func TestLook(t *testing.T) {
	files := map[string]string{
		"train.py":     "import os\nimport jax.numpy as jnp\nfrom flax import linen\n",
		"tf.py":        "from tensorflow import keras\n",
		"grow.py":      "import tensorflow as tf\ntf.config.experimental.set_memory_growth(gpus[0], True)\n",
		"own.py":       "import os, jax\nos.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'true'\n",
		"gpu.py":       "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n",
		"ds.py":        "import torch, deepspeed as ds\n",
		"llm.py":       "from vllm import LLM\nllm = LLM(model, gpu_memory_utilization = 0.5)\n",
		"src/plain.py": "import torch\n# import jax\nimportant = 'jax'\nimport jaxtyping\n",
	}
	read := func(path string) ([]byte, bool) { text, ok := files[path]; return []byte(text), ok }
	job := Job{GPUs: 2, ReserveMiB: 14000, FullMiB: 40536}
	for _, c := range []struct {
		script string
		want   []string // name, where, a part of what is said
	}{
		{"python train.py\n", []string{"jax|train.py line 2|JAX takes 75 % of the GPU at its start unless told " +
			"otherwise; CARMA sets XLA_PYTHON_CLIENT_PREALLOCATE=false"}},
		{"exec srun python3 -u ./own.py --x=1\n", nil}, // ./own.py is not there under that name
		{"srun python3 -u own.py --x=1\n", []string{"jax|own.py line 1|XLA_PYTHON_CLIENT_PREALLOCATE is set in the " +
			"script and is kept"}},
		{"python tf.py; python train.py\n", []string{"tensorflow|tf.py line 1|CARMA sets TF_FORCE_GPU_ALLOW_GROWTH=true",
			"jax|train.py line 2|75 %"}},
		{"python grow.py\n", []string{"tensorflow|grow.py line 1|asks TensorFlow for growth"}},
		{"export TF_FORCE_GPU_ALLOW_GROWTH=false\npython tf.py\n", []string{"tensorflow|tf.py line 1|is set in the script"}},
		{"python src/plain.py\n", nil},
		{"# python train.py\n#SBATCH -o train.py\n", nil},
		{"python - <<EOF\nimport jax\nEOF\n", []string{"jax|job.sh line 2|75 %"}},
		{"vllm serve model\n", []string{"vllm|job.sh line 1|with 14000 MiB booked at most 0.31: --gpu-memory-utilization " +
			"$CARMA_MEM_FRACTION"}},
		{"python -m vllm.entrypoints.openai.api_server\n", []string{"vllm|job.sh line 1|0.9 of the whole GPU"}},
		{"python -m sglang.launch_server\n", []string{"sglang|job.sh line 1|--mem-fraction-static"}},
		{"vllm serve model \\\n  --gpu-memory-utilization $CARMA_MEM_FRACTION\n", []string{"vllm|job.sh line 1|vLLM takes " +
			"$CARMA_MEM_FRACTION of the whole GPU at its start, which is within what is booked"}},
		{"# --gpu-memory-utilization 0.5\nvllm serve model\n", []string{"vllm|job.sh line 2|vLLM takes 0.9 of the"}},
		{"vllm serve model --gpu-memory-utilization=0.30\n", []string{"vllm|job.sh line 1|vLLM takes 0.30 of the whole GPU"}},
		{"vllm serve model --gpu-memory-utilization $U\n", []string{"vllm|job.sh line 1|vLLM takes a part of the whole GPU"}},
		{"python llm.py\n", []string{"vllm|llm.py line 1|vLLM takes 0.5 of the whole GPU at its start"}},
		{"python -m sglang.launch_server --mem-fraction-static \"${CARMA_MEM_FRACTION}\"\n",
			[]string{"sglang|job.sh line 1|SGLang takes $CARMA_MEM_FRACTION of the whole GPU"}},
		{"torchrun --nproc_per_node=2 x.py\n", []string{"torchrun|job.sh line 1|one process on each of 2 GPUs"}},
		{"OMP_NUM_THREADS=1 /opt/bin/torchrun --nproc-per-node 4 x.py\n",
			[]string{"torchrun|job.sh line 1|4 processes on 2 GPUs: mem= is for all"}},
		{"torchrun x.py\n", []string{"torchrun|job.sh line 1|for 1 of the 2 GPUs of a node"}},
		{"python -m torch.distributed.run --nproc_per_node=2 x.py\n", []string{"torchrun|job.sh line 1|one process on each"}},
		{"accelerate launch --num_processes 8 x.py\n", []string{"accelerate|job.sh line 1|8 processes on 2 GPUs"}},
		{"accelerate launch x.py\n", []string{"accelerate|job.sh line 1|one process for each GPU unless told"}},
		{"deepspeed --num_gpus=2 x.py\n", []string{"deepspeed|job.sh line 1|one process on each of 2 GPUs; say " +
			"parallel=zero1"}},
		{"python ds.py\n", []string{"deepspeed|ds.py line 1|one process for each GPU"}},
		{"mpirun -np 4 ./solver\n", []string{"mpirun|job.sh line 1|4 processes on 2 GPUs"}},
		{"cd x && mpiexec ./solver\n", []string{"mpirun|job.sh line 1|one process for each task of the job"}},
		{"export CUDA_VISIBLE_DEVICES=0\ntorchrun x.py\n", []string{"devices|job.sh line 1|set in the script and is kept",
			"torchrun|job.sh line 2|for 1 of the 2 GPUs of a node"}},
		{"python gpu.py\n", []string{"devices|gpu.py line 2|leave the line out"}},
		{"echo torchrun; cat vllm.txt\n", nil},

		// Behind programs with options of their own, in quotes, and in a variable.
		{"srun -l --container-image img torchrun --nproc_per_node=2 x.py\n", []string{"torchrun|job.sh line 1|one process"}},
		{"srun apptainer exec --nv img.sif accelerate launch x.py\n", []string{"accelerate|job.sh line 1|one process"}},
		{"srun bash -c 'torchrun --nproc_per_node 2 x.py'\n", []string{"torchrun|job.sh line 1|one process on each of 2"}},
		{"export L=\"accelerate launch \\\n --num_processes 2\"\n", []string{"accelerate|job.sh line 1|one process on"}},
		{"CMD='deepspeed --num_gpus 2'\n", []string{"deepspeed|job.sh line 1|one process on each of 2 GPUs"}},
		{"time -p mpirun -np 2 ./solver\n", []string{"mpirun|job.sh line 1|one process on each of 2 GPUs"}},
		{"ray job submit --no-wait \\\n -- vllm serve model\n", []string{"vllm|job.sh line 1|vLLM takes 0.9"}},
		{"./in_container \\\n torchrun --nproc_per_node=2 x.py\n", []string{"torchrun|job.sh line 1|one process on each"}},
		{"conda run -n vllm python x.py\nconda activate vllm\nuv pip install vllm\nuv add deepspeed\n", nil},
		{"pip install torch \\\n vllm\n", nil},
		{"srun -J deepspeed python x.py deepspeed\nsrun bash x.sh torchrun\nNAME=\"vllm of today\"\n", nil},
		{"torchrun --nproc_per_node\n", []string{"torchrun|job.sh line 1|for 1 of the 2"}},

		// As clusters' documentation writes the commands: on several lines, with variables, for several nodes.
		{"# a \\\nsrun torchrun \\\n  --nnodes=1 \\\n  --nproc_per_node=2 \\\n  x.py\n",
			[]string{"torchrun|job.sh line 2|one process on each of 2 GPUs"}},
		{"N=4\ntorchrun \\\n --nproc-per-node \"$N\" x.py\n", []string{"torchrun|job.sh line 2|4 processes on 2 GPUs"}},
		{"export N=${M}  # of a node\nM=2\nexport L=\"python -u -m torch.distributed.run \\\n --nproc_per_node $N \\\n\"\n",
			[]string{"torchrun|job.sh line 3|one process on each of 2 GPUs"}},
		{"torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE x.py\n", []string{"torchrun|job.sh line 1|one process on each of 2"}},
		{"torchrun --nproc_per_node=gpu x.py\n", []string{"torchrun|job.sh line 1|one process on each of 2 GPUs"}},
		{"torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) x.py\n",
			[]string{"torchrun|job.sh line 1|as many processes as the script computes"}},
		{"N=1\nN=2\ntorchrun --nproc_per_node=$N x.py\n", []string{"torchrun|job.sh line 3|as many processes as"}},
		{"N=$N\ntorchrun --nproc_per_node=$N x.py\n", []string{"torchrun|job.sh line 2|as many processes as"}},
		{"A=(\n  --nproc_per_node=2\n)\ntorchrun \"${A[@]}\" x.py\n", []string{"torchrun|job.sh line 4|one process on each"}},
		{"A=(--nproc_per_node 2)\ntorchrun ${A[@]} x.py\n", []string{"torchrun|job.sh line 2|one process on each of 2 GPUs"}},
		{"torchrun $ARGS x.py\n", []string{"torchrun|job.sh line 1|for 1 of the 2 GPUs of a node"}},
		{"torchrun --nproc_per_node=2 \\", []string{"torchrun|job.sh line 1|one process on each of 2 GPUs"}},
		{"accelerate launch \\\n --num_processes $((NODES * 2)) x.py\n",
			[]string{"accelerate|job.sh line 1|as many processes as"}},
		{"mpirun -np 4 -npernode 2 ./solver\n", []string{"mpirun|job.sh line 1|one process on each of 2 GPUs"}},
		{"mpirun -np $SLURM_NTASKS ./solver\n", []string{"mpirun|job.sh line 1|as many processes as"}},
	} {
		got := Look("job.sh", []byte(c.script), job, read)
		ok := len(got) == len(c.want)
		for i := 0; ok && i < len(got); i++ {
			w := strings.SplitN(c.want[i], "|", 3)
			ok = got[i].Name == w[0] && got[i].Where == w[1] && strings.Contains(got[i].Says, w[2])
		}
		if !ok {
			t.Errorf("%q:\ngot  %+v\nwant %q", c.script, got, c.want)
		}
	}
}

// Of a job on several nodes, some launchers are told the processes of all nodes together.
func TestLookSeveralNodes(t *testing.T) {
	for line, want := range map[string]string{
		"accelerate launch --num_processes 8 --num_machines 4 x.py": "one process on each of 2 GPUs",
		"mpirun -np 8 ./solver":            "one process on each of 2 GPUs",
		"mpirun -np 16 ./solver":           "4 processes on 2 GPUs",
		"torchrun --nproc_per_node=8 x.py": "8 processes on 2 GPUs",
	} {
		got := Look("job.sh", []byte(line), Job{GPUs: 2, Nodes: 4}, func(string) ([]byte, bool) { return nil, false })
		if len(got) != 1 || !strings.Contains(got[0].Says, want) {
			t.Errorf("%q: got %+v, want %q", line, got, want)
		}
	}
}

func FuzzLook(f *testing.F) {
	f.Add([]byte("torchrun --nproc_per_node=2 a.py\nimport jax, os\n"))
	f.Add([]byte("import\t,=-m vllm;mpirun -n"))
	f.Fuzz(func(t *testing.T, script []byte) {
		Look("s", script, Job{}, func(string) ([]byte, bool) { return script, true })
	})
}
