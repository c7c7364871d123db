# SPDX-License-Identifier: Apache-2.0
"""Tests of carma_trace.py; those that trace need PyTorch 2 and say so."""

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock
import weakref

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import carma_patches  # noqa: E402
import carma_recorder  # noqa: E402
import carma_text  # noqa: E402
import carma_trace  # noqa: E402

torch = carma_trace.torch
LINE = re.compile(r"[+-]\d+|~-?\d+|=\d+,\d+|[fdw]\d+|m")


def unfold(text):
    """The events of a text, read by the description in docs/trace.md and not by the program's own code."""
    body = [line.removeprefix("#CARMA| ") for line in text.splitlines()]
    sizes = [w for line in body if line.startswith("s ") for w in line.split()[1:]]
    stream = []
    for token in LINE.findall("".join(line[2:] for line in body if line.startswith("e "))):
        if token[0] == "=":
            distance, length = map(int, token[1:].split(","))
            for _ in range(length):
                stream.append(stream[-distance])
        else:
            stream.append(token)
    events, deep, births = [], 0, []
    for token in stream:
        if token[0] == "+":
            births.append(sizes[int(token[1:])])
            events.append(("+", len(births) - 1))
        elif token[0] == "-":
            events.append(("-", len(births) - int(token[1:])))
        elif token[0] == "~":
            deep += int(token[1:])
            events.append(("-", deep))
        else:
            events.append((token, None))
    return births, events


def peak(text, second=False):
    """The most bytes that are alive at once."""
    births, events = unfold(text)
    sizes = [int((w[1:].split(":") * 2)[1 if second else 0]) for w in births]
    live = most = 0
    for what, n in events:
        live += {"+": 1, "-": -1}.get(what, 0) * (sizes[n] if n is not None else 0)
        most = max(most, live)
    return most


class WithoutTorch(unittest.TestCase):
    def test_says_that_pytorch_is_missing(self):
        code = "import sys; sys.modules['torch'] = None; import carma_trace; carma_trace.main(['x.py'])"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE)
        self.assertEqual(run.returncode, 1)
        self.assertIn("PyTorch is not installed", run.stderr)

    def result(self, births, kinds=None):
        events = [("+", i, n) for i, n in enumerate(births)] + [("-", i) for i in reversed(range(len(births)))]
        return {"events": events, "kinds": kinds or {}, "unseen": {}, "settings": {}, "convolutions": [],
                "torch": "2.6.0", "steps": 2}

    def test_folds_and_unfolds(self):
        births = [512, 1024, 4096, 8] * 50 + [7] + [512, 1024, 4096, 8] * 20
        text = "\n".join(carma_text.text(self.result(births)))
        self.assertLess(len(text), 500)
        sizes, events = unfold(text)
        self.assertEqual([int(w[1:]) for w in sizes], births)
        self.assertEqual([n for what, n in events if what == "-"], list(reversed(range(len(births)))))

    def loop(self, passes, temporary=5000):
        """A step with a loop: each pass keeps 700 bytes for the backward loop, as in a recurrent decoder."""
        events, kept, n = [], [], 0

        def born(size):
            nonlocal n
            events.append(("+", n, size))
            n += 1
            return n - 1

        for _ in range(2):
            for k in range(passes):
                kept.append(born(700))
                some = [born(temporary + j) for j in range(4)]
                events.append(("f", 0))
                events.extend(("-", t) for t in some)
            while kept:
                some = [born(9000), born(100)]
                events.extend(("-", t) for t in (*some, kept.pop()))
        made = self.result([])
        made.update(events=events, kinds={}, convolutions=[(4, 4, (1, 1, 1), 1, 1, 4, False)])
        return made

    def test_a_long_loop_is_thinned(self):
        few, many = self.loop(9), self.loop(6000)
        thin = carma_text.thin((few,))[0]["events"]
        self.assertEqual(carma_text.most_alive(thin), carma_text.most_alive(few["events"]))
        self.assertGreater(len(many["events"]), 150000)
        text = "\n".join(line.removeprefix("#CARMA| ") for line in carma_text.lines(many, 8, self.loop(6000, 2500), 4))
        births, events = unfold(text)
        self.assertLess(len(events), 1 << 16)
        self.assertIn("batch 8 4", text)
        self.assertEqual(births.count("a700"), 12000)
        self.assertEqual(peak(text), max(6000 * 700 + 9100, 6000 * 700 + 4 * 5000 + 6))
        self.assertEqual(peak(text, True), max(6000 * 700 + 9100, 6000 * 700 + 4 * 2500 + 6))

    def test_a_loop_that_keeps_much(self):
        """Too many events even so: one storage stands for small storages with equal lives."""
        def loop(passes, size):
            step, birth = [], 0
            for _ in range(passes):
                step += [("+", birth + j, size + j) for j in range(12)] + [("+", birth + 12, 3 << 20)]
                birth += 13
            for k in reversed(range(birth)):
                step += [("-", k)]
            return dict(self.result([]), events=step + [(e[0], e[1] + birth, *e[2:]) for e in step])

        many, half = loop(1500, 300000), loop(1500, 150000)
        text = "\n".join(line.removeprefix("#CARMA| ") for line in carma_text.lines(many, 8, half, 4))
        births, events = unfold(text)
        self.assertLess(len(events), 1 << 16)
        self.assertIn("batch 8 4", text)
        self.assertEqual(births.count(f"a{3 << 20}"), 3000)
        for k, run in enumerate((many, half)):
            self.assertEqual(sum(carma_text.rounded(int((w[1:].split(":") * 2)[k])) for w in births),
                             sum(carma_text.rounded(e[2]) for e in run["events"] if e[0] == "+"))
        small = carma_text.thin((loop(10, 70000),))[0]
        self.assertEqual(len(small["events"]), 10 * 13 * 4)

    def test_a_loop_that_is_no_loop(self):
        """Storages of different sizes end one after the other: nothing may be left out."""
        events = [("+", n, 1000 * n + 600) for n in range(3000)]
        for n in range(3000):
            events += [("-", 2999 - n), ("+", 3000 + n, 70), ("-", 3000 + n)]
        made = dict(self.result([]), events=events)
        self.assertEqual(carma_text.thin((made,))[0]["events"], events)

    def test_two_batches(self):
        two = "\n".join(carma_text.text(self.result([100, 64, 10]), 8, self.result([100, 32, 5]), 4))
        self.assertIn("\nbatch 8 4\n", two)
        self.assertIn("a100 a64:32 a10:5", two)
        other = "\n".join(carma_text.text(self.result([100, 64]), 8, self.result([100, 32, 5]), 4))
        self.assertIn("\nbatch 8\n", other)
        self.assertIn("single ", other)

    def test_batch_of_a_script(self):
        for argv, place, batch in ((["--lr", "1", "-b", "64"], 2, 64), (["--batch-size=8"], 0, 8), (["x"], None, 0)):
            self.assertEqual(carma_trace.batch_of(argv), (place, batch))
        self.assertEqual(carma_trace.with_batch(["-b", "64", "x"], 0, 32), ["-b", "32", "x"])
        self.assertEqual(carma_trace.with_batch(["--batch-size=64"], 0, 32), ["--batch-size=32"])


PLAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.zeros(64, dtype=torch.long))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=4, pin_memory=True)
total = 0.0
for epoch in range(90):
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        print(f"{loss:.3f} {loss.item()} {torch.cuda.memory_allocated()}")
raise SystemExit("it went on")
"""

ENCODER = """
import torch
from torch import nn
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 100)).to(device)
opt = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(100):
    ids = torch.randint(0, 100, (8, 32), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
"""


# What scripts do beside a plain loop; each has failed once.
IDIOMS = """
import pickle, numpy, torch
from torch import nn
from torch.nn.parallel.distributed import DistributedDataParallel
x, ones = torch.randn(8, 100, device="cuda"), torch.ones(8, dtype=torch.long, device="cuda")
assert x.is_cuda and not torch.zeros(3).is_cuda and not torch.isnan(x).any()
assert torch.where(x > 0)[1].shape == (800,) and (x > 0).nonzero().shape == (800, 2)
assert torch.masked_select(x, x > 0).shape == x[x > 0].shape == torch.unique(x).shape == (800,)
assert x[:, x[0] > 0].shape == (8, 100) and torch.unique(x, return_inverse=True)[1].shape == (8, 100)
assert torch.arange(100)[x[0] > 0].shape == (100,) and torch.arange(100)[x[0] > 0].sum().item() == 1
assert torch.repeat_interleave(x, ones, dim=0).shape == (8, 100)
for lengths in (torch.full((4,), 50), torch.full((4,), 50, device="cuda")):
    scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
    targets = torch.ones(4, 10, dtype=torch.long, device="cuda")
    nn.functional.ctc_loss(scores.log_softmax(2), targets, lengths, lengths // 5).backward()
packed = nn.utils.rnn.pack_padded_sequence(x.view(8, 10, 10), torch.arange(8, 0, -1), batch_first=True)
lengths = torch.full((8,), 10).cuda().cpu().numpy()
assert nn.utils.rnn.pack_padded_sequence(x.view(8, 10, 10), lengths, batch_first=True).data.shape == (80, 10)
assert packed.data.shape == (64, 10)
torch.save(x, "x.pt")
assert not torch.load("x.pt", map_location="cpu").is_cuda
assert pickle.loads(pickle.dumps([x]))[0].is_cuda
mask, flat = torch.zeros(800, dtype=torch.bool, device="cuda"), torch.zeros(800, device="cuda")
mask[:10] = True
flat[mask] = torch.ones(10, device="cuda")
assert flat[mask].shape == (10,)
mask.fill_(True)
assert flat[mask].shape == (800,)
flat[mask] = torch.ones(900, device="cuda")[torch.ones(900, device="cuda") > 0]
assert flat[mask].shape == (800,)
out, _ = nn.LSTM(10, 20, batch_first=True).cuda()(packed)
nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].sum().backward()
assert x.sum().detach().cpu().numpy().shape == () and numpy.array(x.detach().cpu()).shape == (8, 100)
assert torch.cuda.FloatTensor(3).fill_(0).is_cuda and torch.zeros(3).type(torch.cuda.HalfTensor).is_cuda
assert x.type() == "torch.cuda.FloatTensor" and torch.cuda.LongTensor([1, 2]).shape == (2,)
torch.set_default_device("cuda")
assert torch.zeros(3).is_cuda
torch.set_default_device("cpu")
with torch.device("cuda"):
    assert nn.Linear(3, 3).weight.is_cuda
assert not torch.zeros(3).is_cuda
torch.distributed.init_process_group("nccl")
torch.distributed.all_gather([torch.zeros_like(x)], x)
torch.distributed.new_group([0])
torch.distributed.all_reduce(x, async_op=True).wait()
synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).cuda()
synced(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
class Mine(nn.DataParallel):
    pass
class Other(nn.parallel.DistributedDataParallel):
    pass
model = Mine(nn.Linear(100, 100))
assert DistributedDataParallel(nn.Linear(3, 3).cuda()).module is not None and model.module is not None
opt = torch.optim.Adam(model.parameters())
for _ in range(2):
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
"""

def folding(on):
    """Traces without folding of passes, or with."""
    return contextlib.nullcontext() if on else unittest.mock.patch.object(
        carma_recorder.Recorder, "boundary", lambda recorder: None)


# A backward pass of a script's own, with a tensor made there.
TWICE = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.device.type == "cuda"
        return grad * torch.full((50000,), 2, dtype=torch.uint8, device="cuda").sum() * torch.ones((), device=grad.device)
"""

# Labels of 2,000 boxes: 512 are chosen, a quarter with objects.
SAMPLER = """
labels, boxes = torch.randint(0, 80, (2000,), device="cuda"), torch.rand(2000, 4, device="cuda")
def subsample(positive, negative):
    chosen = []
    for mask, most in ((positive, 128), (negative, 384)):
        found = mask.nonzero(as_tuple=True)[0]
        most = min(found.numel(), most)
        chosen.append(found[torch.randperm(found.numel(), device=found.device)[:most]])
    return chosen
"""

REPEATS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
opt = torch.optim.AdamW(model.parameters())
for i in range(3):
    with torch.no_grad():
        for k in range(PASSES):
            model(torch.randn(100, 64).cuda()).sum().item()
    for k in range(PASSES):
        model(torch.randn(32, 64).to("cuda")).sum().backward()
    opt.step()
    opt.zero_grad()
"""


# Ten kinds of training scripts as people have them, each traced by one command: the packages
# that it needs, the code, and what the trace must say. A refusal is one text.

CLASSES = "import torch\nfrom torch import nn\n"

OLD_AMP = CLASSES + """
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(torch.device("cuda:0"))
opt = torch.optim.Adam(model.parameters())
scaler = torch.cuda.amp.GradScaler()
for x in torch.randn(100, 32, 256):
    opt.zero_grad()
    with torch.cuda.amp.autocast():
        loss = model(x.cuda(non_blocking=True)).float().logsumexp(1).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    torch.cuda.synchronize()
"""

DDP = CLASSES + """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DistributedDataParallel(nn.Linear(1000, 1000).to(local), device_ids=[local])
data = torch.utils.data.TensorDataset(torch.randn(640, 1000))
sampler = DistributedSampler(data)
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in torch.utils.data.DataLoader(data, 64, sampler=sampler):
        loss = model(x.to(local)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        dist.all_reduce(loss)
    dist.barrier()
dist.destroy_process_group()
"""

COMPILED = CLASSES + """
device = "cuda"
model = torch.compile(nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)).to(device), mode="max-autotune")
opt = torch.optim.AdamW(model.parameters(), fused=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
@torch.compile
def step(x):
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
for _ in range(100):
    step(torch.randint(0, 100, (8, 128), device=device))
    schedule.step()
"""

LOADER = CLASSES + """
import random
import numpy
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        return {"image": numpy.random.rand(3, 16, 16).astype("float32"), "label": i % 10}
def seed(worker):
    random.seed(torch.initial_seed() % 2**32)
def collate(rows):
    return torch.stack([torch.from_numpy(r["image"]) for r in rows]), torch.tensor([r["label"] for r in rows])
loader = torch.utils.data.DataLoader(Samples(), batch_size=24, shuffle=True, num_workers=8, collate_fn=collate,
                                     worker_init_fn=seed, pin_memory=True, drop_last=True, prefetch_factor=4,
                                     persistent_workers=True, generator=torch.Generator().manual_seed(0))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(8, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
for image, label in loader:
    out = model(image.cuda())
    nn.functional.cross_entropy(out, label.cuda()).backward()
    opt.step()
    opt.zero_grad()
    right = (out.argmax(1).cpu() == label).sum().item()
"""

VISION = CLASSES + """
import argparse
import torchvision
from torchvision import transforms
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--model", default="resnet18")
args = parser.parse_args()
torch.backends.cudnn.benchmark = True
prepare = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                              transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))])
data = torchvision.datasets.FakeData(1000, (3, 64, 64), transform=prepare)
loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, sampler=torch.utils.data.RandomSampler(data),
                                     num_workers=16, pin_memory=True)
