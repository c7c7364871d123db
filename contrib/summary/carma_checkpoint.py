# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a traced script: what has data is saved, in place of a fake tensor stands its shape.

A fake tensor is pickled as a call of hollow(), which makes a fake tensor of the
same shape again, on the GPU or not as before. So a script reads what it wrote.
"""

import functools
import os

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

recorder = None  # of the trace that is running
place = ""  # what the torch.load that is running was told: cpu, cuda, or nothing


def hollow(shape, stride, dtype, on_gpu, requires_grad, parameter):
    """A fake tensor in place of the one that was saved."""
    if recorder is None:
        raise RuntimeError("this file was written by carma-trace and has no data")
    with torch.no_grad(), recorder.hidden(), recorder.fake:
        made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    if on_gpu and place != "cpu" or place == "cuda":
        made = recorder.to_gpu(made)
    if parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    return made.requires_grad_(requires_grad) if requires_grad else made


def reduced(tensor, protocol):
    leaf = tensor.is_leaf and tensor.requires_grad
    return hollow, (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, recorder.on_gpu(tensor), leaf,
                    isinstance(tensor, torch.nn.Parameter))


def put(tracing, overlay):
    """Replaces torch.save and torch.load for a trace, and how tensors without data are pickled."""
    global recorder
    recorder = tracing.recorder
    FakeTensor.__reduce_ex__ = reduced  # its own takes along the whole mode of fake tensors, which has no pickle
    tracing.stack.callback(delattr, FakeTensor, "__reduce_ex__")
    save, load = torch.save, torch.load
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([hollow])

    @functools.wraps(save)
    def saved(obj, f, *args, **kwargs):
        if isinstance(f, (str, os.PathLike)):
            f = overlay.writing(f, content=False)  # a path is opened in C++
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            return save(obj, f, *args, **kwargs)

    @functools.wraps(load)
    def loaded(f, map_location=None, *args, **kwargs):
        global place
        if isinstance(f, (str, os.PathLike)):
            f = overlay.reading(f)
        place = to = torch.device(map_location).type if isinstance(map_location, (str, torch.device)) else ""
        try:
            made = load(f, "cpu", *args, **kwargs)
        finally:
            place = ""
        if to != "cuda":
            return made
        return tree_map(lambda t: t.cuda() if isinstance(t, torch.Tensor) else t, made)

    tracing.put(torch, "save", saved)
    tracing.put(torch, "load", loaded)
    tracing.put(torch.serialization, "save", saved)
    tracing.put(torch.serialization, "load", loaded)
