# SPDX-License-Identifier: Apache-2.0
"""Training scripts of fifteen kinds, public ones but for one, unchanged, each traced by one command.

Their sources are fetched with git at the versions named here, into
${XDG_CACHE_HOME:-~/.cache}/carma-trace. TRACE_GIT names a folder or an address
with clones OWNER/NAME below it, where github.com cannot be reached. What the
scripts read is made here, small and of any content. What cannot be fetched is
not traced; the last line says how many were.
"""

import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import test_carma_trace  # noqa: E402

TRACER = os.path.join(HERE, "carma_trace.py")
ADDRESS = os.environ.get("TRACE_GIT") or "https://github.com"
if os.path.isdir(ADDRESS):
    ADDRESS = "file://" + os.path.abspath(ADDRESS)
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "carma-trace")

# Repository, tag or commit, folders that are needed, the folder of its packages, the name that pip knows it by.
SOURCES = {
    "timm": ("huggingface/pytorch-image-models", "v1.0.15", ("timm",), ".", "timm"),
    "accelerate": ("huggingface/accelerate", "v1.6.0", ("src", "examples"), "src", "accelerate"),
    "accelerate of 2023": ("huggingface/accelerate", "v0.23.0", ("src",), "src", "accelerate"),  # as transformers
    "hub": ("huggingface/huggingface_hub", "v0.30.2", ("src",), "src", "huggingface-hub"),
    "transformers": ("huggingface/transformers", "v4.33.0", ("src",), "src", "transformers"),
    "lightning": ("Lightning-AI/pytorch-lightning", "2.5.1", ("src", "examples"), "src", "lightning"),
    "utilities": ("Lightning-AI/utilities", "v0.14.3", ("src",), "src", "lightning-utilities"),
    "torchmetrics": ("Lightning-AI/torchmetrics", "v1.7.1", ("src",), "src", "torchmetrics"),
    "vision": ("pytorch/vision", "v0.21.0", ("references/classification",), "", ""),
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8",
                 ("mnist", "imagenet", "dcgan", "vae"), "", ""),
    "makemore": ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4", (), "", ""),
    "PyTorch-GAN": ("eriklindernoren/PyTorch-GAN", "36d3c77e5ff20ebe0aeefd322326a134a279b93e",
                    ("implementations/cyclegan",), "", ""),
    "LoRA": ("microsoft/LoRA", "c4593f060e6a368d7bb5af5273b8e42810cdef90",
             ("loralib", "examples/NLG/src"), ".", ""),
    "nanoGPT": ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", ("data",), "", ""),
}


def git(folder, *args):
    return subprocess.run(["git", "-c", "advice.detachedHead=false", "-C", folder, *args], check=True,
                          capture_output=True, text=True, env=dict(os.environ, GIT_TERMINAL_PROMPT="0"))


@functools.cache
def fetched(name):
    """The folder of a source, or None if it cannot be had."""
    repository, version, folders, *_ = SOURCES[name]
    into = os.path.join(CACHE, repository.replace("/", "+") + "@" + version)
    if os.path.isdir(into):
        return into
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        try:
            git(work, "init", "-q")
            git(work, "remote", "add", "origin", f"{ADDRESS}/{repository}")
            git(work, "config", "remote.origin.promisor", "true")
            git(work, "config", "remote.origin.partialclonefilter", "blob:none")
            git(work, "sparse-checkout", "set", *folders)
            git(work, "fetch", "-q", "--depth", "1", "--filter=blob:none", "origin", version)
            git(work, "checkout", "-q", "FETCH_HEAD")
        except subprocess.CalledProcessError as err:
            print(f"carma_trace: {ADDRESS}/{repository} cannot be fetched: {err.stderr.partition(chr(10))[0][:200]}", flush=True)
            return None
        os.rename(work, into)
        os.mkdir(work)
    return into


# What the scripts read, made in the folder that they run in.


def digits(folder):
    for name, count in (("train", 6000), ("t10k", 256)):
        raw = os.path.join(folder, "MNIST", "raw")
        os.makedirs(raw, exist_ok=True)
        for kind, head in (("images-idx3", (2051, count, 28, 28)), ("labels-idx1", (2049, count))):
            with open(os.path.join(raw, f"{name}-{kind}-ubyte"), "wb") as f:
                f.write(b"".join(n.to_bytes(4, "big") for n in head) + bytes(count * (784 if len(head) > 2 else 1)))


def images(folder):
    from PIL import Image
    for part in ("train", "val"):
        for label in range(10):
            os.makedirs(os.path.join(folder, part, str(label)), exist_ok=True)
            for i in range(16):
                Image.new("RGB", (256, 256)).save(os.path.join(folder, part, str(label), f"{i}.jpg"))