device = torch.device("cuda")
model = torchvision.models.get_model(args.model, weights=None, num_classes=10).to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
average = torch.optim.swa_utils.AveragedModel(model, device=device)
model.train()
for i, (image, target) in enumerate(loader):
    image, target = image.to(device), target.to(device)
    output = model(image)
    loss = criterion(output, target)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    average.update_parameters(model)
    best = output.topk(5, 1)[1].t().eq(target[None]).flatten().sum(dtype=torch.float32)
    print(loss.item(), best.item() * 100 / len(image))
"""

TIMM = CLASSES + """
import timm
import timm.optim
import timm.scheduler
model = timm.create_model("resnet18", pretrained=False, num_classes=10).cuda()
opt = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = timm.scheduler.CosineLRScheduler(opt, t_initial=10)
for step in range(10):
    x, y = torch.randn(8, 3, 64, 64).cuda(), torch.randint(0, 10, (8,)).cuda()
    with torch.amp.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    schedule.step(step + 1)
"""

TRAINER = CLASSES + """
import tempfile
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
model = BertForSequenceClassification(BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2,
                                                 num_attention_heads=2, intermediate_size=128))
row = {"input_ids": [1] * 32, "attention_mask": [1] * 32, "labels": 0}
args = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=16, num_train_epochs=3, report_to=[])
Trainer(model, args, train_dataset=[row] * 256).train()
"""

ACCELERATE = CLASSES + """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(300, 600), nn.GELU(), nn.Linear(600, 5))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(640, 300), torch.zeros(640, dtype=torch.long))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, opt, loader = accelerator.prepare(model, opt, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
"""

LIGHTNING = CLASSES + """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 5))
    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
