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
import errno
import json
import os
import runpy
import shutil
import signal
import stat
import sys
import tempfile
import traceback
import warnings
import weakref

sys.dont_write_bytecode = True  # nor beside the script's own modules

import carma_command  # noqa: E402
import carma_overlay  # noqa: E402
import carma_trackers  # noqa: E402
import carma_wall  # noqa: E402
from carma_command import LAUNCHER  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

STEPS = 2  # a second step allocates what the optimizer's first one broke up
MOST_EVENTS = 1 << 16  # estimator/trace, MaxEvents
MOST_BYTES = 256 << 10  # estimator/trace, MaxBytes
REPEATS_FROM = 64  # events from which equal passes are looked for
MARKS = 24  # events by which the end of a pass is recognised
BLIND = 32  # backward passes without an optimizer and without a step by hand
FAKE_FROM = 1 << 14  # elements of a host tensor from which its data are left out
GIB = 1 << 30
MOST_ANSWER = 512 << 20  # bytes of what the script's process has recorded


class Refused(Exception):
    """The training cannot be traced; the text says why and what to do."""


class Done(BaseException):
    """Ends a script after its second step; not an Exception, so that none catches it."""


if torch is not None and int(torch.__version__.split(".")[0]) >= 2:
    import carma_bounds
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map
    from torch.utils.weak import WeakTensorKeyDictionary
else:
    TorchDispatchMode = TorchFunctionMode = object


def need_torch():
    if torch is None:
        raise Refused(f"PyTorch is not installed for this Python ({sys.executable}): run it where your training runs")
    if int(torch.__version__.split(".")[0]) < 2:
        raise Refused(f"PyTorch {torch.__version__} has no fake tensors to trace with: PyTorch 2.0 or later is needed")


# What is in memory: classes of the text.
PARAMETER, GRADIENT, STATE, ACTIVATION = "p", "g", "o", "a"


