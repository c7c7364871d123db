#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print a summary of a PyTorch model for CARMA, with #CARMA lines to paste.

    import carma_summary
    carma_summary.show(model, (3, 224, 224), batch=64, optim="adamw")

or, for a model that a module makes without arguments:

    carma_summary.py mymodule:build --input 3x224x224 --batch 64
    carma_summary.py mymodule:build --seq 512 --batch 8 --vocab 30522

The model runs once, forward, with two samples on the CPU; nothing is trained
and no GPU is touched. What is printed are the modules in the order in which
they run, and the bytes per sample that autograd really keeps for the backward
pass, counted by torch.autograd.graph.saved_tensors_hooks: that count needs no
guess about calls that no module shows.

Only PyTorch is needed.
"""

import argparse
import importlib
import os
import sys

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20


def need_torch():
    if torch is None:
        raise SystemExit(
            "carma_summary: PyTorch is not installed for this Python "
            f"({sys.executable}): run it where your training runs")


def tensors(value):
    """All tensors in an output: a tensor, or lists, tuples and dicts of them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def own_parameters(module):
    return sum(p.numel() for p in module.parameters(recurse=False))


def storage_key(tensor):
    """What names the memory behind a tensor, so that views count once."""
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return storage.data_ptr(), storage.nbytes()


class Run:
    """One forward pass of a model: its modules in order and its kept bytes."""

    def __init__(self, model, inputs):
        self.rows = []  # (class, output shape, own parameters)
        self.kept = {}  # storage -> bytes
        self._fixed = {storage_key(t) for t in list(model.parameters()) + list(model.buffers())}
        handles = [m.register_forward_hook(self._module) for m in model.modules()
                   if m is not model and not isinstance(m, (torch.nn.Sequential, torch.nn.ModuleList))]
        was_training = model.training
        model.train()
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t):
                self.output = model(*inputs)
        finally:
            model.train(was_training)
            for handle in handles:
                handle.remove()
        self._alive = None

    def _module(self, module, _inputs, output):
        found = tensors(output)
        shape = list(found[0].shape) if found else []
        self.rows.append((type(module).__name__, shape, own_parameters(module)))

    def _pack(self, tensor):
        key = storage_key(tensor)
        if key not in self._fixed:
            # The tensor itself is held so that its address is not used again.
            self.kept[key] = tensor
        return tensor

    def kept_bytes(self):
        return sum(size for _address, size in self.kept)


def sample(shape, seq, vocab, batch):
    if shape:
        return (torch.zeros(batch, *shape),)
    return (torch.randint(0, vocab, (batch, seq)),)


def measure(model, shape=None, seq=None, vocab=1000):
    """Run the model on one and on two samples.

    Returns the rows of the second run, the kept bytes per sample and those
    that do not depend on the batch.
    """
    one = Run(model, sample(shape, seq, vocab, 1)) if not has_batch_norm(model) else None
    two = Run(model, sample(shape, seq, vocab, 2))
    if one is None:  # BatchNorm refuses one sample of one value
        four = Run(model, sample(shape, seq, vocab, 4))
        per = (four.kept_bytes() - two.kept_bytes()) // 2
    else:
        per = two.kept_bytes() - one.kept_bytes()
    return two.rows, per, two.kept_bytes() - 2 * per


def has_batch_norm(model):
    return any(type(m).__name__.startswith("BatchNorm") for m in model.modules())


def lines(rows):
    """The rows as a torchsummary table, batch -1."""
    yield f"{'Layer (type)':>25}  {'Output Shape':>25} {'Param #':>15}"
    yield "=" * 68
    for number, (kind, shape, parameters) in enumerate(rows, 1):
        dims = [-1] + shape[1:] if shape else [-1]
        yield f"{f'{kind}-{number}':>25}  {str(dims):>25} {parameters:>15,}"
    yield "=" * 68


def directive(args, per_sample, fixed, parameters):
    keys = [f"batch={args['batch']}"]
    if args.get("shape"):
        keys.append("input=" + "x".join(str(n) for n in args["shape"]))
    if args.get("seq"):
        keys.append(f"seq={args['seq']}")
    for key in ("optim", "precision"):
        if args.get(key):
            keys.append(f"{key}={args[key]}")
    if parameters:
        keys.append(f"params={parameters}")
    return "#CARMA " + " ".join(keys)


def show(model, shape=None, batch=1, seq=None, vocab=1000, optim=None, precision=None, out=None):
    """Print the summary and the #CARMA lines of a model.

    shape is CxHxW of a sample, or seq the tokens of one; batch is per GPU.
    """
    need_torch()
    if not shape and not seq:
        raise SystemExit("carma_summary: say how large a sample is: an input shape or seq")
    out = out or sys.stdout
    rows, per_sample, fixed = measure(model, shape, seq, vocab)
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    args = {"batch": batch, "shape": shape, "seq": seq, "optim": optim, "precision": precision}
    print(directive(args, per_sample, fixed, trained if trained != total else 0), file=out)
    for line in lines(rows):
        print("#CARMA| " + line, file=out)
    print(f"#CARMA| Total params: {total:,}", file=out)
    print(f"#CARMA| Trainable params: {trained:,}", file=out)
    print(f"#CARMA| Kept bytes per sample: {per_sample:,}", file=out)
    print(file=out)
    print(f"# kept for the backward pass: {per_sample / MIB:.2f} MiB a sample, "
          f"{batch * per_sample / MIB:.0f} MiB at batch {batch}, {fixed / MIB:.2f} MiB besides", file=out)
    print(f"# parameters: {total:,}, trained: {trained:,}", file=out)


def parse_shape(text):
    try:
        shape = tuple(int(n) for n in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 3x224x224")
    return shape


def main(argv=None):
    parser = argparse.ArgumentParser(prog="carma-summary", description="print a model's summary and #CARMA lines")
    parser.add_argument("model", help="module:function that returns the model, called without arguments")
    parser.add_argument("--input", type=parse_shape, help="shape of a sample, CxHxW")
    parser.add_argument("--seq", type=int, help="tokens of a sample, for a model of token ids")
    parser.add_argument("--vocab", type=int, default=1000, help="token ids are drawn below this (default 1000)")
    parser.add_argument("--batch", type=int, default=1, help="batch size per GPU")
    parser.add_argument("--optim", help="optimizer, as in #CARMA optim=")
    parser.add_argument("--precision", help="number format, as in #CARMA precision=")
    args = parser.parse_args(argv)
    need_torch()
    module, _, function = args.model.partition(":")
    if not function:
        parser.error(f"{args.model!r} is not module:function")
    sys.path.insert(0, os.getcwd())
    try:
        model = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as err:
        raise SystemExit(f"carma_summary: make the model of {args.model}: {err}") from err
    if not isinstance(model, torch.nn.Module):
        raise SystemExit(f"carma_summary: {args.model} returned {type(model).__name__}, not a torch.nn.Module")
    show(model, args.input, args.batch, args.seq, args.vocab, args.optim, args.precision)


if __name__ == "__main__":
    main()