data = torch.utils.data.TensorDataset(torch.randn(640, 300), torch.zeros(640, dtype=torch.long))
trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=2))
"""

KINDS = (
    ("a loop with .cuda()", (), PLAIN, (), ["batch 16 8", "optimizer SGD"]),
    ("a loop with device=", (), ENCODER, (), ["precision amp-bfloat16", "optimizer AdamW"]),
    ("torch.cuda.amp", (), OLD_AMP, (), ["precision amp-float16", "optimizer Adam"]),
    ("DistributedDataParallel", (), DDP, (), ["parallel ddp", "batch 64 32"]),
    ("torch.compile", (), COMPILED, (), ["torch.compile", "optimizer AdamW"]),
    ("a loader with workers", ("numpy",), LOADER, (), ["batch 24 12"]),
    ("torchvision, by option", ("torchvision",), VISION, ("--batch-size", "32"), ["batch 32 16", "optimizer SGD"]),
    ("timm", ("timm",), TIMM, (), ["precision amp-float16", "optimizer AdamW"]),
    ("transformers' Trainer", ("transformers",), TRAINER, (), ["batch 16 8", "optimizer AdamW"]),
    ("Accelerate", ("accelerate",), ACCELERATE, (), ["batch 16 8", "optimizer AdamW"]),
    ("Lightning", ("lightning",), LIGHTNING, (), ["batch 16 8", "optimizer Adam"]),
    ("data that are not there", (), PLAIN.replace("data = ", "torch.load('/no/such/train.pt')\ndata = "), (),
     "reads /no/such/train.pt, which is not here"),
)


TRACES = torch is not None and int(torch.__version__.split(".")[0]) >= 2


@unittest.skipUnless(TRACES, "PyTorch 2 is not installed")
class WithTorch(unittest.TestCase):
    def script(self, code, *args):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as f:
                f.write(textwrap.dedent(code))
            run = subprocess.run([sys.executable, os.path.join(HERE, "carma_trace.py"), path, *args],
                                 capture_output=True, text=True, cwd=folder)
        return run

    def traced(self, code, *args):
        run = self.script(code, *args)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("#CARMA| end\n", run.stdout)
        self.assertTrue(all(line.startswith("#CARMA") for line in run.stdout.splitlines()), run.stdout)
        return run.stdout

    def shown(self, model, sample, **kw):
        out = io.StringIO()
        carma_trace.show(model, sample, out=out, **kw)
        return out.getvalue()

    def test_a_plain_loop(self):
        text = self.traced(PLAIN)
        self.assertTrue(text.startswith("#CARMA batch=16\n#CARMA| carma-trace 1\n"))
        self.assertIn("#CARMA| batch 16 8\n", text)
        self.assertIn("#CARMA| optimizer SGD\n", text)
        self.assertNotIn("unseen", text)
        births, events = unfold(text)
        weights = {"p" + str(4 * n) for n in (8 * 27, 8, 72000, 10)}
        self.assertLessEqual(weights, set(births))
        self.assertLessEqual({w.replace("p", "g") for w in weights}, set(births))
        self.assertLessEqual({w.replace("p", "o") for w in weights}, set(births))  # momentum
        image, features = 4 * 16 * 3 * 32 * 32, 4 * 16 * 8 * 30 * 30
        self.assertIn(f"a{image}:{image // 2}", births)
        self.assertEqual(births.count(f"a{features}:{features // 2}") % 2, 0)  # as many in both steps
        self.assertEqual([w for w, _ in events].count("f0"), 2)
        self.assertEqual([w for w, _ in events].count("w0"), 2)
        self.assertNotIn("d0", [w for w, _ in events])  # nobody wants an image's gradient
        self.assertAlmostEqual(peak(text, True) / peak(text), 0.75, delta=0.25)

    def test_kinds_of_scripts(self):
        for name, packages, code, args, says in KINDS:
            lacks = [p for p in packages if importlib.util.find_spec(p) is None]
            if lacks:
                print(f"carma_trace: {lacks[0]} is not installed: {name} was not traced", flush=True)
                continue
            with self.subTest(name):
                if isinstance(says, str):
                    run = self.script(code, *args)
                    self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
                    self.assertIn(says, run.stderr)
                    continue
                text = self.traced(code, *args)
                for line in says:
                    self.assertIn(line, text)
                births, _ = unfold(text)
                letters = {w[0] for w in births}
                self.assertLessEqual({"p", "g", "a"}, letters)

    def test_a_batch_option_wins(self):
        code = PLAIN.replace("batch_size=16", "batch_size=int(__import__('sys').argv[2])")
        self.assertIn("#CARMA| batch 32 16\n", self.traced(code, "--batch-size", "32"))

    def test_amp_dropout_and_attention(self):
        text = self.traced(ENCODER)
        self.assertIn("#CARMA| precision amp-bfloat16\n", text)
        births, _ = unfold(text)
        self.assertIn(f"a{8 * 32 * 128}", births)  # a dropout's mask: a byte
        self.assertIn(f"a{2 * 8 * 32 * 3 * 64}", births)  # queries, keys and values of two bytes
        self.assertNotIn(f"a{4 * 8 * 4 * 32 * 32}", births)  # no attention matrix

    def test_attention_that_no_kernel_fuses(self):
        class Attention(torch.nn.Module):
            def __init__(self, shape, value=0, stride=1):
                super().__init__()
                self.shape, self.value, self.stride = shape, value or shape[-1], stride
                self.weight = torch.nn.Parameter(torch.empty(3, *shape[1:-1], max(self.value, shape[-1]) * stride))

            def forward(self, x):
                q, k, v = (x.view(-1, *[1] * (self.weight.dim() - 1)) * self.weight[:, None]).unbind(0)
                q, k = (t[..., ::self.stride][..., :self.shape[-1]] for t in (q, k))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v[..., :self.value]).flatten(1)

        matrix = f"a{4 * 8 * 2 * 40 * 40}"
        for shape, value, stride, kept in (
                ((8, 2, 40, 16), 0, 1, False), ((8, 2, 40, 300), 0, 1, False), ((8, 2, 40, 16), 20, 1, False),
                ((8, 2, 1, 40, 16), 0, 1, True),  # hiera's
                ((8, 2, 40, 18), 0, 1, True), ((8, 2, 40, 16), 18, 1, True), ((8, 2, 40, 16), 0, 2, True),
                ((16, 40, 44), 0, 1, True)):
            with self.subTest(shape=shape, value=value, stride=stride):
                births, _ = unfold(self.shown(Attention(shape, value, stride), torch.randn(shape[0], 1)))
                self.assertEqual(any(b.startswith(matrix + ":") for b in births), kept, births)

    def test_what_kernels_fuse(self):
        def tensors(width=64, value=0, dtype=torch.float32, batch=2, heads=4, rows=8):
            return (torch.empty(2, 4, 8, width, dtype=dtype), torch.empty(batch, heads, rows, width, dtype=dtype),
                    torch.empty(batch, heads, rows, value or width, dtype=dtype))

        half, mask = torch.bfloat16, torch.zeros(8, 8)
        for name, qkv, mask, fused in (
                ("plain", tensors(), None, True), ("a mask", tensors(), mask, True),
                ("a mask by columns", tensors(), mask.t(), False), ("a mask of one number", tensors(), mask[0, 0], True),
                ("one key for all of the batch", tensors(batch=1), None, False),
                ("one key for all heads", tensors(heads=1), None, False), ("no key", tensors(rows=0), None, False),
                ("half, no multiple of 8", tensors(20, dtype=half), None, True),
                ("the same with a mask", tensors(20, dtype=half), mask, False),
                ("half, other values", tensors(64, 32, dtype=half), None, True),
                ("half, other values, no multiple of 8", tensors(64, 20, dtype=half), None, False),
                ("half, wide", tensors(260, dtype=half), None, False),
                ("half, wide, a multiple of 8", tensors(264, dtype=half), None, True)):
            self.assertEqual(carma_patches.is_fused(*qkv, mask), fused, name)
        flash, efficient = torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp
        for switch, qkv in ((efficient, tensors()), (flash, tensors(20, dtype=half))):
            switch(False)
            try:
                self.assertFalse(carma_patches.is_fused(*qkv, None), "switched off by the script")
            finally:
                switch(True)

    def test_what_a_model_keeps_of_its_first_pass(self):
        class Cached(torch.nn.Linear):
            places = None

            def forward(self, x):
                if self.places is None:
                    self.places = torch.arange(16, dtype=torch.float32).to(x.device)
                return super().forward(x + self.places)

        self.assertIn("#CARMA| batch 8 4\n", self.shown(Cached(16, 16), torch.randn(8, 16)))

    def test_checkpointing_takes_less(self):
        from torch.utils.checkpoint import checkpoint
        nn = torch.nn

        class Deep(nn.Module):
            def __init__(self, checkpointed):
                super().__init__()
                self.layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(12)])
                self.checkpointed = checkpointed

            def forward(self, x):
                for layer in self.layers:
                    x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
                return x

        most = [peak(self.shown(Deep(c), torch.zeros(4096, 64))) for c in (False, True)]
        self.assertLess(most[1], 0.7 * most[0])

    def test_frozen_parameters_have_no_gradient(self):
        nn = torch.nn
        model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 7))
        for p in model[0].parameters():
            p.requires_grad = False
        births, _ = unfold(self.shown(model, torch.zeros(4, 300)))
        self.assertNotIn(f"g{4 * 300 * 200}", births)
        self.assertIn(f"g{4 * 200 * 7}", births)

    def test_an_optimizer_that_was_made_before(self):
        nn = torch.nn
        model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 7))
        text = self.shown(model, (torch.zeros(8, 300), torch.zeros(8, dtype=torch.long)),
                          loss=nn.functional.cross_entropy, optimizer=torch.optim.Adam(model.parameters()),
                          amp=torch.bfloat16)
        births, _ = unfold(text)
        self.assertIn("#CARMA| batch 8 4\n", text)
        self.assertIn("#CARMA| optimizer Adam\n", text)
        for letter, times in (("p", 1), ("g", 2), ("o", 2)):  # two states; a gradient in each step
            self.assertEqual(births.count(f"{letter}{4 * 300 * 200}"), times)

    def test_a_large_model_takes_no_memory(self):
        code = """
            import resource, torch
            from torch import nn
            model = nn.Sequential(*[nn.Linear(20000, 20000) for _ in range(5)]).cuda()
            opt = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                opt.zero_grad()
                model(torch.zeros(1, 20000, device="cuda")).sum().backward()
                assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20
                opt.step()
        """
        text = self.traced(code)
        self.assertGreater(peak(text), 5 * 4 * 4 * 20000 * 20000)

    def test_parallel_and_compiled(self):
        code = PLAIN.replace("data = ", """