class Recorder(TorchDispatchMode):
    """Births and deaths of the storages of one imagined GPU, in order.

    A storage is on the GPU if it was put there, or if an operation made it of
    one that is. Its tensors are fake ones of the device cpu: a fake device cuda
    needs a PyTorch that is linked with CUDA, and keeps the same.
    """

    def __init__(self):
        super().__init__()
        self.marks = []  # the events without the numbers of storages: equal passes have equal ones
        self.places = {}  # the last marks before a boundary -> where it was
        self.any_is = True  # what a script reads from any()
        self.asked = False  # it has read that
        self.anys = WeakTensorKeyDictionary()
        self.events = []  # ("+", id, bytes), ("-", id), (letter, convolution)
        self.live = {}  # storage -> (weak reference, id)
        self.tensors = {}  # weak references to the tensors that hold them
        self.left = set()  # storages that a tensor has left since the last sweep
        self.count = 0
        self.kinds = {}  # id -> class
        self.convolutions = {}  # description -> number
        self.unseen = {}  # name -> count
        self.force = 0  # more than 0: whatever is made is on the GPU
        self.hide = 0  # more than 0: nothing is
        self.steps = 0
        self.backwards = 0
        self.by_hand = False  # since the last backward pass the script itself has changed parameters
        self.parameters = []  # weak references to those of modules on the GPU
        self.settings = {}
        self.false = WeakTensorKeyDictionary()  # tensors that say whether something is wrong
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def on_gpu(self, tensor):
        if not isinstance(tensor, FakeTensor):
            return False
        known = self.live.get(tensor.untyped_storage()._cdata)
        return known is not None and not known[0].expired()

    def note(self, name):
        self.unseen[name] = self.unseen.get(name, 0) + 1

    def sweep(self, keys=None):
        expired = torch.UntypedStorage._expired  # what StorageWeakRef.expired asks, without its way there
        dead = [key for key in (self.live if keys is None else keys)
                if key in self.live and expired(self.live[key][0].cdata)]
        for key in sorted(dead, key=lambda key: self.live[key][1]):
            number = self.live.pop(key)[1]
            self.add(("-", number), ("-", self.count - number))
        self.left.clear()

    def watch(self, tensor, key):
        """Notes when the tensor goes: only then may its storage be gone, too. Asking all of them takes too long."""
        def gone(ref, number=id(tensor)):
            if self.tensors.get(number) is ref:
                del self.tensors[number]
            self.left.add(key)

        self.tensors[id(tensor)] = weakref.ref(tensor, gone)

    def born(self, tensor):
        if not isinstance(tensor, FakeTensor):
            return  # the lengths of a packed sequence stay on the host
        storage = tensor.untyped_storage()
        known = self.live.get(storage._cdata)
        if known is not None and not known[0].expired():
            self.watch(tensor, storage._cdata)
            return
        size = storage.nbytes()
        if size == 0:
            return
        self.sweep(self.left)
        self.watch(tensor, storage._cdata)
        self.live[storage._cdata] = (StorageWeakRef(storage), self.count)
        self.add(("+", self.count, size), ("+", size))
        self.count += 1
        if len(self.events) > 2 * MOST_EVENTS:
            raise Refused(f"what it does until its second step makes more than {MOST_EVENTS:,} allocations, even if "
                          "equal passes count once: shorten what comes before, or give mem=")

    def add(self, event, mark=None):
        self.events.append(event)
        self.marks.append(mark or event)

    def boundary(self):
        """A place where a pass may end. The third of three equal passes is forgotten: it leaves what the second left.

        Accumulation of gradients and evaluation so take two passes of the text, however many there are.
        """
        if len(self.events) < REPEATS_FROM:
            return
        self.sweep(self.left)
        marks, n = self.marks, len(self.marks)
        key = tuple(marks[-MARKS:])
        before, self.places[key] = self.places.get(key, n), n
        width = n - before
        if not 0 < width <= n // 3 or marks[n - width:] != marks[n - 2 * width:n - width] or (
                marks[n - width:] != marks[n - 3 * width:n - 2 * width]):
            return
        births = sum(1 for mark in marks[n - width:] if mark[0] == "+")
        first, live = self.count - births, {number for _, number in self.live.values()}
        if any(number >= first and number - births in live for number in live):
            return  # what the pass leaves piles up
        del self.events[n - width:], marks[n - width:]
        self.count = first
        self.places[key] = before
        for at, (ref, number) in self.live.items():
            if number >= first:
                self.live[at] = ref, number - births
        for number in range(first, first + births):
            kind = self.kinds.pop(number, None)
            if kind is not None:
                self.kinds.setdefault(number - births, kind)

    def id_of(self, tensor):
        known = self.live.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[1]

    def name(self, tensors, kind):
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and self.on_gpu(tensor):
                self.kinds[self.id_of(tensor)] = kind

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in READS and isinstance(args[0], FakeTensor):
            self.boundary()
            return self.value(args[0])
        if func.overloadpacket in IN_PLACE and isinstance(args[0], FakeTensor):
            if self.backwards and not self.by_hand and not OPTIMIZERS:
                self.changes(args[0])
            return args[0]  # nothing is made: an optimizer does little else, parameter by parameter
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        gpu = self.hide == 0 and (self.force > 0 or any(self.on_gpu(t) for t in tensors))
        faked = any(isinstance(t, FakeTensor) for t in tensors)
        if not gpu and not self.force and not faked:
            return func(*args, **kwargs)
        try:
            with contextlib.nullcontext() if faked else self.fake:
                bounded = carma_bounds.of(func, args, kwargs, self) if faked else None
                out = func(*args, **kwargs) if bounded is None else bounded[0]
        except Exception as err:
            if type(err).__name__ in ("DynamicOutputShapeException", "DataDependentOutputException"):
                raise Refused(f"{func} makes a tensor whose size depends on data, which a trace has not") from err
            raise
        if not gpu:
            return out
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if func is torch.ops.aten.convolution_backward.default:
            self.convolution_backward(args, out)
        else:
            for t in made:
                self.born(t)
            self.operation(func, args, made)
        return out

    def operation(self, func, args, made):
        packet = func.overloadpacket
        if packet is torch.ops.aten.convolution:
            self.add(("f", self.convolution(args[0], args[1], made[0], args[6], args[8], args[3])))
        elif packet in MATMULS:
            self.add(("m", None))
        elif packet is torch.ops.aten.any and args[0] not in self.false:
            self.anys[made[0]] = True
        elif packet in WRONG:
            self.false[made[0]] = True
        elif packet in (torch.ops.aten.any, torch.ops.aten.logical_or) and any(
                isinstance(t, torch.Tensor) and t in self.false for t in args):
            self.false[made[0]] = True

    def convolution_backward(self, args, out):
        grad, given, weight, transposed, groups, stride = args[0], args[1], args[2], args[7], args[9], args[4]
        number = self.convolution(given, weight, grad, transposed, groups, stride)
        for letter, tensor in zip("dwb", out):
            if isinstance(tensor, torch.Tensor):
                self.born(tensor)
                if letter != "b":
                    self.add((letter, number))

    def convolution(self, given, weight, out, transposed, groups, stride):
        """The number of a convolution's description; bytes first, they depend on the batch."""
        what = (bytes_of(given), bytes_of(out), tuple(weight.shape), int(groups),
                max(stride) if stride else 1, weight.element_size(), bool(transposed))
        return self.convolutions.setdefault(what, len(self.convolutions))

    def value(self, tensor):
        """What a script reads out of a tensor that has no data."""
        if tensor in self.anys:
            self.asked = True
            return self.any_is
        if tensor.dtype == torch.bool:
            return tensor not in self.false
        return 1.0 if tensor.is_floating_point() else 1

    # What the recorder makes itself.

    @contextlib.contextmanager
    def hidden(self):
        self.hide += 1
        try:
            yield
        finally:
            self.hide -= 1

    @contextlib.contextmanager
    def on(self):
        self.force += 1
        try:
            yield
        finally:
            self.force -= 1

    def to_gpu(self, tensor, dtype=None):
        if tensor.layout is not torch.strided:
            raise Refused("sparse tensors cannot be traced: give mem= instead")
        if not self.on_gpu(tensor):
            self.boundary()
            plain = tensor.detach()
            with torch.no_grad(), self.on():
                copy = torch.empty_like(plain, dtype=dtype or tensor.dtype, device="cpu")
            return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy
        return tensor if dtype is None else tensor.to(dtype)

    def module_to_gpu(self, module, dtype=None):
        """Puts a module's parameters and buffers on the GPU; shared ones stay shared."""
        boxes = sys.modules.get("torchvision.ops.boxes")
        if boxes is not None and hasattr(boxes, "_batched_nms_coordinate_trick"):
            boxes._batched_nms_vanilla = boxes._batched_nms_coordinate_trick  # as for boxes on a GPU, in one call
        new = {}
        for m in module.modules():
            for name, p in m._parameters.items():
                if p is None:
                    continue
                if id(p) not in new:
                    kind = dtype if dtype is not None and p.is_floating_point() else None
                    new[id(p)] = p, (p if self.on_gpu(p) and kind in (None, p.dtype) else torch.nn.Parameter(
                        self.to_gpu(p.detach(), kind), requires_grad=p.requires_grad))
                m._parameters[name] = new[id(p)][1]
            for name, b in m._buffers.items():
                if b is not None:
                    m._buffers[name] = self.to_gpu(b, dtype if dtype is not None and b.is_floating_point() else None)
            if isinstance(m, torch.nn.RNNBase):
                m._flat_weights = [getattr(m, n, None) for n in m._flat_weights_names]
                self.note("recurrent layers: cuDNN's kernels keep other tensors")
        self.name((p for _, p in new.values()), PARAMETER)
        self.parameters += [weakref.ref(p) for _, p in new.values()]
        for o in list(OPTIMIZERS):
            for group in o.param_groups:
                group["params"] = [new[id(p)][1] if id(p) in new else p for p in group["params"]]
        return module

    # A loop without torch.optim steps where it changes parameters in place between two backward passes.

    def changes(self, tensor):
        if self.on_gpu(tensor) and self.kinds.get(self.id_of(tensor)) == PARAMETER:
            self.by_hand = True
            known = [p for p in (ref() for ref in self.parameters) if p is not None]
            self.name((p.grad for p in known if p.grad is not None), GRADIENT)

    def backward_begins(self):
        self.steps += self.by_hand
        if self.by_hand and self.steps >= STEPS:
            raise Done
        self.by_hand = False
        self.backwards += 1
        if self.backwards > BLIND and not self.steps and not OPTIMIZERS:
            raise Refused(f"it has made {BLIND} backward passes and no torch.optim optimizer, and changes no parameter "
                          "in place: no step can be seen; call carma_trace.show() with the model, or give mem=")
        self.boundary()

    def step_begins(self, optimizer):
        if not self.settings.get("optimizer"):
            self.settings["optimizer"] = type(optimizer).__name__
        params = [p for g in optimizer.param_groups for p in g["params"]]
        narrow = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(params[0].dtype)
        if narrow:
            self.settings["precision"] = narrow
        if params and not any(self.on_gpu(p) for p in params):
            self.note("the optimizer's parameters are not on the GPU")
        self.name(params, PARAMETER)
        self.name((p.grad for p in params if p.grad is not None), GRADIENT)

    def step_ends(self, optimizer):
        for state in optimizer.state.values():
            self.name((t for t in tree_leaves(state) if isinstance(t, torch.Tensor)), STATE)
        if "history_size" in optimizer.defaults:
            self.unseen[f"{type(optimizer).__name__} keeps a history, which grows in later steps"] = 1
        self.sweep()
        optimizer._carma_steps = getattr(optimizer, "_carma_steps", 0) + 1
        self.steps = optimizer._carma_steps
        stepped = [o._carma_steps for o in OPTIMIZERS if getattr(o, "_carma_steps", 0)]
        return min(stepped) >= STEPS or max(stepped) > STEPS


