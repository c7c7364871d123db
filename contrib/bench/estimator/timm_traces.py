#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trace timm's models for the bench: timm_traces.py OUT MODEL,CxHxW...

Writes OUT/MODEL.txt, two batch sizes each, as the measured runs trained them:
Adam with one temporary a parameter, cross entropy, no dropout. Files that are
there stay. Needs PyTorch 2 and timm on the path (its source will do). The
measured runs had fused attention in volo, as timm has it since 1.0.3: the
summaries show no dropout of its attention. Beside it only xcit and hiera gained
it after 0.9.16, which the other models were traced with.
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


def trace(name, shape, path):
    with carma_trace.Tracing():  # so that large parameters take no memory
        model = timm.create_model(name, pretrained=False)
        images = torch.empty(BATCH, *shape)
    with open(path + ".part", "w", encoding="ascii") as out:
        carma_trace.show(model, (images, torch.zeros(BATCH, dtype=torch.long)), torch.nn.functional.cross_entropy,
                         lambda parameters: torch.optim.Adam(parameters, foreach=False), out=out)
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
