#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trace what a training step allocates, without a GPU and without its memory.

    carma_trace.py train.py --batch-size 64      # an unchanged training script
    carma_trace.py -o trace.txt train.py ...     # into a file

or from Python, for a model that is not needed afterwards:

    import carma_trace
    carma_trace.show(model, (images, labels), loss=torch.nn.CrossEntropyLoss(),
                     optimizer=torch.optim.AdamW(model.parameters()))

The first two steps run on PyTorch's fake tensors, which have shapes and no
data: nothing is computed, nothing is trained, and no GPU is touched. What is
printed are #CARMA lines for a batch script: the births and deaths of the
memory of a GPU in order. docs/trace.md describes the text.

Only PyTorch 2 is needed.
"""

import argparse
import contextlib
import os
import sys

sys.dont_write_bytecode = True  # nor beside the script's own modules

import carma_command  # noqa: E402
import carma_wall  # noqa: E402
from carma_command import LAUNCHER  # noqa: E402
from carma_patches import Tracing  # noqa: E402
from carma_recorder import OPTIMIZERS, STEPS, Done, Refused, need_torch, torch  # noqa: E402
from carma_script import apart  # noqa: E402
from carma_text import alike, lines  # noqa: E402

if torch is not None and int(torch.__version__.split(".")[0]) >= 2:
    from torch.utils._pytree import tree_leaves, tree_map


# A model.


def resized(value, batch, new):
    """A sample with another number of rows: its tensors whose first dimension is the batch."""
    def change(t):
        if not isinstance(t, torch.Tensor) or t.dim() == 0 or t.shape[0] != batch:
            return t
        return t.new_empty((new, *t.shape[1:]))
    return tree_map(change, value)


def other_batch(batch):
    """The second size: half, or the double of a small one, which BatchNorm may refuse to halve."""
    return batch // 2 if batch >= 4 else 2 * batch


def trace(model, sample, loss=None, optimizer=None, amp=None):
    """Trace two steps of a model.

    sample is what a loader gives, (inputs, targets), each a tensor or several;
    loss takes output and targets, and is the output's sum (or its .loss) if
    not given; optimizer is one of the model's parameters, or makes one of
    them (default AdamW); amp is autocast's dtype. The model and the optimizer
    are of no use afterwards: their tensors have lost their data.
    """
    given = optimizer
    with Tracing() as tracing, contextlib.suppress(Done):
        r = tracing.recorder
        if isinstance(given, torch.optim.Optimizer):
            given.state.clear()
            given._carma_steps = 0
            OPTIMIZERS.append(given)
        model.train()
        for p in model.parameters():
            p.grad = None
        r.module_to_gpu(model)
        if optimizer is None:
            optimizer = torch.optim.AdamW(model.parameters())
        elif not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        inputs, targets = sample if isinstance(sample, (tuple, list)) else (sample, None)
        out = value = None
        for _ in range(STEPS + 1):
            x, y = (tree_map(lambda t: r.to_gpu(t) if isinstance(t, torch.Tensor) else t, v) for v in (inputs, targets))
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=amp) if amp is not None else contextlib.nullcontext():
                out = (model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, (tuple, list)) else model(x))
                value = loss(out, y) if loss else getattr(out, "loss", None)
                if value is None:
                    value = sum(t.sum() for t in tree_leaves(out) if isinstance(t, torch.Tensor))
            value.backward()
            optimizer.step()
    return tracing.result()


def show(model, sample, loss=None, optimizer=None, amp=None, batch=None, out=None):
    """Print the #CARMA lines of two steps of a model, as trace() runs them, for two batch sizes."""
    need_torch()
    first_tensor = next((t for t in tree_leaves(sample) if isinstance(t, torch.Tensor) and t.dim()), None)
    batch = batch or (first_tensor.shape[0] if first_tensor is not None else 0)
    second = None
    new = other_batch(batch) if batch else 0

    def traced_second():
        with contextlib.suppress(RuntimeError, ValueError, Refused):
            return trace(model, resized(sample, batch, new), loss, optimizer, amp)

    if batch:
        second = traced_second()
    first = trace(model, sample, loss, optimizer, amp)
    if second is not None and not alike(first, second):
        second = traced_second()  # the model has kept what the first pass made
    for line in lines(first, batch, second, new):
        print(line, file=out or sys.stdout)


# A script.

BATCH_OPTIONS = frozenset(("batch_size", "batchsize", "batch", "b", "bs", "train_batch_size",
                           "per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu"))