import os, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.compile(nn.parallel.DistributedDataParallel(model, device_ids=[0]))
data = """)
        text = self.traced(code)
        self.assertIn("#CARMA| parallel ddp\n", text)
        self.assertIn("torch.compile", text)

    def test_a_view_keeps_its_storage(self):
        with carma_trace.Tracing() as tracing:
            recorder = tracing.recorder
            with recorder.on():
                whole = torch.empty(100000)
            view = whole.detach()
            del whole
            first = view + 1
            del view
            second = first + 1
            self.assertEqual([e[:2] for e in recorder.events], [("+", 0), ("+", 1), ("-", 0), ("+", 2)])
            del first, second
            recorder.sweep()
            self.assertEqual([e[:2] for e in recorder.events[4:]], [("-", 1), ("-", 2)])

    def test_nothing_keeps_a_storage_that_is_gone(self):
        # PyTorch finds fake tensors again by the Python object of their storage: kept, it was used after its memory.
        with carma_trace.Tracing() as tracing, tracing.recorder.on():
            tensor = torch.empty(100000)
            storage = weakref.ref(tensor.untyped_storage())
            self.assertIsNotNone(storage())
            del tensor
            self.assertIsNone(storage())

    def test_the_bench_finds_it(self):
        bench = os.path.join(HERE, "..", "bench", "estimator")
        for name in ("real_traces.py", "timm_traces.py"):
            run = subprocess.run([sys.executable, os.path.join(bench, name)], capture_output=True, text=True)
            self.assertNotIn("carma_trace'", run.stderr)

    def test_narrow_parameters(self):
        code = PLAIN.replace("data = ", "model.bfloat16()\ndata = ").replace("model(x)", "model(x.bfloat16())")
        text = self.traced(code)
        self.assertIn("#CARMA| precision bf16\n", text)

    def test_a_module_moved_by_keyword(self):
        text = self.traced(PLAIN.replace(".cuda()\n", "\n").replace(
            "opt = ", "model.to(device=torch.device('cuda'), dtype=None)\nopt = "))
        births, _ = unfold(text)
        self.assertIn("p" + str(4 * 72000), births)
        self.assertNotIn("not on the GPU", text)
        left = self.traced(PLAIN.replace(".cuda()\n", "\n"))  # an error on a real GPU
        self.assertIn("unseen 2 the optimizer's parameters are not on the GPU", left)

    def test_no_device_is_named(self):
        code = PLAIN.replace(".cuda()", ".to(device)").replace('"cuda"', "device").replace(
            "model = ", "assert torch.accelerator.is_available()\n"
            "device = torch.accelerator.current_accelerator()\nmodel = ", 1)
        if not hasattr(torch, "accelerator"):
            print("carma_trace: torch.accelerator needs PyTorch 2.6: it was not traced", flush=True)
            return
        self.assertIn("p" + str(4 * 72000), unfold(self.traced(code))[0])

    def test_nothing_on_a_gpu(self):
        run = self.script(PLAIN.replace(".cuda()", "").replace('"cuda"', '"cpu"'))
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        self.assertIn("it put nothing on a GPU", run.stderr)

    def test_values_in_inference_mode(self):
        code = PLAIN.replace("total += loss.item()", """
        with torch.inference_mode():
            total += (loss * 2).item()
            assert loss.min() >= 0 and loss""")
        self.assertIn("#CARMA| batch 16 8\n", self.traced(code))

    def test_no_checkpoint_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pt")
            with open(path, "w", encoding="ascii") as f:
                f.write("a month of training")
            self.traced(PLAIN.replace("total +=", f"torch.save(model.state_dict(), {path!r})\n        total +="))
            with open(path, encoding="ascii") as f:
                self.assertEqual(f.read(), "a month of training")

    def test_other_programs_of_a_batch_script_are_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            def write(name, text):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
            write("prepare.py", "raise SystemExit('it was run')")
            write("lib/helper.py", "SIZE = 64")
            write("work/train.py", PLAIN.replace("randn(64", "randn(helper.SIZE").replace(
                "import torch\n", "import helper, torch\n"))
            write("job.sh", "#!/bin/bash\n#SBATCH --chdir=work\nexport PYTHONPATH=../lib\npython ../prepare.py\n"
                  "python train.py --name=a#b\npython ../prepare.py --again\n")
            run = subprocess.run([sys.executable, os.path.join(HERE, "carma_trace.py"), "job.sh"],
                                 capture_output=True, text=True, cwd=folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("#CARMA| batch 16 8\n", run.stdout)
        self.assertIn("carma-trace: train.py is traced; not run: ../prepare.py, ../prepare.py", run.stderr)
        self.assertNotIn("it was run", run.stderr)

    def test_what_programs_print_is_no_part_of_the_trace(self):
        self.traced(PLAIN.replace("total = ", "import os; os.write(1, b'noise\\n'); os.system('echo noise')\ntotal = "))

    def test_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = f"{os.getpid()}.25"
            code = PLAIN.replace("total = ", f"""
import os, subprocess
subprocess.Popen(["setsid", "-f", "sleep", "{mark}"])
os.makedirs("out/fixed")
open("out/fixed/a", "w").close()
os.chmod("out/fixed", 0o555)
total = """)
            with unittest.mock.patch.dict(os.environ, {"TMPDIR": folder}):
                self.traced(code)
            self.assertEqual(os.listdir(folder), [])
        left = subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, text=True, check=False)
        self.assertEqual(left.stdout, "")

    @unittest.skipUnless(carma_trace.carma_wall.is_root(), "needs root")
    def test_root_runs_no_program_of_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as f:
                f.write("raise SystemExit('it was run')")
            os.chown(path, 12345, 12345)
            run = subprocess.run([sys.executable, os.path.join(HERE, "carma_trace.py"), path], capture_output=True,
                                 text=True)
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("is another user's, and would run as root", run.stderr)

    def test_one_process_without_a_launcher(self):
        text = self.traced(PLAIN.replace("data = ", """
