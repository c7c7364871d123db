# SPDX-License-Identifier: Apache-2.0
"""Which program a command runs."""

import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import carma_command  # noqa: E402

BATCH = """#!/bin/bash
#SBATCH --gres=gpu:2
# python never.py
module load cuda
source venv/bin/activate
export OMP_NUM_THREADS=4
LR=0.1; DATA='a b'
BATCH=${BATCH:-32}
STAMP=$(date +%s)
mkdir -p out_$STAMP && cd sub || exit 1
cat >config.yaml <<EOF
python in_a_text.py
EOF
echo "starting python" > log
python prepare.py
for seed in 1 2 3; do
    srun --ntasks 2 --gpus-per-task=1 python -u train.py --lr $LR --data "$DATA" \\
        --batch-size ${BATCH} --seed "$seed" "$@" 2>&1 | tee log.txt
done
python final.py --name $STAMP
"""


class Commands(unittest.TestCase):
    def test_typed(self):
        for line, words, env in (
                ("train.py --lr 1", ["train.py", "--lr", "1"], ()),
                ("python -u -W ignore train.py -m x", ["train.py", "-m", "x"], ()),
                ("python3.11 -m pkg.train --lr 1", ["-m", "pkg.train", "--lr", "1"], ()),
                ("-m pkg.train a", ["-m", "pkg.train", "a"], ()),
                ("torchrun --nproc_per_node 4 --standalone train.py a", ["train.py", "a"], ("RANK",)),
                ("python -m torch.distributed.run --nnodes=1 -m pkg a", ["-m", "pkg", "a"], ("WORLD_SIZE",)),
                ("python -m torch.distributed.launch train.py a", ["train.py", "--local-rank=0", "a"], ("RANK",)),
                ("accelerate launch --mixed_precision bf16 t.py a", ["t.py", "a"], ("ACCELERATE_MIXED_PRECISION",)),
                ("deepspeed --num_gpus 2 t.py --deepspeed d.json", ["t.py", "--local_rank=0", "--deepspeed", "d.json"],
                 ("LOCAL_RANK",)),
                ("A=1 srun -n 4 env B=2 nice -n 5 python t.py", ["t.py"], ("A", "B", "SLURM_PROCID"))):
            with self.subTest(line):
                command, = carma_command.of(line.split())
                self.assertEqual(command.words(), words)
                self.assertLessEqual(set(env), set(command.env))

    def test_refused(self):
        for line, why in (("python -c pass", "no script"), ("python", "without a script"),
                          ("torchrun --nproc_per_node 4", "names no script"),
                          ("apptainer exec x.sif python t.py", "container"),
                          ("accelerate launch --use_fsdp t.py", "FSDP")):
            with self.subTest(line), self.assertRaisesRegex(carma_command.Unclear, why):
                carma_command.of(line.split())

    def batch(self, text, *args):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.sh")
            os.makedirs(os.path.join(folder, "venv", "bin"))
            for name in ("activate", "python"):
                os.close(os.open(os.path.join(folder, "venv", "bin", name), os.O_CREAT))
            with open(os.path.join(folder, "inner.sh"), "w", encoding="utf-8") as f:
                f.write("torchrun train.py $1\n")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            batch = carma_command.Batch(path, args, env={}, cwd=folder)
            batch.read(path)
            for found in batch.found:
                found.cwd = os.path.relpath(found.cwd, folder)
                found.python = found.python and os.path.relpath(found.python, folder)
        return batch

    def test_batch_script(self):
        batch = self.batch(BATCH, "--epochs", "3")
        self.assertEqual([c.words() for c in batch.found], [["prepare.py"], [
            "train.py", "--lr", "0.1", "--data", "a b", "--batch-size", "32", "--seed", "1", "--epochs", "3"]])
        self.assertEqual({c.cwd for c in batch.found}, {"sub"})
        self.assertEqual({c.python for c in batch.found}, {"venv/bin/python"})
        self.assertEqual(batch.found[1].env["OMP_NUM_THREADS"], "4")
        self.assertEqual(len(batch.unclear), 1)
        self.assertRegex(batch.unclear[0], r"job.sh, line 20: \$STAMP is known only within the job \(line 9 ")

    def test_other_batch_scripts(self):
        for text, words in (
                ("bash inner.sh 7", ["train.py", "7"]),
                ("if [ -f x ]; then python a.py; fi", ["a.py"]),
                ("time (python a.py >log 2>&1) &", ["a.py"]),
                ("N=$((1 + 2))\npython a.py", ["a.py"]),
                ("eval `x`\npython 'a b.py' \"$SLURM_JOB_ID\"", ["a b.py", "1"])):
            with self.subTest(text):
                self.assertEqual([c.words() for c in self.batch("#!/bin/sh\n" + text + "\n").found], [words])

    def test_values_of_the_launcher(self):
        for text, words in (
                ("H=$(scontrol show hostnames $L | head -n 1)\nsrun torchrun --rdzv_endpoint=\"$H:29500\" t.py -b 4",
                 ["t.py", "-b", "4"]),
                ("torchrun --nproc_per_node $(nvidia-smi -L | wc -l) t.py", ["t.py"]),
                ("N=$((A * $(cat n)))\naccelerate launch --num_processes $N --num_machines ${M[0]} t.py", ["t.py"]),
                ("export L=\"python -m torch.distributed.run --role `hostname`: --tee 3\"\n"
                 "srun bash -c '$L t.py'", ["t.py"]),
                ("export T=${T:=t.py}\nsrun ${X[@]} torchrun \"${A[@]}\" $T", ["t.py"]),
                ("srun --jobid `id` python t.py", ["t.py"])):
            with self.subTest(text):
                self.assertEqual([c.words() for c in self.batch("#!/bin/sh\n" + text + "\n").found], [words])
        self.assertRegex(self.batch("#!/bin/sh\npython `pwd`/t.py\n").found[0].script, "^/.*/t.py$")
        for text, why in (
                ("H=$(hostname)\ntorchrun t.py --host $H", r"line 3: \$H is known only within the job \(line 2 "),
                ("torchrun $(cat name)/t.py", "which only the job knows"),
                ("accelerate launch --config_file ${F[0]} t.py", "which only the job knows"),
                ("L=torchrun\nsrun bash -c \"$L t.py `id`\"", "line 3: the line has"),
                ("N=1\nN=$(cat n)\npython t.py $N", r"\$N is known only within the job \(line 3"),
                ("for N in $(seq 4); do\npython t.py $N\ndone", r"\$N is known only within the job \(line 2")):
            with self.subTest(text):
                batch = self.batch("#!/bin/sh\n" + text + "\n")
                self.assertEqual(batch.found, [])
                self.assertRegex(batch.unclear[0], why)

    def test_commands_of_a_shell(self):
        for text, words in (
                ("srun bash -c 'torchrun --node_rank $SLURM_PROCID t.py --x 1'", ["t.py", "--x", "1"]),
                ("N=8\nbash -lc \"cd sub && python t.py $N\"", ["t.py", "8"]),
                ("srun --container-mounts ./a.py:/b/a.py --x=a:/b.py python t.py", ["t.py"]),
                ("srun bash -l -c 'python t.py'", ["t.py"]),
                ("bash -euo pipefail -c 'python t.py'", ["t.py"]),
                ("echo \ue0009\ue001\nuv run --with accelerate python t.py \ue0009\ue001", ["t.py", "?9?"]),
                ("uv run python t.py", ["t.py"])):
            with self.subTest(text):
                batch = self.batch("#!/bin/sh\n" + text + "\n")
                self.assertEqual([(c.words(), c.launcher) for c in batch.found],
                                 [(words, "torchrun" if "torchrun" in text else "")])
        batch = self.batch("#!/bin/sh\nexport A=1\nA=2 B=3 srun bash -c 'cd /sub && python t.py $A'\npython u.py $A $B\n")
        self.assertEqual([c.words() for c in batch.found], [["t.py", "2"], ["u.py", "1"]])
        self.assertEqual([c.env.get("B") for c in batch.found], ["3", None])
        self.assertTrue(batch.found[0].cwd.endswith("/sub"))
        self.assertFalse(batch.found[1].cwd.endswith("/sub"))
        batch = self.batch("#!/bin/sh\nuv pip install deepspeed\npoetry add accelerate\n")
        self.assertEqual((batch.found, batch.unclear), ([], []))
        batch = self.batch("#!/bin/sh\nsingularity run x.sif bash -c 'python t.py'\n")
        self.assertEqual(batch.found, [])
        self.assertRegex(batch.unclear[0], "container of singularity")

    def test_words_with_a_number_sign(self):
        for text, words in (
                ("python t.py --name=a#b # a comment", ["t.py", "--name=a#b"]),
                ("python t.py 'a #b' \"# c\" \\#d", ["t.py", "a #b", "# c", "#d"]),
                ("(( N = 1 << 2 ))\npython t.py", ["t.py"]),
                ("SIZE=$((1<<20))\npython t.py", ["t.py"])):
            with self.subTest(text):
                self.assertEqual([c.words() for c in self.batch("#!/bin/sh\n" + text + "\n").found], [words])

    def test_where_it_starts(self):
        for text, cwd in (
                ("#SBATCH --gres=gpu:1 --chdir=sub\npython t.py", "sub"),
                ("#SBATCH -D sub\ncd other\npython t.py", "sub/other"),
                ("srun --chdir=sub python t.py", "sub"),
                ("srun -n 2 -D sub python t.py", "sub"),
                ("python t.py --chdir=sub", ".")):
            with self.subTest(text):
                self.assertEqual([c.cwd for c in self.batch("#!/bin/sh\n" + text + "\n").found], [cwd])

    def test_one_program_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("prepare.py", "import os"), ("loop.py", "loss.backward()"), ("final.py", "print(1)"),
                               ("train_net.py", "import net; net.main()")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
            for commands, want in (
                    (["prepare.py", "loop.py", "final.py"], "loop.py"),
                    (["prepare.py", "train_net.py", "final.py"], "train_net.py"),
                    (["loop.py", "torchrun train_net.py"], "train_net.py"),
                    (["final.py"], "final.py"),
                    (["prepare.py", "-m loop"], "loop")):
                with self.subTest(commands):
                    found = [carma_command.typed(c.split() if " " in c and c[0] != "-" else ["python", *c.split()])
                             for c in commands]
                    for c in found:
                        c.cwd = folder
                    command = carma_command.training(found)
                    self.assertEqual(command.module or command.script, want)

    def test_nothing_to_trace(self):
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as f:
            f.write("#!/bin/sh\n./a.out\n")
            f.flush()
            with self.assertRaisesRegex(carma_command.Unclear, "runs no Python program"):
                carma_command.of([f.name])


if __name__ == "__main__":
    unittest.main()