def pets(folder):
    from PIL import Image
    os.makedirs(folder)
    for i in range(240):
        Image.new("RGB", (64, 64)).save(os.path.join(folder, f"{'cat' if i % 2 else 'dog'}_{i}.jpg"))


def numbers(folder):
    import numpy
    os.makedirs(folder, exist_ok=True)
    for part in ("train", "val"):
        (numpy.arange(20000) % 50000).astype("uint16").tofile(os.path.join(folder, part + ".bin"))


def words(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("a b c d e f g h\n" * 40000)


def pairs(folder):
    from PIL import Image
    for part in ("train/A", "train/B", "test/A", "test/B"):
        os.makedirs(os.path.join(folder, part))
        for i in range(12):
            Image.new("RGB", (256, 256)).save(os.path.join(folder, part, f"{i}.jpg"))


def completions(folder):
    os.makedirs(folder)
    for part in ("train", "valid"):
        with open(os.path.join(folder, part + ".jsonl"), "w", encoding="utf-8") as f:
            f.write('{"context": [100, 101, 102], "completion": [200, 201, 202]}\n' * 256)


def trainer(path):
    with open(path, "w", encoding="utf-8") as f:
        f.write(test_carma_trace.TRAINER)


# Weights where the hub's library finds them without a network.
RESNET = """
import os, sys, timm
from safetensors.torch import save_model
home = os.path.join(sys.argv[1], "hub", "models--timm--resnet50d.ra2_in1k")
os.makedirs(os.path.join(home, "refs"))
os.makedirs(os.path.join(home, "snapshots", "0"))
open(os.path.join(home, "refs", "main"), "w").write("0")
save_model(timm.create_model("resnet50d"), os.path.join(home, "snapshots", "0", "model.safetensors"))
"""

# transformers imports tokenizers, which is a compiled package that Debian 13 lacks; a training step calls none of it.
# Where it is not installed, names stand in for it.
STAND_IN = """
import sys, types
class Any:
    def __init__(self, *args, **kwargs): pass
def module(name):
    made = types.ModuleType(name)
    def get(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return type(attribute, (Any,), {})
    made.__getattr__ = get
    return made
__getattr__ = module(__name__).__getattr__
for part in ("decoders", "models", "normalizers", "pre_tokenizers", "processors", "trainers", "implementations"):
    sys.modules[__name__ + "." + part] = globals()[part] = module(__name__ + "." + part)
"""

LIT = ("lightning", "utilities", "torchmetrics")

# Kind, sources, what makes its data and where (from the script's folder), folder of the script, its command, what the
# trace says.
PUBLIC = (
    ("PyTorch's examples: MNIST", ("examples",), [(digits, "../data")], "mnist", "main.py --batch-size 64",
     ["batch 64 32", "optimizer Adadelta"]),
    ("PyTorch's examples: ImageNet", ("examples",), [], "imagenet", "main.py --dummy -b 16 -a resnet18",
     ["batch 16 8", "optimizer SGD"]),
    ("PyTorch's examples: DCGAN", ("examples",), [], "dcgan", "main.py --dataset fake --accel",
     ["batch 64 32", "optimizer Adam"]),
    ("PyTorch's examples: VAE", ("examples",), [(digits, "../data")], "vae", "main.py --batch-size 128",
     ["batch 128 64", "optimizer Adam"]),
    ("torchvision's references", ("vision",), [(images, "images")], "references/classification",
     "train.py --data-path images --model mobilenet_v3_large --batch-size 32 --amp --opt rmsprop",
     ["batch 32 16", "optimizer RMSprop", "precision amp-float16"]),
    ("timm", ("timm", "hub"), [(images, "images")], ".",
     "train.py --data-dir images --model resnet18 --batch-size 16 --amp --num-classes 10",
     ["batch 16 8", "optimizer SGD", "precision amp-float16"]),
    # A script of ours: transformers' own read their data through packages that Debian lacks.
    ("transformers' Trainer", ("transformers", "hub", "accelerate of 2023"), [(trainer, "ours.py")], ".", "ours.py",
     ["batch 16 8", "optimizer AdamW"]),
    ("Accelerate", ("accelerate", "hub", "timm"), [(pets, "pets")], "examples", "cv_example.py --data_dir pets",
     ["batch 64 32", "optimizer Adam"]),
    ("Lightning", (*LIT,), [(words, "data/wikitext-2.txt")], "examples/pytorch/basics", "transformer.py",
     ["batch 20 10", "optimizer SGD"]),
    ("Lightning, two optimizers", (*LIT,), [(digits, "data")], "examples/pytorch/domain_templates",
     "generative_adversarial_net.py", ["optimizer Adam"]),
    ("Fabric", (*LIT,), [(digits, "../../../Datasets")], "examples/fabric/image_classifier",
     "train_fabric.py --batch-size 32", ["batch 32 16", "optimizer Adadelta"]),
    ("nanoGPT", ("nanoGPT",), [(numbers, "data/openwebtext")], ".",
     "train.py --batch_size=4 --block_size=256 --gradient_accumulation_steps=2 --eval_iters=1",
     ["batch 4 2", "optimizer AdamW", "precision amp-bfloat16", "torch.compile"]),
    ("makemore", ("makemore",), [], ".", "makemore.py --device cuda", ["batch 32 16", "optimizer AdamW"]),
    ("CycleGAN", ("PyTorch-GAN",), [(pairs, "../../data/monet2photo")], "implementations/cyclegan", "cyclegan.py",
     ["batch 1 2", "optimizer Adam", "another DataLoader has batches of 5"]),
    ("LoRA", ("LoRA",), [(completions, "data/e2e")], "examples/NLG",
     "torchrun --nproc_per_node=1 src/gpt2_ft.py --platform local --train_data data/e2e/train.jsonl "
     "--valid_data data/e2e/valid.jsonl --train_batch_size 8 --seq_len 512 --max_epoch 5",
     ["batch 8 4", "optimizer AdamW", "parallel ddp"]),
)


def installed(site, name, version):
    """What pip would note of a package, and some ask for."""
    info = os.path.join(site, f"{name.replace('-', '_')}-{version}.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as f:
        f.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def has(package):
    return importlib.util.find_spec(package) is not None


@unittest.skipUnless(has("torch") and has("torchvision"), "PyTorch and torchvision are not installed")
class PublicScripts(unittest.TestCase):
    def traced(self, work, sources, data, folder, command):
        """Runs one command in a copy of the script's repository."""
        copy = os.path.join(work, "script")
        subprocess.run(["cp", "-r", sources[0][1], copy], check=True)
        site = os.path.join(work, "site")
        os.mkdir(site)
        paths = [site]
        for name, at in sources:
            *_, packages, pip = SOURCES[name]
            if packages:
                paths.append(os.path.normpath(os.path.join(at, packages)))
            if pip:
                installed(site, pip, SOURCES[name][1].removeprefix("v"))
        names = [name for name, _ in sources]
        if "transformers" in names and not has("tokenizers"):
            with open(os.path.join(site, "tokenizers.py"), "w", encoding="utf-8") as f:
                f.write(STAND_IN)
            installed(site, "tokenizers", "0.13.3")
        env = dict(os.environ, PYTHONPATH=":".join(paths), HF_HUB_OFFLINE="1", HF_HOME=os.path.join(work, "hf"),
                   PYTHONDONTWRITEBYTECODE="1")
        env.pop("RANK", None)
        at = os.path.join(copy, folder)
        for make, where in data:
            make(os.path.join(at, where))
        if names[0] == "accelerate":
            subprocess.run([sys.executable, "-c", RESNET, os.path.join(work, "hf")], env=env, check=True)
        return subprocess.run([sys.executable, TRACER, *command.split()], cwd=at, env=env, capture_output=True,
                              text=True, timeout=1800)

    def test_public_scripts(self):
        done, lacking = 0, []
        for kind, needs, data, folder, command, says in PUBLIC:
            sources = [(name, fetched(name)) for name in needs]
            if any(at is None for _, at in sources):
                lacking.append(kind)
                continue
            with self.subTest(kind), tempfile.TemporaryDirectory() as work:
                run = self.traced(work, sources, data, folder, command)
                self.assertEqual(run.returncode, 0, run.stderr[-2000:])
                self.assertIn("#CARMA| end\n", run.stdout)
                for line in says:
                    self.assertIn(line, run.stdout)
                letters = set(re.findall(r"(?<= )[pgoa](?=\d)", "".join(
                    line + "\n" for line in run.stdout.splitlines() if line.startswith("#CARMA| s "))))
                self.assertLessEqual({"p", "g", "a"}, letters)
                done += 1
        if "transformers' Trainer" not in lacking and not has("tokenizers"):
            print("carma_trace: tokenizers is not installed: names stood in for it", flush=True)
        print(f"carma_trace: {done} of {len(PUBLIC)} kinds of scripts traced"
              + (f"; not fetched: {', '.join(lacking)}" if lacking else ""), flush=True)


if __name__ == "__main__":
    unittest.main()