import os, torch.distributed as dist
if int(os.environ.get("LOCAL_RANK", -1)) != -1 or dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
data = """))
        self.assertNotIn("parallel ddp", text)

    def test_made_on_the_device_of_a_tensor(self):
        """Each line makes a tensor of a size of its own beside a tensor on the GPU."""
        made = ("torch.zeros({n}, dtype=torch.uint8, device=x.device)", "torch.arange({n} // 8, device=x.device)",
                "x.new_zeros({n}, dtype=torch.uint8)", "x.new_tensor([1.0] * ({n} // 4))",
                "torch.ones({n}, dtype=torch.uint8).to(x.device)", "torch.ones({n} // 4).to(device=x.device)",
                "torch.tensor([1.0] * ({n} // 4), device=x.device)",
                "torch.as_tensor([1.0] * ({n} // 4), device=x.device)",
                "torch.as_tensor(numpy.zeros({n}, numpy.uint8), device=x.device)",
                "torch.asarray(torch.ones({n}, dtype=torch.uint8), device=x.device)",
                "torch.ones({n}, dtype=torch.uint8).type_as(x.byte())",
                "torch.nn.Linear({n} // 4, 1, bias=False).to(x.device).weight",
                "torch.nn.Embedding({n} // 4, 1, device=x.device).weight",
                "torch.rand_like(torch.ones({n} // 4), device=x.device)",
                "torch.randperm({n} // 8, device=x.device)",
                "torch.empty({n}, dtype=torch.int8, device=x.get_device())",
                "torch.rand({n} // 4, generator=torch.Generator(device=x.device), device=x.device)")
        sizes = [80000 + 800 * k for k in range(len(made))]
        lines = "\n        ".join(f"kept.append({m.format(n=n)})" for m, n in zip(made, sizes))
        text = self.traced(PLAIN.replace("total = 0.0", "total = 0.0; import numpy; kept = []").replace(
            "        opt.zero_grad()", f"        {lines}\n        opt.zero_grad()"))
        births, _ = unfold(text)
        lacks = [m for m, n in zip(made, sizes) if births.count(f"a{n}") + births.count(f"p{n}") != 2]
        self.assertEqual(lacks, [])

    def test_devices_as_a_script_compares_them(self):
        self.traced(PLAIN.replace("total +=", """cpu = torch.device("cpu")
        weight = model[0].weight
        assert x.device == torch.device("cuda:0") == loss.device == weight.device == weight.grad.device
        assert x.cpu().device == cpu == torch.zeros(3).device == torch.zeros(1 << 20).device and not x.is_cpu
        assert next(iter(opt.state.values()))["momentum_buffer"].device.index == x.get_device() == 0
        assert x.device.type == "cuda" and x.detach().device.type == "cuda" and torch.zeros(3).is_cpu
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled() and torch.is_autocast_enabled(x.device.type)
            assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype() == torch.bfloat16
            assert (x.flatten(1) @ torch.zeros(3072, 1, device=x.device)).dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cuda")
        total +="""))

    def test_made_in_the_backward_pass(self):
        """Checkpointing runs a model again, and an autograd.Function has a backward() of its own."""
        code = PLAIN.replace("total = 0.0", """
from torch.utils.checkpoint import checkpoint""" + TWICE + """
def masked(x):
    return x * torch.ones(60000, dtype=torch.uint8, device=x.device).sum()
def loss_of(x, y):
    for again in (True, False):
        x = checkpoint(masked, x, use_reentrant=again)
    return nn.functional.cross_entropy(model(x), y)
