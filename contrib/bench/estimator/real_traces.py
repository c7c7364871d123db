#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trace the models of the CARMA workloads for the bench: real_traces.py OUT [NAME...]

Writes OUT/NAME.txt, named as real_measured.csv names its models, with the
optimizers that it says. Files that are there stay. Needs PyTorch 2, torchvision
and, for the transformers, transformers on the path (4.26 has its AdamW still).
Runs under DataParallel are not traced: a trace has one GPU.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "summary"))
import carma_trace  # noqa: E402
import torch  # noqa: E402

functional = torch.nn.functional


class MNIST(torch.nn.Module):
    """Two convolutions and two linear layers, with their operations as calls."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = torch.nn.Dropout(0.25), torch.nn.Dropout(0.5)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        return functional.log_softmax(self.fc2(self.dropout2(functional.relu(self.fc1(x)))), 1)


def vision(name, batch, side, optimizer, **kwargs):
    import torchvision
    return getattr(torchvision.models, name)(**kwargs), (torch.empty(batch, 3, side, side), labels(batch)), \
        functional.cross_entropy, optimizer


def labels(*shape):
    return torch.zeros(*shape, dtype=torch.long)


def words(model, batch, length, optimizer, **more):
    return model, ({"input_ids": labels(batch, length), "attention_mask": labels(batch, length), **more}, None), \
        None, optimizer


def fused(attention):
    """BERT's attention by scaled_dot_product_attention, as transformers 4.41 and later have it."""
    def forward(hidden, *args, **kwargs):
        query, key, value = (attention.transpose_for_scores(f(hidden))
                             for f in (attention.query, attention.key, attention.value))
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=attention.dropout.p)
        return (out.transpose(1, 2).reshape(hidden.shape),)

    attention.forward = forward


def bert():
    import transformers as t
    model = t.BertForMaskedLM(t.BertConfig(vocab_size=28996))
    for layer in model.bert.encoder.layer:
        fused(layer.attention.self)
    return words(model, 32, 512, t.AdamW, labels=labels(32, 512))


MODELS = {
    "vgg16": lambda: vision("vgg16", 32, 224, torch.optim.Adam),
    "resnet50": lambda: vision("resnet50", 32, 224, torch.optim.Adam),
    "mobilenetV2": lambda: vision("mobilenet_v2", 32, 224, torch.optim.Adam),
    "resnet18_cifar": lambda: vision("resnet18", 32, 32, torch.optim.AdamW, num_classes=100),
    "resnet34_cifar": lambda: vision("resnet34", 32, 32, torch.optim.AdamW, num_classes=100),
    "mnist_cnn": lambda: (MNIST(), (torch.empty(64, 1, 28, 28), labels(64)), functional.nll_loss,
                          torch.optim.Adadelta),
    "BERT_base": bert,
}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        path = os.path.join(sys.argv[1], name + ".txt")
        if os.path.exists(path):
            continue
        with carma_trace.Tracing():  # so that large parameters take no memory
            model, sample, loss, optimizer = MODELS[name]()
        with open(path + ".part", "w", encoding="ascii") as out:
            carma_trace.show(model, sample, loss, optimizer, out=out)
        with open(path + ".part", encoding="ascii") as f:
            lines = [line.removeprefix("#CARMA| ") for line in f if line.startswith("#CARMA| ")]
        with open(path + ".part", "w", encoding="ascii") as f:
            f.writelines(lines)
        os.rename(path + ".part", path)
        print(f"{name}: {os.path.getsize(path)} bytes", flush=True)


if __name__ == "__main__":
    main()
