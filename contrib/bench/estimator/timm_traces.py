#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trace timm's models for the bench: timm_traces.py OUT MODEL,CxHxW...

Writes OUT/MODEL.txt, two batch sizes each, of a step as timm's own train.py
takes it where nothing but the model is named: SGD with Nesterov momentum, weight
decay for weights of two dimensions or more, the next images beside those of the
step. Nobody has published what the measured runs were given; estimator/README.md
says why Adam cannot be it. Files that are there stay. Needs PyTorch 2 and timm
on the path (its source will do): 1.0.9, the oldest release with all of the
measured models.
"""

import contextlib
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "summary"))
import carma_trace  # noqa: E402
import timm  # noqa: E402
import torch  # noqa: E402

BATCH = 32


class Prefetched(torch.nn.Module):
    """A model, and the next images, which the loader turns from bytes into floats meanwhile."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        self.next = torch.empty(images.shape, dtype=torch.uint8).to(images.device).to(images.dtype)
        return self.model(images)


def optimizer(parameters):
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
              {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 2e-5}]
    return torch.optim.SGD([g for g in groups if g["params"]], lr=0.1, momentum=0.9, nesterov=True)


def trace(name, shape, path):
    with carma_trace.Tracing():  # so that large parameters take no memory
        model = Prefetched(timm.create_model(name, pretrained=False))
        images = torch.empty(BATCH, *shape)
    with open(path + ".part", "w", encoding="ascii") as out:
        carma_trace.show(model, (images, torch.zeros(BATCH, dtype=torch.long)), torch.nn.functional.cross_entropy,
                         optimizer, out=out)
    with open(path + ".part", encoding="ascii") as f:
        lines = [line.removeprefix("#CARMA| ") for line in f if line.startswith("#CARMA| ")]
    with open(path + ".part", "w", encoding="ascii") as f:
        f.writelines(lines)
    os.rename(path + ".part", path)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    torch.set_num_threads(1)
    for word in sys.argv[2:]:
        name, _, shape = word.partition(",")
        path = os.path.join(sys.argv[1], name + ".txt")
        if os.path.exists(path):
            continue
        began = time.monotonic()
        try:
            trace(name, tuple(map(int, shape.split("x"))), path)
            print(f"{name}: {os.path.getsize(path)} bytes in {time.monotonic() - began:.0f} s", flush=True)
        except (carma_trace.Refused, RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as err:
            print(f"{name}: {type(err).__name__}: {str(err)[:200]}", flush=True)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path + ".part")


if __name__ == "__main__":
    main()