total = 0.0""").replace("x, y = x.to", "x.requires_grad_()\n        x, y = x.to").replace(
            "loss = nn.functional.cross_entropy(model(x), y)\n", "loss = Twice.apply(loss_of(x, y))\n")
        births, _ = unfold(self.traced(code))
        self.assertEqual((births.count("a50000"), births.count("a60000")), (2, 8))

    def test_devices_where_pytorch_calls_a_script(self):
        """torch.autograd.grad() runs hooks and an own backward pass; torch.func.jvp() imports compiled functions."""
        self.sampled(TWICE + textwrap.dedent("""
            x, seen = torch.rand(5, device="cuda", requires_grad=True), []
            x.register_hook(lambda grad: seen.append(grad.device) or grad * torch.ones(5, device="cuda"))
            grad, = torch.autograd.grad(Twice.apply(x).sum(), x, create_graph=True)
            assert seen == [x.device] and grad.device == x.device
            value, change = torch.func.jvp(lambda x: x ** 2, (x.detach(),), (torch.ones(5, device=x.device),))
            assert change.device == x.device
            assert isinstance(torch.Generator(device=x.device), torch.Generator)
            assert isinstance(torch.default_generator, torch.Generator) and not isinstance(x, torch.Generator)
            sound, window = torch.rand(2, 1600, device=x.device), torch.hann_window(400, device=x.device)
            back = torch.istft(torch.stft(sound, 400, window=window, return_complex=True), 400, window=window)
            assert back.shape == (2, 1600) and back.device == x.device
            frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(4, 4).eval()))
            torch.jit.save(frozen, "/nowhere/frozen.pt")
            """))

    def test_a_model_that_asks_a_tensor_for_its_device(self):
        """show() runs no script: no other code asks for a GPU."""
        class Masked(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(64, 64)

            def forward(self, x):
                mask = torch.zeros(50000, dtype=torch.uint8, device=x.device)
                return self.layer(x) * mask.sum()

        births, _ = unfold(self.shown(Masked(), torch.zeros(8, 64)))
        self.assertEqual(births.count("a50000"), 2)

    def test_few_numbers_keep_their_values(self):
        """Whole numbers put on the GPU by the host, for example sizes, until a change."""
        self.traced(PLAIN.replace("total +=", """for made in (torch.tensor([3, 5]).to(x.device),
                     torch.tensor([3, 5], device="cuda"), torch.as_tensor([3, 5], device=x.device), x.new_tensor([3, 5], dtype=torch.long)):
            assert torch.repeat_interleave(torch.arange(2, device=x.device), made).shape == (8,)
            assert torch.repeat_interleave(made).shape == (8,) and made.tolist() == made.cpu().tolist() == [3, 5]
            made.add_(1)
            assert torch.repeat_interleave(made).shape == (2,) and made.tolist() != [4, 6]
        total +="""))

    def test_what_torchscript_would_compile(self):
        """TorchScript can compile no replacement of PyTorch's functions, and knows no fake tensors."""
        self.traced(PLAIN.replace("total = 0.0", """
from torch.distributed.optim import ZeroRedundancyOptimizer
@torch.jit.script
def halved(x):
    assert x.device.type == "cuda"
    return x / 2
total = 0.0""").replace("cross_entropy(model(x), y)", "cross_entropy(halved(model(x)), y)"))

    def test_common_idioms(self):
        text = self.traced(IDIOMS)
        self.assertIn("the largest possible were taken", text)
        self.assertIn("DataParallel", text)

    def test_largest_sizes(self):
        code = PLAIN.replace("total +=", "model[3].weight[model[3].weight > 0]\n        total +=")
        births, _ = unfold(self.traced(code))
        self.assertIn(f"a{4 * 72000}", births)  # every element may be above 0
        self.assertIn(f"a{2 * 8 * 72000}", births)  # the mask as indices

    def test_a_mask_that_is_filled(self):
        """As many values as x[mask] takes have a gradient, which is no larger; what is read there then is known, too."""
        code = PLAIN.replace("total = 0.0", "total = 0.0\nmask = (torch.arange(300) < 200).cuda()").replace(
            "loss.backward()", """some = model[3].weight.new_zeros(300, 10)
        some[mask] = model[3].weight.flatten()[:2000].view(200, 10)
        (loss + some.sum()).backward()
        some[mask]""")
        births, _ = unfold(self.traced(code))
        self.assertIn(f"a{4 * 2000}", births)

    def sampled(self, code):
        """Runs a program on labels chosen by a sampler; the program has the assertions."""
        with carma_trace.Tracing() as tracing:
            tracing.script()
            exec(textwrap.dedent(SAMPLER) + textwrap.dedent(code), {"torch": torch})  # noqa: S102

    def test_a_sampler_bounds_what_a_mask_chooses(self):
        """As detectron2's and torchvision's: at most 128 of the 512 chosen boxes are of an object."""
        self.sampled("""
            def of(labels):
                return (labels != -1) & (labels != 80), labels == 80
            positive, negative = subsample(*of(labels))
            chosen = labels[torch.cat((positive, negative))]
            assert chosen.shape == (512,)
            assert of(chosen)[0].nonzero().squeeze(1).shape == (128,)
            assert boxes[positive].shape == (128, 4) and boxes[:512][of(chosen)[0]].shape == (128, 4)
            both = torch.cat((chosen, chosen))
            assert ((both >= 0) & (both < 80)).nonzero(as_tuple=True)[0].shape == (256,)
            assert (both == 80).nonzero().shape == (768, 1)
            """)
        self.sampled("""
            positive, negative = subsample(labels >= 1, labels == 0)
            masks = [torch.zeros_like(labels, dtype=torch.uint8) for _ in range(2)]
            masks[0][positive] = 1
            masks[1][negative] = 1
            some = torch.where(masks[0] | masks[1])[0]
            assert some.shape == (512,) and torch.where(masks[0])[0].shape == (128,)
            assert torch.where(labels[some] > 0)[0].shape == (128,)
            assert torch.where(labels[some] >= 0)[0].shape == (512,)
            assert boxes[torch.where(labels > 0)[0]].shape == (2000, 4)
            """)
        self.sampled("""
            positive, negative = subsample(labels == 1, labels == 0)
            labels.fill_(-1)
            labels.scatter_(0, positive, 1)
            labels.scatter_(0, negative, 0)
            assert boxes[labels >= 0].shape == (512, 4)
            assert (torch.stack((labels, labels)) >= 0).nonzero().shape == (1024, 2)
            assert boxes[labels == 1].shape == (128, 4)
            """)

    def test_what_bounds_no_mask(self):
        """Changes of the labels, of the mask, of indices; and other elements than the compared."""
        for change in ("labels[3] = 7", "labels.add_(1)", "labels = labels + 0", "labels = labels.flip(0)",
                       "labels += 1", "positive = positive + 1", "positive.add_(1)", "positive = positive.clamp(max=9)",
                       "labels = torch.cat((labels[:1], labels))", "positive[:5] = 0"):
            self.sampled(f"""
                positive, negative = subsample(labels >= 1, labels == 0)
                {change}
                chosen = labels[torch.cat((positive, negative))]
                assert (chosen == 0).nonzero().shape == (512, 1), chosen.shape
                """.replace("                ", ""))
        self.sampled("""
            mask = torch.zeros(2000, dtype=torch.bool, device="cuda")
            mask[labels[:9]] = True
            assert boxes[mask].shape == (9, 4) and boxes[~mask].shape == (2000, 4)
            mask[labels > 0] = True
            assert boxes[mask].shape == (2000, 4)
            positive, negative = subsample(labels >= 1, labels == 0)
            some = torch.cat((positive, negative))
            chosen = labels[some[torch.zeros(512, dtype=torch.long, device="cuda")]]
            assert (chosen > 0).nonzero().shape == (512, 1)
            shifted = torch.zeros(2000, dtype=torch.bool, device="cuda")
            shifted[positive] = True
            assert (labels[torch.where(torch.cat((shifted[1:], shifted[:1])))[0]] == 0).nonzero().shape[0] >= 128
            """)

    def test_what_changes_unseen_by_versions(self):
        """Writes without a version of PyTorch's, and numbers equal to no float and no label."""
        self.sampled("""
            def few():
                mask = torch.zeros(2000, dtype=torch.bool, device="cuda")
                mask[labels[:9]] = True
                assert mask.nonzero().shape == (9, 1)
                return mask
            true = torch.ones(2000, dtype=torch.bool, device="cuda")
            masks = [few() for _ in range(5)]
            masks[0].data.fill_(True)
            masks[1].data = true
            torch._foreach_copy_([masks[2]], [true])
            masks[3].data |= true
            with torch.inference_mode():
                masks[4].copy_(true)
            for mask in masks:
                assert mask.nonzero().shape == (2000, 1)
            positive, negative = subsample(labels >= 1, labels == 0)
            labels.data.fill_(3)
            assert (labels[torch.cat((positive, negative))] > 0).nonzero().shape == (512, 1)
            made = torch.full((2000,), -1, device="cuda")
            made.scatter_(0, positive, 1, reduce="add")
            assert (made == 0).nonzero().shape == (2000, 1)
            for made in (torch.full((2000,), 1.5, dtype=torch.long, device="cuda"),
                         torch.zeros_like(labels).fill_(1.9), torch.zeros_like(labels).scatter_(0, positive, 1.5),
                         torch.ones(4000, dtype=torch.int32, device="cuda").view(torch.long)):
                assert (made == 1).nonzero().shape == (made == 1 + 2 ** 32).nonzero().shape == (2000, 1)
            assert (torch.full((2000,), 2 ** 60 + 1, device="cuda") > 2 ** 60).nonzero().shape == (2000, 1)
            assert (labels < float("inf")).nonzero().shape == (labels != float("nan")).nonzero().shape == (2000, 1)
            number = torch.tensor([3, 5]).cuda()
            number.data.add_(1)
            assert number.tolist() != [3, 5]
            with torch.inference_mode():
                number = torch.tensor([3, 5]).cuda()
                assert len(number.tolist()) == len(torch.tensor([3, 5], device="cuda").tolist()) == 2
            """)

    def test_sparse_tensors_of_the_host(self):
        """A sparse tensor of the host changes in place as without the tracer."""
        self.traced(PLAIN.replace("data = ", "a = torch.eye(8).to_sparse(); a.mul_(0.5); a.to_dense().cuda()\ndata = "))

    def test_equal_passes_count_twice(self):
        texts = {self.traced(REPEATS.replace("PASSES", str(n))) for n in (6, 40)}
        self.assertEqual(len(texts), 1)

    def writes(self, letters, folds):
        """The most bytes alive, and the events, of a text written letter by letter between two passes."""
        with carma_trace.Tracing() as tracing, folding(folds):
            tracing.script()
            layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.TransformerEncoder(layer, 3)).cuda()
            for _ in range(2):
                model(torch.zeros(4, 32, dtype=torch.long).cuda()).sum().backward()
                with torch.no_grad():
                    text = torch.zeros(1, 10, dtype=torch.long, device="cuda")
                    for _ in range(letters):
                        chosen = model(text[:, -60:])[:, -1].argmax(1, keepdim=True)
                        text = torch.cat((text, chosen), 1)
            events = tracing.result()["events"]
        return carma_text.most_alive(events), len(events)

    def test_a_text_that_is_written(self):
        for letters in (30, 90):
            self.assertEqual(self.writes(letters, True)[0], self.writes(letters, False)[0])
        self.assertLess(self.writes(400, True)[1], 1.1 * self.writes(90, True)[1])

    def test_a_cache_that_grows(self):
        """Each pass keeps a longer tensor in place of the kept tensor: the most is where both are alive."""
        def most(passes, folds):
            with carma_trace.Tracing() as tracing, folding(folds), torch.no_grad(), tracing.recorder.on():
                weight, caches = torch.empty(64, 64), [torch.empty(1, 64) for _ in range(20)]
                for _ in range(passes):
                    for k, cache in enumerate(caches):
                        caches[k] = torch.cat((cache, cache[-1:] @ weight))
                        del cache
                    tracing.recorder.boundary()
                events = tracing.result()["events"]
            return carma_text.most_alive(events), len(events)

        self.assertEqual(most(200, True)[0], most(200, False)[0])
        self.assertLess(most(200, True)[1], most(200, False)[1] // 3)

    def test_passes_that_use_up_what_is_older(self):
        """Each pass ends as many older tensors as it makes, and makes tensors of one size, or larger ones."""
        def most(folds, more):
            with carma_trace.Tracing() as tracing, folding(folds), torch.no_grad(), tracing.recorder.on():
                old = [torch.empty(1 << 18) for _ in range(400)]
                for i in range(20):
                    for _ in range(20):
                        torch.empty((1 << 12) + i * more)
                        old.pop(0)
                    tracing.recorder.boundary()
                torch.empty(1 << 27)
                events = tracing.result()["events"]
            return carma_text.most_alive(events)

        for more in (0, 16):
            with self.subTest(more=more):
                self.assertEqual(most(True, more), most(False, more))

    def test_said_to_be_unseen(self):
        text = self.traced(PLAIN.replace("total = 0.0", """total = 0.0
torch.backends.cudnn.benchmark = True
model.to(memory_format=torch.channels_last)
torch.utils.data.DataLoader(data, batch_size=640)"""))
        for line in ("another DataLoader has batches of 640", "channels_last", "cudnn.benchmark"):
            self.assertIn(line, text)
        self.assertIn("LBFGS keeps a history", self.traced(PLAIN.replace(
            "SGD(model.parameters(), lr=0.1, momentum=0.9)", "LBFGS(model.parameters())").replace(
            "opt.step()", "opt.step(lambda: loss)")))

    def test_a_check_of_the_data(self):
        code = PLAIN.replace("total +=", "if (x < 0).any(): raise ValueError('negative')\n        total +=")
        self.assertIn("values read from any(): false was taken", self.traced(code))

    def test_steps_by_hand(self):
        """A loop without torch.optim that changes its module's parameters itself is traced, as plain SGD is."""
        plain = PLAIN.replace(", momentum=0.9", "")
        by_hand = plain.replace("opt = torch.optim.SGD(model.parameters(), lr=0.1)", "").replace(
            "opt.zero_grad()", "model.zero_grad()")
        self.assertNotEqual(plain, by_hand)
        for update in ("for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)",
                       "with torch.no_grad(): [p.sub_(0.1 * p.grad) for p in model.parameters()]"):
            text = self.traced(by_hand.replace("opt.step()", update))
            self.assertNotIn("optimizer", text)
            self.assertIn("batch 16 8", text)
            self.assertEqual(*({w for w in unfold(t)[0] if w[0] in "pg"} for t in (text, self.traced(plain))))

    def test_no_step_in_sight(self):
        """A loop whose steps are not seen is refused soon, not after all of its epochs."""
        code = PLAIN.replace("opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "rounds = 0").replace(
            "opt.zero_grad()", "model.zero_grad(); rounds += 1").replace(
            "opt.step()", "print('round', rounds)\n        for p in model.parameters(): p.data = p.data - 0.1 * p.grad")
        run = self.script(code)
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("has made 32 backward passes and no torch.optim optimizer", run.stderr)
        self.assertNotIn("round 40", run.stderr)
        run = self.script(code.replace(".cuda()", "").replace('.to("cuda", non_blocking=True)', "").replace(
            "p.data = p.data - 0.1 * p.grad", "p.data.sub_(0.1 * p.grad)"))
        self.assertIn("has made 32 backward passes and put nothing on a GPU", run.stderr)

    def test_no_batch(self):
        """A loader that drops its few samples gives no batch in any epoch."""
        code = PLAIN.replace("batch_size=16", "batch_size=640, drop_last=True").replace("range(90)", "range(500)")
        run = self.script(code)
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("its DataLoader has 64 samples and drops what is less than a batch of 640", run.stderr)

    def test_refused_in_words(self):
        for change, why in (
                ("open('/no/such/data')", "reads /no/such/data, which is not here"),
                ("from torch.distributed.fsdp import FullyShardedDataParallel as F; F(model)", "FSDP"),
                ("torch.cuda.CUDAGraph()", "CUDA graphs"),
                ("1 / 0", "it stopped in train.py, line 6: ZeroDivisionError"),
                ("model(torch.zeros(2, 3, 32, 32).cuda()).sum().backward()\nraise SystemExit(0)",
                 "its loop has no such optimizer"),
                ("raise ValueError('one\\n  two.')", "ValueError: one two: call"),
                ("raise SystemExit(3)", "it ended with 3"),
                ("raise SystemExit(0)", "without a step"),
                ("from torch.nn.attention.flex_attention import flex_attention as f\n"
                 "f(*[torch.rand(1, 2, 128, 16).cuda()] * 3)",
                 "train.py: in train.py, line 7: flex_attention cannot be traced: give mem= instead"),
                ("torch.eye(8).to_sparse().cuda()", "train.py: in train.py, line 6: sparse tensors cannot be traced")):
            run = self.script(PLAIN.replace("data = ", change + "\ndata = "))
            self.assertEqual(run.returncode, 1, run.stdout)
            self.assertIn(why, run.stderr)
            self.assertEqual(run.stdout, "")


if __name__ == "__main__":
    if not TRACES:
        print("carma_trace: no PyTorch 2 for this Python: tracing itself was not tested; "
              "on Debian 13: apt-get install python3-torch", flush=True)
    unittest.main()