CHANNELS_LAST = "channels_last: cuDNN's algorithms for this order of the data take other memory"
OPTIMIZERS = []  # of this trace, in order
MATMULS = WRONG = IN_PLACE = READS = frozenset()
if torch is not None:
    _aten = torch.ops.aten
    MATMULS = frozenset((_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot))
    IN_PLACE = frozenset((_aten.add_, _aten.sub_, _aten.mul_, _aten.div_, _aten.addcmul_, _aten.addcdiv_, _aten.lerp_,
                          _aten.zero_, _aten.fill_, _aten.copy_, _aten.uniform_, _aten.normal_))
    READS = frozenset((_aten._local_scalar_dense.default, _aten.item.default))  # the latter in inference mode
    WRONG = frozenset((_aten.isnan, _aten.isinf, _aten.isneginf, _aten.isposinf))


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def is_gpu(device):
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True
    try:
        return torch.device(device).type == "cuda"
    except (RuntimeError, TypeError):
        return False


# Types of tensors on a GPU by their old names.
LEGACY = {} if torch is None else {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool}


def legacy(dtype):
    """torch.cuda.FloatTensor and its like."""
    def make(*args):
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=dtype, device="cuda")
        return torch.empty(args, dtype=dtype, device="cuda")

    make.carma_dtype = dtype
    return make


