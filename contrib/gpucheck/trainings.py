# SPDX-License-Identifier: Apache-2.0
"""Short trainings, and what each takes of the GPU: rows for contrib/gpucheck/data.

usage: trainings.py [--first N] [--device cuda|cpu]
       trainings.py --one ARCHITECTURE [--steps N] [--batch N]
       trainings.py --workspaces [--first N] [--device cuda|cpu]

The first prints a line of JSON for each training as it ends. Each is a process of its own, forked
before CUDA begins: what one has kept the next does not see. The second trains without chance, prints
"ready", and the last loss bit by bit as "result". The third prints a line for each convolution: what
its tensors take, what was taken at most, and how long a step lasts. Needs PyTorch alone; ends with 77
without it.
"""

import os
import sys

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import argparse  # a minimal Python has not even this
    import json
    import time

    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError:
    sys.exit(77)


def conv(i, o, stride=1, groups=1, k=3):
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, i, o, stride, body):
        super().__init__()
        self.body = body
        self.skip = nn.Identity() if i == o and stride == 1 else nn.Conv2d(i, o, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class Attention(nn.Module):
    def __init__(self, width, heads, sdpa):
        super().__init__()
        self.qkv, self.out, self.heads, self.sdpa = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, sdpa

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5, -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, width, sdpa):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, width // 64, sdpa)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(256, 512, 2, batch_first=True), nn.Linear(512, 100)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Patches(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 16, 16)

    def forward(self, x):
        return self.conv(x).flatten(2).transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def head(i):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100)]


def resnet(blocks, bottleneck):
    layers, i = [conv(3, 64, 2, k=7), nn.MaxPool2d(3, 2, 1)], 64
    for stage, n in enumerate(blocks):
        w = 64 << stage
        o = 4 * w if bottleneck else w
        for b in range(n):
            s = 2 if stage and not b else 1
            if bottleneck:
                body = nn.Sequential(conv(i, w, k=1), conv(w, w, s), nn.Conv2d(w, o, 1, bias=False), nn.BatchNorm2d(o))
            else:
                body = nn.Sequential(conv(i, w, s), nn.Conv2d(w, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
            layers.append(Residual(i, o, s, body))
            i = o
    return nn.Sequential(*layers, *head(i))


def vgg():
    layers, i = [], 3
    for w, n in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(n):
            layers.append(conv(i, w))
            i = w
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *head(512))


def mobile():
    layers, i = [conv(3, 32, 2)], 32
    for o, s in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (1024, 2)):
        layers += [conv(i, i, s, groups=i), conv(i, o, k=1)]
        i = o
    return nn.Sequential(*layers, *head(1024))


def vit(width, depth, sdpa):
    blocks = [Block(width, sdpa) for _ in range(depth)]
    return nn.Sequential(Patches(width), *blocks, nn.LayerNorm(width), Mean(), nn.Linear(width, 100))


def encoder(width, depth):
    return nn.Sequential(*[Block(width, True) for _ in range(depth)], Mean(), nn.Linear(width, 100))


IMAGE = (3, 224, 224)
ARCHITECTURES = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                                  nn.Linear(4096, 100)), (3, 32, 32), (64, 512, 4096)),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), IMAGE, (16, 32, 64)),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), IMAGE, (8, 16, 32)),
    "vgg11": (vgg, IMAGE, (8, 16, 32)),
    "mobile": (mobile, IMAGE, (16, 32, 64)),
    "vit_small": (lambda: vit(384, 12, True), IMAGE, (16, 32, 64)),
    "vit_small_eager": (lambda: vit(384, 12, False), IMAGE, (16, 32, 64)),
    "encoder": (lambda: encoder(512, 6), (256, 512), (8, 16, 32)),
    "lstm": (lambda: Recurrent(nn.LSTM), (128, 256), (16, 64, 256)),
    "gru": (lambda: Recurrent(nn.GRU), (128, 256), (16, 64, 256)),
}
MODES = ("fp32", "amp", "bf16", "checkpoint")


def summary(model, shape, device):
    """A table of leaf modules as torchsummary prints it, which the estimator reads."""
    lines, hooks = [], []

    def note(module, _, out):
        out = out[0] if isinstance(out, tuple) else out
        n = sum(p.numel() for p in module.parameters())
        lines.append("%20s %25s %12d" % ("%s-%d" % (type(module).__name__, len(lines) + 1), [-1, *out.shape[1:]], n))

    for module in model.modules():
        if not list(module.children()):
            hooks.append(module.register_forward_hook(note))
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape, device=device))
    for h in hooks:
        h.remove()
    return "\n".join(lines) + "\n"


def step(model, optimizer, x, y, mode, scaler, device):
    with torch.autocast(device, torch.bfloat16 if mode == "bf16" or device == "cpu" else torch.float16,
                        enabled=mode in ("amp", "bf16")):
        if mode == "checkpoint" and isinstance(model, nn.Sequential):
            out = x
            for layer in model:
                out = checkpoint(layer, out, use_reentrant=False)
        else:
            out = model(x)
        loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    if scaler:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
    return loss.detach()