def is_batch(name):
    """Whether an option, or a setting such as train.batch_size=8, is the batch size."""
    dashes, name = name.startswith("-"), name.lstrip("-")
    last = name.rpartition(".")[2].replace("-", "_")
    return last in BATCH_OPTIONS and (dashes or last not in ("b", "bs", "batch"))


def batch_of(argv):
    """The place of the batch size in a script's arguments, and the size."""
    for i, word in enumerate(argv):
        name, given, value = word.partition("=")
        if is_batch(name) and (given or name.startswith("-")):
            value = value if given else argv[i + 1] if i + 1 < len(argv) else ""
            if value.isdigit() and int(value) > 0:
                return i, int(value)
    return None, 0


def with_batch(argv, place, batch):
    argv = list(argv)
    name, given, _ = argv[place].partition("=")
    if given:
        argv[place] = f"{name}={batch}"
    else:
        argv[place + 1] = str(batch)
    return argv


def trace_command(command):
    """The #CARMA lines of a program; its second run has another batch size."""
    argv = command.argv
    try:
        first = apart(command, argv)
    except Refused as err:
        if not any(f"KeyError: '{name}'" in str(err) for name in LAUNCHER):
            raise
        command.env.update(LAUNCHER)  # it is always run by a launcher
        first = apart(command, argv)
    place, batch = batch_of(argv)
    batch = batch or first["loader"]
    second, new = None, 0
    if batch:
        new = other_batch(batch)
        try:
            second = (apart(command, with_batch(argv, place, new)) if place is not None
                      else apart(command, argv, new))
        except Refused as err:
            first["single"] = str(err)[:150]
    return lines(first, batch, second, new)


def trace_one(commands):
    """The lines of the one program that trains, of those that a batch script runs. The others are not run."""
    command = carma_command.training(commands)
    others = [c.module or c.script for c in commands if c is not command]
    if others:
        print(f"carma-trace: {command.module or command.script} is traced; not run: {', '.join(others)}",
              file=sys.stderr)
    if command.script:
        path = os.path.join(command.cwd or "", command.script)
        if not os.path.isfile(path):
            raise Refused(f"{command.script}: no such file")
    return trace_command(command)


def own(command):
    """Refuses that root runs a script or a Python of another user."""
    for path in (command.script, command.python):
        at = os.path.join(command.cwd or "", path or "")
        if path and carma_wall.is_root() and os.path.exists(at) and os.stat(at).st_uid != 0:
            raise Refused(f"{path} is another user's, and would run as root: trace it as that user")


def other_python(command):
    """Goes on in the Python that the command names, if that is another one: it may have other packages.

    A wrapper of another name or kind is not run: nothing would keep the user's files from it.
    """
    python = command.python
    if not python or "CARMA_TRACE_PYTHON" in os.environ or not os.access(python, os.X_OK):
        return
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return
    with open(python, "rb") as f:
        if f.read(4) != b"\x7fELF":
            raise Refused(f"{python} is no Python but starts one: give that one, or run carma-trace in its environment")
    os.environ["CARMA_TRACE_PYTHON"] = python
    os.execv(python, [python, os.path.realpath(__file__), *sys.argv[1:]])


def split(argv):
    """The tracer's own options, and the command."""
    i = 0
    while i < len(argv) and argv[i].startswith("-") and argv[i] != "-m":
        if argv[i] == "--":
            return argv[:i], argv[i + 1:]
        i += 2 if argv[i] in ("-o", "--output") else 1
    return argv[:i], argv[i:]


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="carma-trace", usage="carma-trace [-o FILE] COMMAND [ARGS ...]",
        description="Trace what a training script allocates in its first two steps, without a GPU and without a "
        "change to any file, and print #CARMA lines.")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the lines to a file (default: stdout)")
    parser.epilog = (
        "COMMAND is what you type to train: train.py ARGS, -m MODULE ARGS, python train.py ARGS, torchrun, accelerate "
        "launch or deepspeed with their options, or a batch script, whose command is traced.")
    options, words = split(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(options)
    if not words:
        parser.error("there is no command to trace")
    try:
        commands = carma_command.of(words)
        command = carma_command.training(commands)
        own(command)
        other_python(command)
        need_torch()
        os.environ.setdefault("PYTORCH_JIT", "0")
        made = trace_one(commands)
    except (Refused, carma_command.Unclear) as err:
        raise SystemExit(f"carma-trace: {err}") from err
    body = "\n".join(made) + "\n"
    if args.output:
        with open(args.output, "w", encoding="ascii", errors="replace") as f:
            f.write(body)
    else:
        sys.stdout.write(body)


if __name__ == "__main__":
    main()