class Placement(TorchFunctionMode):
    """Makes what a script says of cuda true of the recorder's GPU."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder
        t = torch.Tensor
        self.special = {
            t.backward: self.backward, t.cuda: lambda x, *a, **k: recorder.to_gpu(x), t.to: self.to,
            t.cpu: self.to_host,
            t.pin_memory: lambda x, *a, **k: x, t.is_pinned: lambda x, *a, **k: True,
            t.get_device: lambda x: 0 if recorder.on_gpu(x) else -1,
            t.numpy: self.numpy, t.tolist: self.tolist, t.__format__: self.format,
            t.__array__: self.array, t.type: self.type,
            t.is_cuda.__get__: lambda x, *a: recorder.on_gpu(x) or bool(t.is_cuda.__get__(x)),
            t.record_stream: lambda x, s: None,
        }
        self.default = 0  # more than 0: what names no device is on the GPU (torch.set_default_device)
        self.makers = torch.utils._device._device_constructors()
        self.factories = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn,
                          torch.empty_strided}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        special = self.special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if self.default and kwargs.get("device") is None and func in self.makers:
            kwargs = dict(kwargs, device="cuda")
        if kwargs.get("device") is not None and is_gpu(kwargs["device"]):
            with self.recorder.on():
                out = func(*args, **dict(kwargs, device="cpu"))
            return out
        if func in self.factories and not self.recorder.force:
            with contextlib.suppress(Exception), self.recorder.fake, self.recorder.hidden():  # a size may be a tensor
                out = func(*args, **kwargs)
                if out.is_floating_point() and out.numel() >= FAKE_FROM:
                    return out
        return func(*args, **kwargs)

    def backward(self, x, *args, **kwargs):
        self.recorder.backward_begins()
        return x.backward(*args, **kwargs)

    def to(self, x, *args, **kwargs):
        if kwargs.get("memory_format") is torch.channels_last:
            self.recorder.unseen[CHANNELS_LAST] = 1
        dtype, device, rest = kwargs.pop("dtype", None), kwargs.pop("device", None), []
        for a in args:
            if isinstance(a, torch.dtype):
                dtype = a
            elif isinstance(a, torch.Tensor):
                dtype, device = a.dtype, "cuda" if self.recorder.on_gpu(a) else "cpu"
            elif isinstance(a, (str, torch.device)) or (isinstance(a, int) and not isinstance(a, bool)):
                device = a
        kwargs.pop("non_blocking", None)
        if device is not None and is_gpu(device):
            return self.recorder.to_gpu(x, dtype)
        if device is not None and torch.device(device).type == "cpu" and self.recorder.on_gpu(x):
            x = self.to_host(x)
        return x.to(dtype, *rest, **kwargs) if dtype is not None else x.to(**kwargs) if kwargs else x

    def to_host(self, x, *args, **kwargs):
        if not self.recorder.on_gpu(x):
            return x
        self.recorder.hide += 1
        try:
            with torch.no_grad():
                return torch.empty_like(x.detach())
        finally:
            self.recorder.hide -= 1

    def numpy(self, x, **kwargs):
        if not isinstance(x, FakeTensor):
            return x.numpy(**kwargs)
        self.recorder.note("values read by .numpy(): zeros were given")
        with torch._C.DisableTorchFunction():
            return numpy_zeros(tuple(x.shape), torch.empty(0, dtype=x.dtype).numpy().dtype)

    def array(self, x, dtype=None, copy=None):
        return self.numpy(x) if dtype is None else self.numpy(x).astype(dtype, copy=False)

    def type(self, x, dtype=None, *args, **kwargs):
        """x.type(): old names of types, which say a device, too."""
        narrow = getattr(dtype, "carma_dtype", None)
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            narrow = LEGACY[dtype.rpartition(".")[2]]
        if narrow is not None:
            return self.recorder.to_gpu(x, narrow)
        if dtype is None:
            name = x.type()
            return name.replace("torch.", "torch.cuda.", 1) if self.recorder.on_gpu(x) else name
        return x.type(dtype, *args, **kwargs)

    def tolist(self, x):
        return self.numpy(x).tolist() if isinstance(x, FakeTensor) else x.tolist()

    def format(self, x, spec):
        if isinstance(x, FakeTensor) and x.dim() == 0:
            return format(x.item(), spec)
        return repr(x) if isinstance(x, FakeTensor) else x.__format__(spec)


def numpy_zeros(shape, dtype):
    import numpy
    return numpy.zeros(shape, dtype)


def rows_first(shape, like):
    """A tensor of batch, heads, rows, columns that lies as batch, rows, heads, columns, as the kernels leave it."""
    if len(shape) != 4:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return torch.empty((shape[0], shape[2], shape[1], shape[3]), dtype=like.dtype, device=like.device).transpose(1, 2)


def attention_class():
    class Attention(torch.autograd.Function):
        """scaled_dot_product_attention as CUDA's fused kernels keep it: inputs, output, one row of sums."""

        @staticmethod
        def forward(ctx, q, k, v, mask):
            out = rows_first((*q.shape[:-1], v.shape[-1]), q)
            sums = torch.empty(*q.shape[:-2], (q.shape[-2] + 31) // 32 * 32, dtype=torch.float32, device=q.device)
            ctx.save_for_backward(q, k, v, out, sums, *([] if mask is None else [mask]))
            return out

        @staticmethod
        def backward(ctx, grad):
            q, k, v, _out, _sums, *mask = ctx.saved_tensors
            grads = [rows_first(t.shape, t) for t in (q, k, v)]
            if q.element_size() < 4:  # sums in full width
                torch.empty(q.shape, dtype=torch.float32, device=q.device)
            bias = None
            if mask and ctx.needs_input_grad[3]:
                bias = torch.empty_like(mask[0])
            return (*grads, bias)

    return Attention


def patched_attention(recorder, plain):
    attention = attention_class()

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        if not recorder.on_gpu(query) or kwargs.get("enable_gqa") or query.dim() < 3:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (t.to(dtype) for t in (query, key, value))
        if attn_mask is not None and (attn_mask.dtype == torch.bool or attn_mask.dtype != query.dtype):
            attn_mask = attn_mask.to(query.dtype)
        with recorder.on():
            return attention.apply(query, key, value, attn_mask)

    return scaled_dot_product_attention


def patched_dropout(recorder, plain):
    def dropout(input, p=0.5, training=True, inplace=False):
        if recorder.on_gpu(input) and training and 0 < p < 1 and not inplace:
            return torch.native_dropout(input, p, True)[0]  # a mask of a byte, as on CUDA; four on the CPU
        return plain(input, p, training, inplace)

    return dropout


# What CUDA's autocast runs in fp32 and the CPU's does not (torch/amp's op lists).
FP32_OPS = ("layer_norm", "group_norm", "softmax.int", "log_softmax.int", "exp", "log", "pow.Tensor_Scalar", "rsqrt",
            "sum", "sum.dim_IntList", "cumsum", "prod", "softplus", "l1_loss", "smooth_l1_loss",
            "binary_cross_entropy_with_logits", "norm.ScalarOpt_dim", "cosine_similarity")


def register_autocast():
    library = torch.library.Library("aten", "IMPL")

    def fp32(op):
        def run(*args, **kwargs):
            def up(x):
                narrow = isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)
                return x.float() if narrow else x
            with torch.amp.autocast("cpu", enabled=False):
                return op(*tree_map(up, args), **tree_map(up, kwargs))
        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in FP32_OPS:
            packet, _, overload = name.partition(".")
            with contextlib.suppress(RuntimeError, AttributeError):
                library.impl(name, fp32(getattr(getattr(torch.ops.aten, packet), overload or "default")), "AutocastCPU")
    return library


class Parallel(torch.nn.Module if torch is not None else object):
    """DistributedDataParallel of one process: its buckets are a second copy of the gradients."""

    def __init__(self, module, *args, bucket_cap_mb=25, gradient_as_bucket_view=False, **kwargs):
        super().__init__()
        self.module = module
        recorder = Tracing.current
        recorder.settings["parallel"] = "ddp"
        if gradient_as_bucket_view:
            recorder.note("gradient_as_bucket_view: the buckets were counted beside the gradients")
        sizes, size = [], 0
        for p in module.parameters():
            if p.requires_grad:
                size += bytes_of(p)
                if size >= (bucket_cap_mb or 25) << 20:
                    sizes.append(size)
                    size = 0
        with recorder.on(), torch.no_grad():
            self._carma_buckets = [torch.empty(n, dtype=torch.uint8, device="cpu") for n in sizes + [size] if n]
        recorder.name(self._carma_buckets, GRADIENT)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        return contextlib.nullcontext()