def train(name, batch, mode, device, steps):
    make, shape, _ = ARCHITECTURES[name]
    torch.manual_seed(1)
    cuda = device == "cuda"
    if cuda:
        torch.cuda.init()
        free_before, total = torch.cuda.mem_get_info()
    model = make()
    text = summary(model, shape, "cpu")
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.cuda.amp.GradScaler() if mode == "amp" and cuda else None
    x, y = torch.randn(batch, *shape, device=device), torch.randint(0, 100, (batch,), device=device)
    for _ in range(steps):
        loss = step(model, optimizer, x, y, mode, scaler, device)
    row = {"model": name, "batch": batch, "mode": mode, "optimizer": "AdamW", "input": list(shape), "summary": text,
           "torch": torch.__version__, "loss": float(loss)}
    if cuda:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        row.update(allocated_mib=torch.cuda.max_memory_allocated() >> 20, reserved_mib=torch.cuda.max_memory_reserved() >> 20,
                   total_mib=total >> 20, used_before_mib=(total - free_before) >> 20, used_mib=(total - free) >> 20)
    return row


def forked(f):
    """The status of f in a process of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        status = f() or 0
        sys.stdout.flush()
    except Exception as e:  # a training that fails is a row, too
        print(type(e).__name__, str(e)[:500], file=sys.stderr, flush=True)
    os._exit(status)


def one(name, steps, batch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(1)
    make, shape, batches = ARCHITECTURES[name]
    batch = batch or batches[0]
    model = make().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(batch, *shape, device=device), torch.randint(0, 100, (batch,), device=device)
    print("ready", flush=True)
    for _ in range(steps):
        loss = step(model, optimizer, x, y, "fp32", None, device)
    print('{"result":"%s"}' % float(loss).hex(), flush=True)


# Convolutions whose workspace is large: those of measured runs that took gigabytes beyond their
# tensors, and one whose transform is as large as what it reads. In, out, kernel, side, batch.
CONVOLUTIONS = {
    "1x1 of 3M filters": (1536, 2048, 1, 10, 8),
    "3x3 of 1M filters": (1024, 1024, 3, 14, 16),
    "3x3 of 256 channels": (256, 256, 3, 56, 32),
}


def workspace(name, benchmark, device):
    i, o, kernel, side, batch = CONVOLUTIONS[name]
    torch.backends.cudnn.benchmark = benchmark
    torch.manual_seed(1)
    cuda = device == "cuda"
    layer = nn.Conv2d(i, o, kernel, padding=kernel // 2, bias=False).to(device)
    x = torch.randn(batch, i, side, side, device=device, requires_grad=True)

    def once():
        layer(x).sum().backward()
        layer.weight.grad = x.grad = None

    for _ in range(3):
        once()
    if cuda:
        torch.cuda.synchronize()
    begun, steps = time.monotonic(), 20 if cuda else 1
    for _ in range(steps):
        once()
    row = {"convolution": name, "benchmark": benchmark, "torch": torch.__version__,
           "cudnn": torch.backends.cudnn.version()}
    if cuda:
        torch.cuda.synchronize()
        # Both ends and their gradients, the weight and its gradient.
        tensors = 4 * (2 * x.numel() + 2 * batch * o * side * side + 2 * layer.weight.numel())
        free, total = torch.cuda.mem_get_info()
        row.update(tensors_mib=tensors >> 20, allocated_mib=torch.cuda.max_memory_allocated() >> 20,
                   reserved_mib=torch.cuda.max_memory_reserved() >> 20, used_mib=(total - free) >> 20)
    row["step_ms"] = (time.monotonic() - begun) / steps * 1000
    return row


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--first", type=int, default=1000)
    p.add_argument("--device", default="cuda")
    p.add_argument("--one", choices=ARCHITECTURES)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int)
    p.add_argument("--workspaces", action="store_true")
    o = p.parse_args()
    if o.one:
        return one(o.one, o.steps, o.batch)
    if o.device == "cuda" and forked(lambda: 0 if torch.cuda.is_available() else 77) != 0:
        return 77
    if o.workspaces:
        for name, benchmark in [(name, b) for b in (True, False) for name in CONVOLUTIONS][:o.first]:
            if forked(lambda: print(json.dumps(workspace(name, benchmark, o.device)), flush=True)):
                print(json.dumps({"convolution": name, "benchmark": benchmark, "failed": True}), flush=True)
        return 0
    # The cheap ones of all architectures first: the time may end before the list.
    todo = [(name, a[2][size], mode) for size in range(3) for mode in MODES for name, a in ARCHITECTURES.items()]
    for name, batch, mode in todo[:o.first]:
        forked(lambda: print(json.dumps(train(name, batch, mode, o.device, 3)), flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
