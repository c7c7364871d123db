# SPDX-License-Identifier: Apache-2.0
"""Sizes that depend on data, of which a trace has none: the largest that they can be.

Each function gives what an operation returns for fake tensors. Host tensors of
whole numbers, such as the lengths of sequences, do have data, and are read.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor

LARGEST = "sizes that depend on data: the largest possible were taken"
ONCE = "sizes that depend on data: repeat_interleave and bincount were taken to give one for one"


def known(tensor):
    return isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor)


def whole(like, *shape):
    return like.new_empty(shape, dtype=torch.int64)


def nonzero(x, most):
    return whole(x, x.numel() if most is None else most, x.dim())


def masked_select(x, mask):
    return x.new_empty((torch.broadcast_shapes(x.shape, mask.shape).numel(),))


def is_mask(i):
    return i is not None and i.dtype in (torch.bool, torch.uint8)


def index(x, indices, recorder):
    """A mask of several dimensions stands for as many indices, each as long as the mask is large."""
    new, scratch = [], []
    for i in indices:
        if not is_mask(i):
            new.append(i)
            continue
        n = places(i, recorder)
        n = recorder.choices.most(i) if n is None else n
        n = i.numel() if n is None else n
        scratch.append(whole(x, n, i.dim()))
        new.extend(whole(x, n) for _ in range(i.dim()))
    return torch.ops.aten.index.Tensor(x, new), scratch


def places(mask, recorder):
    """How many places a mask chooses; None: not known, or the mask has changed since."""
    found = recorder.choices.get(recorder.chosen, mask)
    return found[0] if found else None


def choose(x, indices, values, recorder):
    """x[mask] = values says how many places the mask chooses; the gradient of the values has as many rows."""
    at = [n for n, i in enumerate(indices) if i is not None]
    if len(at) != 1 or not is_mask(indices[at[0]]):
        return
    mask = indices[at[0]]
    behind = x.dim() - at[0] - mask.dim()  # dimensions after the mask's
    if values.dim() > behind and values.shape[-1 - behind] != 1:
        recorder.chosen[mask] = recorder.choices.stamp(mask), min(values.shape[-1 - behind], mask.numel())


def unique(x, _sorted=True, inverse=False, counts=False):
    n = x.numel()
    return x.new_empty((n,)), whole(x, *(x.shape if inverse else (0,))), whole(x, n if counts else 0)


def unique_dim(x, dim, _sorted=True, inverse=False, counts=False):
    n = x.shape[dim]
    return torch.empty_like(x), whole(x, n if inverse else 0), whole(x, n if counts else 0)


def unique_consecutive(x, inverse=False, counts=False, dim=None):
    return unique(x, True, inverse, counts) if dim is None else unique_dim(x, dim, True, inverse, counts)


def repeat_interleave(repeats, output_size=None):
    return whole(repeats, repeats.numel() if output_size is None else output_size)


def bincount(x, weights=None, minlength=0):
    return (x if weights is None else weights).new_empty((max(minlength, x.numel()),))


def nms(boxes, scores, threshold):
    return whole(boxes, boxes.shape[0])


def pack_padded_sequence(x, lengths, batch_first):
    """All sequences are as long as the longest: PyTorch's LSTM for the CPU fails without data at shorter ones."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    if known(lengths) and lengths.numel():
        steps = int(lengths.max()) or steps  # 0: read by .numpy() from a tensor without data
    return x.new_empty((steps * batch, *x.shape[2:])), torch.full((steps,), batch, dtype=torch.int64)


def pack_padded_sequence_backward(grad, size, sizes, batch_first):
    return grad.new_empty((size[1], size[0], *size[2:]) if batch_first else tuple(size))


def ctc_loss(scores, targets, input_lengths, target_lengths, *rest):
    longest = targets.shape[1] if targets.dim() == 2 else targets.numel()
    if known(target_lengths) and target_lengths.numel():
        longest = int(target_lengths.max())
    elif isinstance(target_lengths, (list, tuple)):
        longest = max(target_lengths)
    return scores.new_empty((scores.shape[1],)), scores.new_empty((scores.shape[1], scores.shape[0], 2 * longest + 1))


def ctc_loss_backward(grad, scores, *rest, **kwargs):
    return torch.empty_like(scores)


BOUNDS = {
    "aten::nonzero": nonzero, "aten::masked_select": masked_select, "aten::_unique2": unique,
    "aten::unique_dim": unique_dim, "aten::unique_consecutive": unique_consecutive,
    "aten::unique_dim_consecutive": lambda x, dim, *how: unique_dim(x, dim, True, *how),
    "aten::repeat_interleave": repeat_interleave, "aten::bincount": bincount, "torchvision::nms": nms,
    "aten::_pack_padded_sequence": pack_padded_sequence, "aten::_ctc_loss": ctc_loss,
    "aten::_pack_padded_sequence_backward": pack_padded_sequence_backward,
    "aten::_ctc_loss_backward": ctc_loss_backward,
    "aten::allclose": lambda a, b, *rest, **kwargs: True,
}
ASSUMED = {"aten::repeat_interleave": ONCE, "aten::bincount": ONCE, "aten::allclose": "",
           "aten::_ctc_loss_backward": "", "aten::_pack_padded_sequence_backward": ""}


def of(func, args, kwargs, recorder):
    """The result of an operation whose size depends on data; None for other operations."""
    name = func._schema.name
    repeats = args[0] if args else None
    if name in BOUNDS or name == "aten::index":
        if known(args[0]):  # a tensor made like a host tensor would have any values
            args = (recorder.fake.from_tensor(args[0]), *args[1:])
    if name == "aten::index":
        masks = [i for i in args[1] if is_mask(i)]
        if not masks:
            return None
        if any(places(i, recorder) is None for i in masks):
            recorder.note(LARGEST)
        out, scratch = index(*args, recorder)
        if recorder.on_gpu(args[0]):
            for t in scratch:
                recorder.born(t)
        return (out,)
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        choose(*args[:3], recorder)
        return None
    if name == "aten::equal":
        return (recorder.equal,)
    bound = BOUNDS.get(name)
    if bound is None or name == "aten::repeat_interleave" and func._overloadname != "Tensor":
        return None
    if name == "aten::repeat_interleave" and recorder.data(repeats) is not None:
        return (repeat_interleave(args[0], int(recorder.data(repeats).sum())),)
    if ASSUMED.get(name, LARGEST):
        recorder.note(ASSUMED.get(name, LARGEST))
    if name == "aten::nonzero":
        return (bound(args[0], recorder.choices.most(args[0])),)
    return (bound(*args, **kwargs),)