class OneGPU(torch.nn.Module if torch is not None else object):
    """DataParallel, of whose GPUs the first is traced."""

    def __init__(self, module, *args, **kwargs):
        super().__init__()
        Tracing.current.note("DataParallel: one GPU was traced")
        self.module = Tracing.current.module_to_gpu(module)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Tracing:
    """The patches under which a model or a script is traced; all are taken back."""

    current = None

    def __init__(self, batch=None):
        need_torch()
        self.recorder = Recorder()
        self.stack = contextlib.ExitStack()
        self.batch = batch  # of a second trace: what DataLoaders shall give
        self.loaders = []  # batch sizes of the loaders that the script made

    def put(self, owner, name, value):
        if hasattr(owner, name):
            old = owner.__dict__.get(name, None) if isinstance(owner, type) else getattr(owner, name)
            setattr(owner, name, value)
            self.stack.callback(setattr, owner, name, old)

    def __enter__(self):
        recorder = self.recorder
        Tracing.current = recorder
        del OPTIMIZERS[:]
        functional = torch.nn.functional
        self.put(functional, "scaled_dot_product_attention",
                 patched_attention(recorder, functional.scaled_dot_product_attention))
        self.put(functional, "dropout", patched_dropout(recorder, functional.dropout))
        self.optimizers()
        self.autocast()
        self.modules()
        self.library = register_autocast()
        self.stack.callback(self.library._destroy)
        self.placement = Placement(recorder)
        self.defaults()
        self.stack.enter_context(self.placement)
        self.stack.enter_context(recorder)
        return self

    def __exit__(self, *error):
        Tracing.current = None
        return self.stack.__exit__(*error)

    def defaults(self):
        """torch.set_default_device, with torch.device(...), torch.set_default_tensor_type."""
        kind, placement = torch.utils._device.DeviceContext, self.placement
        enter, leave, typed = kind.__enter__, kind.__exit__, torch.set_default_tensor_type

        def entered(d):
            if not is_gpu(d.device):
                return enter(d)
            placement.default += 1
            return d

        def left(d, *error):
            if not is_gpu(d.device):
                return leave(d, *error)
            placement.default -= 1

        def default_type(t):
            name = t.rpartition(".")[2] if isinstance(t, str) and t.startswith("torch.cuda.") else None
            dtype = LEGACY[name] if name else getattr(t, "carma_dtype", None)
            placement.default = int(dtype is not None)
            torch.set_default_dtype(dtype) if dtype is not None else typed(t)

        self.put(kind, "__enter__", entered)
        self.put(kind, "__exit__", left)
        self.put(torch, "set_default_tensor_type", default_type)

    def optimizers(self):
        base = torch.optim.Optimizer
        init = base.__init__

        def started(o, *args, **kwargs):
            init(o, *args, **kwargs)
            OPTIMIZERS.append(o)

        def before(o, *_):
            self.recorder.step_begins(o)

        def after(o, *_):
            if self.recorder.step_ends(o):
                raise Done

        self.put(base, "__init__", started)
        hooks = sys.modules["torch.optim.optimizer"]
        for hook in (hooks.register_optimizer_step_pre_hook(before),
                     hooks.register_optimizer_step_post_hook(after)):
            self.stack.callback(hook.remove)

        def default(params, differentiable, use_fused=False):
            return False, not differentiable  # as with parameters on CUDA

        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim.") and hasattr(module, "_default_to_fused_or_foreach"):
                self.put(module, "_default_to_fused_or_foreach", default)
        clip = sys.modules.get("torch.nn.utils.clip_grad")
        if clip is not None:
            self.put(clip, "_has_foreach_support", lambda tensors, device: True)

    def autocast(self):
        kind = torch.amp.autocast_mode.autocast
        init = kind.__init__

        def started(a, device_type, dtype=None, enabled=True, cache_enabled=None):
            if device_type == "cuda":
                device_type, dtype = "cpu", dtype or torch.float16
            if enabled and dtype is not None and dtype != torch.float32:
                self.recorder.settings["precision"] = "amp-" + str(dtype).replace("torch.", "")
            init(a, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        self.put(kind, "__init__", started)
        scaler = torch.amp.grad_scaler.GradScaler if hasattr(torch.amp, "grad_scaler") else torch.cuda.amp.GradScaler
        scaler_init = scaler.__init__

        def scaler_started(s, *args, **kwargs):
            kwargs["enabled"] = False  # its few numbers have no values here
            scaler_init(s, *args, **kwargs)

        self.put(scaler, "__init__", scaler_started)

    def modules(self):
        recorder, module = self.recorder, torch.nn.Module
        to = module.to

        def moved(m, *args, **kwargs):
            # A number is a GPU's; PyTorch asks for one before it takes it.
            args = [f"cuda:{a}" if type(a) is int else a for a in args]
            kwargs = {k: f"cuda:{a}" if type(a) is int else a for k, a in kwargs.items()}
            if kwargs.get("memory_format") is torch.channels_last:
                recorder.unseen[CHANNELS_LAST] = 1
            with torch._C.DisableTorchFunction():  # Placement would take device= for that of a tensor to make
                device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
            if device is not None and device.type == "cuda":
                return recorder.module_to_gpu(m, dtype)
            return to(m, *args, **kwargs)

        self.put(module, "to", moved)
        self.put(module, "cuda", lambda m, device=None: recorder.module_to_gpu(m))
        for owner in (torch.nn.parallel, torch.nn.parallel.distributed):
            self.put(owner, "DistributedDataParallel", Parallel)
        for owner in (torch.nn, torch.nn.parallel, torch.nn.parallel.data_parallel):
            self.put(owner, "DataParallel", OneGPU)

        def compiled(model=None, **kwargs):
            recorder.note("torch.compile: the eager operations were traced")
            return model if model is not None else (lambda m: m)

        self.put(torch, "compile", compiled)
        self.put(module, "compile", lambda m, *a, **k: compiled(m) and None)

    def script(self):
        """What only a script may ask for: a GPU, other processes, loaders."""
        self.gpu()
        self.processes()
        loader, tracing = torch.utils.data.DataLoader, self
        init = loader.__init__

        def started(d, dataset, batch_size=1, *args, **kwargs):
            for k in ("pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context",
                      "pin_memory_device", "timeout"):
                kwargs.pop(k, None)
            kwargs["num_workers"] = 0
            if len(args) > 3:
                args = (*args[:3], 0)  # shuffle, sampler, batch_sampler, num_workers
                kwargs.pop("num_workers")
            if batch_size is not None and kwargs.get("batch_sampler") is None:
                tracing.loaders.append(batch_size)
                # The first loader is taken for the training one.
                if tracing.batch and batch_size == tracing.loaders[0]:
                    batch_size = tracing.batch
            init(d, dataset, batch_size, *args, **kwargs)

        self.put(loader, "__init__", started)
        iterate, empty = loader.__iter__, set()

        def iterated(d):
            with contextlib.suppress(TypeError):  # a stream of samples has no length
                if d.drop_last and tracing.recorder.backwards == 0 and len(d) == 0:
                    if id(d) in empty:  # a second epoch without a batch
                        raise Refused(f"its DataLoader has {len(d.sampler)} samples and drops what is less than a batch of "
                                      f"{d.batch_size}: give it more samples, or a smaller batch")
                    empty.add(id(d))
            return iterate(d)

        self.put(loader, "__iter__", iterated)

    def gpu(self):
        class Properties:
            name, total_memory, major, minor, multi_processor_count = "carma_trace", 80 * GIB, 8, 0, 108

        class Nothing:
            def __init__(self, *args, **kwargs):
                pass

            def __getattr__(self, name):
                return lambda *args, **kwargs: 1.0 if name == "elapsed_time" else None

            def __enter__(self):
                return self

            def __exit__(self, *error):
                return False

        cuda = torch.cuda
        for name, value in {
            "is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "carma_trace",
            "get_device_capability": (8, 0), "get_device_properties": Properties(), "is_bf16_supported": True,
            "is_initialized": True, "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0,
            "max_memory_reserved": 0, "mem_get_info": (80 * GIB, 80 * GIB), "memory_summary": "", "memory_stats": {},
            "get_rng_state": None, "get_rng_state_all": [], "current_stream": Nothing(), "default_stream": Nothing(),
            "synchronize": None, "set_device": None, "empty_cache": None, "manual_seed": None, "manual_seed_all": None,
            "reset_peak_memory_stats": None, "reset_max_memory_allocated": None, "init": None, "ipc_collect": None,
            "set_per_process_memory_fraction": None, "set_rng_state": None, "set_rng_state_all": None,
            "_lazy_init": None,
        }.items():
            self.put(cuda, name, lambda *a, _value=value, **k: _value)
        for name in ("Stream", "Event", "device", "stream"):
            self.put(cuda, name, Nothing)
        for name, dtype in LEGACY.items():
            self.put(cuda, name, legacy(dtype))
        self.put(cuda.nccl, "version", lambda: (2, 21, 5))
        accelerator = getattr(torch, "accelerator", None)  # since PyTorch 2.6; names that it lacks are left out
        for name, value in {
            "is_available": True, "device_count": 1, "current_accelerator": torch.device("cuda"),
            "current_device_index": 0, "current_device_idx": 0, "set_device_index": None, "set_device_idx": None,
            "current_stream": Nothing(), "set_stream": None, "synchronize": None, "empty_cache": None,
            "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
            "memory_stats": {}, "reset_peak_memory_stats": None,
        }.items():
            self.put(accelerator, name, lambda *a, _value=value, **k: _value)

        def graphs(*args, **kwargs):
            raise Refused("the script uses CUDA graphs, whose memory is a pool of its own: give mem= instead")

        for name in ("CUDAGraph", "graph", "make_graphed_callables"):
            self.put(cuda, name, graphs)

    def processes(self):
        if "RANK" in os.environ:  # of a launcher: of its processes this is the first and only one
            os.environ.update(LAUNCHER)
        d = torch.distributed
        if not d.is_available():
            return

        class Group:
            def rank(self):
                return 0

            def size(self):
                return 1

            def wait(self, *args):
                return True

        def gathered(objects, value=None, *args, **kwargs):
            if isinstance(objects, list) and objects:
                objects[0] = value

        self.put(d, "all_gather_object", gathered)
        self.put(d, "gather_object", lambda value, objects=None, *a, **k: gathered(objects, value))
        for name in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "gather",
                     "scatter", "all_to_all", "all_to_all_single", "all_reduce", "broadcast", "reduce"):
            self.put(d, name, lambda *a, async_op=False, **k: Group() if async_op else None)
        self.put(d, "new_group", lambda *a, **k: Group())
        started = ["RANK" in os.environ]
        self.put(d, "init_process_group", lambda *a, **k: started.__setitem__(0, True))
        self.put(d, "is_initialized", lambda: started[0])
        for name, value in {"destroy_process_group": None, "barrier": None, "get_rank": 0, "get_world_size": 1,
                            "get_backend": "nccl", "broadcast_object_list": None, "monitored_barrier": None,
                            "scatter_object_list": None}.items():
            self.put(d, name, lambda *a, _value=value, **k: _value)

        # Of one process it is what it derives from, and keeps the same for the backward pass.
        self.put(torch.nn.SyncBatchNorm, "forward", torch.nn.BatchNorm2d.forward)

        def refused(*args, **kwargs):
            raise Refused("FSDP spreads a model over processes, of which a trace has one: give mem= instead")

        with contextlib.suppress(ImportError):
            import torch.distributed.fsdp as fsdp
            self.put(fsdp, "FullyShardedDataParallel", refused)

        def spawn(fn, args=(), nprocs=1, **kwargs):
            fn(0, *args)

        self.put(torch.multiprocessing, "spawn", spawn)

    def result(self):
        r = self.recorder
        r.sweep()
        if torch.backends.cudnn.benchmark and r.convolutions:
            r.note("cudnn.benchmark: cuDNN tries algorithms that take more memory")
        if self.loaders and max(self.loaders) > self.loaders[0]:
            r.note(f"another DataLoader has batches of {max(self.loaders)}: batches of {self.loaders[0]} were traced")
        return {
            "events": r.events, "kinds": r.kinds, "unseen": r.unseen, "settings": r.settings, "steps": r.steps,
            "convolutions": list(r.convolutions), "loader": self.loaders[0] if self.loaders else 0,
            "torch": torch.__version__.split("+")[0],
            "expandable": "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        }


# The text.


def tokens(result):
    """The events with births numbered by class and size, deaths by their distance."""
    out, deep, born = [], 0, 0
    for event in result["events"]:
        if event[0] == "+":
            out.append(("+", (result["kinds"].get(event[1], ACTIVATION), event[2])))
            born = event[1] + 1
        elif event[0] == "-":
            age = born - event[1]
            if age <= NEAR:
                out.append(("-", age))
            else:
                out.append(("~", event[1] - deep))
                deep = event[1]
        elif event[0] == "m":
            out.append(("m", ""))
        else:
            out.append(event)
    return once(out)


NEAR = 8  # births since its own, up to which a death is told by them


def once(stream):
    """Leaves out all but the first matrix product: cuBLAS takes its workspace once."""
    seen, out = False, []
    for token in stream:
        if token[0] != "m" or not seen:
            out.append(token)
        seen = seen or token[0] == "m"
    return out


def shape_of(stream):
    """What two batch sizes must have in common: everything but sizes."""
    return [(k, v[0] if k == "+" else v if k in "-~" else "") for k, v in stream]


def fold(stream):
    """Writes a run that stood before as =DISTANCE,LENGTH."""
    shortest, chain = 4, 64
    places, out, i = {}, [], 0
    while i < len(stream):
        key = tuple(stream[i:i + shortest])
        best, far = 0, 0
        for p in reversed(places.get(key, ())[-chain:] if len(key) == shortest else ()):
            n = shortest
            while i + n < len(stream) and stream[p + n] == stream[i + n]:
                n += 1
            if n > best:
                best, far = n, i - p
        width = best if best >= shortest else 1
        out.append(f"={far},{best}" if best >= shortest else stream[i])
        for j in range(i, min(i + width, len(stream) - shortest + 1)):
            places.setdefault(tuple(stream[j:j + shortest]), []).append(j)
        i += width
    return out


def number_of(n, second):
    return str(n) if second is None or n == second else f"{n}:{second}"


def wrap(words, prefix, glue=" ", width=108):
    line = prefix
    for word in words:
        if len(line) + len(glue) + len(word) > width and line != prefix:
            yield line
            line = prefix
        line += (glue if line != prefix else " ") + word
    if line != prefix:
        yield line


def text(first, batch=0, second=None, second_batch=0):
    """The lines of a trace; of two if they differ by their sizes alone."""
    one = tokens(first)
    other = tokens(second) if second else None
    unseen, single = first["unseen"], first.get("single", "")
    if other is not None and shape_of(one) != shape_of(other):
        other, single = None, f"with {second_batch} its step runs other operations"
    if other is not None and one == other:
        other, single = None, f"nothing changed with {second_batch}"
    yield "carma-trace 1"
    yield f"torch {first['torch']}"
    if batch:
        yield f"batch {batch}" + (f" {second_batch}" if other else "")
    for key in ("optimizer", "precision", "parallel"):
        if first["settings"].get(key):
            yield f"{key} {first['settings'][key]}"
    if first.get("expandable"):
        yield "segments expandable"
    if single:
        yield f"single {single}"[:200]
    for name in sorted(unseen):
        yield f"unseen {unseen[name]} {name}"[:200]
    sizes, convolutions, stream = {}, {}, []
    for k, (letter, value) in enumerate(one):
        if letter == "+":
            pair = value[0] + number_of(value[1], other[k][1][1] if other else None)
            stream.append(f"+{sizes.setdefault(pair, len(sizes))}")
        elif letter in "fdw":
            c = first["convolutions"][value]
            d = second["convolutions"][other[k][1]] if other else c
            given, out, shape, groups, stride, width, transposed = c
            word = ",".join([number_of(given, d[0]), number_of(out, d[1]), str(shape[0]), str(shape[1] * groups),
                             "x".join(map(str, shape[2:])), str(groups), str(stride), str(width),
                             "t" if transposed else "n"])
            stream.append(f"{letter}{convolutions.setdefault(word, len(convolutions))}")
        else:
            stream.append(f"{letter}{value}")
    yield from wrap(sizes, "s")
    yield from wrap(convolutions, "c")
    yield from wrap(fold(stream), "e", "")
    yield "end"


def lines(first, batch=0, second=None, second_batch=0):
    """The #CARMA lines of a trace."""
    if len(first["events"]) > MOST_EVENTS:
        raise Refused(f"two steps make {len(first['events']):,} allocations, more than {MOST_EVENTS:,}: "
                      "give mem= in the script instead")
    out = ["#CARMA on" if not batch else f"#CARMA batch={batch}"]
    out += ["#CARMA| " + line for line in text(first, batch, second, second_batch)]
    if sum(len(line) - 7 for line in out[1:]) > MOST_BYTES:
        raise Refused("the trace is longer than 256 KiB: give mem= in the script instead")
    return out


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
    if batch:
        with contextlib.suppress(RuntimeError, ValueError, Refused):
            second = trace(model, resized(sample, batch, new), loss, optimizer, amp)
    first = trace(model, sample, loss, optimizer, amp)
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


def run(command, argv):
    """Runs a program as Python would."""
    if command.module:
        sys.argv = [command.module, *argv]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
        return
    sys.argv = [command.script, *argv]
    sys.path.insert(0, os.path.dirname(os.path.abspath(command.script)))
    runpy.run_path(command.script, run_name="__main__")


def caught(command, argv, loader_batch=None, overlay=None, any_is=True):
    """Run a program until its second step and return what it allocated."""
    import carma_checkpoint
    script = command.module or command.script
    tracing = Tracing(loader_batch)
    tracing.recorder.any_is = any_is
    done = False
    try:
        with tracing:
            tracing.script()
            carma_checkpoint.put(tracing, overlay)
            with contextlib.redirect_stdout(sys.stderr):
                run(command, argv)
    except Done:
        done = True
    except Refused as err:
        at = place_of(err)
        raise Refused(f"{script}:{at}{':' * bool(at)} {err}") from err
    except SystemExit as err:
        if err.code not in (None, 0):
            raise Refused(f"{script}: it ended with {err.code!r} before its second step") from err
    except carma_overlay.TooLarge as err:
        raise Refused(f"{script}: {err.strerror}: {err.filename}") from err
    except FileNotFoundError as err:
        raise Refused(f"{script}: it reads {err.filename or err}, which is not here: run it where the data are, "
                      "with a few samples in their place, or call carma_trace.show()") from err
    except Exception as err:
        said = str(err)[:300].rstrip(". ")
        said = f"{type(err).__name__}{': ' * bool(said)}{said}{walled(err)}"
        refused = Refused(f"{script}: it stopped{place_of(err)}: {said}: "
                          "call carma_trace.show() with the model, or give mem=")
        refused.asked = tracing.recorder.asked
        raise refused from err
    r = tracing.recorder
    if r.steps == 0:
        loop = ": its loop has no such optimizer" if r.backwards else ""
        raise Refused(f"{script}: it ended without a step of a torch.optim optimizer{loop}: nothing was traced")
    if not any(e[0] == "+" for e in r.events):
        raise Refused(f"{script}: it put nothing on a GPU: nothing was traced; see its options for the device")
    if r.asked and not any_is:
        r.note("values read from any(): false was taken")
    if not done:
        r.note("the script ended after its first step")
    return tracing.result()


def place_of(err):
    """File and line of the user's own code at which an error arose."""
    libraries = (os.path.dirname(os.path.realpath(__file__)), os.path.dirname(os.__file__),
                 os.path.dirname(torch.__file__), os.path.realpath("<"))
    own = [f for f in traceback.extract_tb(err.__traceback__) if not os.path.realpath(f.filename).startswith(libraries)
           and "site-packages" not in f.filename and "dist-packages" not in f.filename]
    return f" in {os.path.relpath(own[-1].filename)}, line {own[-1].lineno}" if own else ""


def walled(err):
    """What to say of an error that comes from a write that the kernel refused."""
    if getattr(err, "errno", None) in (errno.EROFS, errno.EACCES, errno.EPERM) or any(
            words in str(err) for words in ("Read-only file system", "Permission denied", "cannot be opened")):
        return (" (a trace changes no file: a library or a program that the script uses wrote one itself, "
                "which no overlay can take)")
    return ""


def alone(*args):
    raise Refused("the script starts another program, and this kernel has neither namespaces nor Landlock "
                  "to keep your files from that program: leave it out, or give mem=")


def guarded(folder):
    """The overlay of a script's process, with what walls the kernel has around that process."""
    carma_wall.dies_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody answers a question
    os.dup2(2, 1)  # what C libraries and programs print is no part of the trace
    if not carma_wall.build(folder):
        programs = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"}
        sys.addaudithook(lambda event, args: alone() if event in programs else None)
        import multiprocessing.util
        multiprocessing.util.spawnv_passfds = alone  # which tells no audit hook
    carma_trackers.off()
    return carma_overlay.Overlay(folder)


def ended(number, frame):
    raise SystemExit(128 + number)


def apart(command, argv, loader_batch=None, any_is=True):
    """caught() in a process of its own, for a script leaves its marks; they go with the overlay's folder."""
    carma_wall.adopts_orphans()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="carma-trace."))
    old = [(n, signal.signal(n, ended)) for n in (signal.SIGTERM, signal.SIGHUP)]
    child = 0
    try:
        with tempfile.TemporaryFile() as answer:
            child = forked(command, argv, loader_batch, folder, answer, any_is)
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise Refused(f"{command.module or command.script}: its process ended with status {status}: see above")
            answer.seek(0)
            result = json.loads(answer.read(MOST_ANSWER))
    finally:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            carma_wall.end_children()  # also those in sessions of their own
        remove(folder)
        for n, handler in old:
            signal.signal(n, handler)
    if "refused" in result:
        if any_is and result["asked"]:  # a script that checks its data may have found them wrong
            return apart(command, argv, loader_batch, False)
        raise Refused(result["refused"].replace(os.path.join(folder, "upper"), ""))
    result["kinds"] = {int(number): kind for number, kind in result["kinds"].items()}
    return result


def remove(folder):
    """Removes a folder, also where the script has made folders that cannot be written."""
    for at, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(at, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def forked(command, argv, loader_batch, folder, answer, any_is):
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    status = 1
    try:
        for n in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(n, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        before = os.environ.get("PYTHONPATH")
        os.environ.update(command.env)
        os.environ["SLURM_CONF"] = os.devnull  # sbatch and srun find no cluster
        if command.cwd:
            os.chdir(command.cwd)
        if os.environ.get("PYTHONPATH") != before:  # this Python has started without it
            sys.path[:0] = [os.path.abspath(path) for path in os.environ["PYTHONPATH"].split(os.pathsep) if path]
        with guarded(folder) as overlay:
            result = caught(command, argv, loader_batch, overlay, any_is)
        answer.write(json.dumps(result).encode())
        status = 0
    except Refused as err:
        answer.write(json.dumps({"refused": str(err), "asked": getattr(err, "asked", False)}).encode())
        status = 0
    except BaseException:  # noqa: B036 - the child must not go on as the parent
        traceback.print_exc()
    finally:
        answer.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


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
