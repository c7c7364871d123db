# SPDX-License-Identifier: Apache-2.0
"""Allocations of a traced program: the storages of an imagined GPU, in order.

A part of carma_trace.py.
"""

import contextlib
import sys
import weakref

try:
    import torch
except ImportError:
    torch = None

STEPS = 2  # a second step allocates again the blocks broken up by the optimizer's first
MOST_EVENTS = 1 << 16  # estimator/trace, MaxEvents
MOST_RECORDED = 1 << 20  # carma_text.thin() leaves out most of a long loop
REPEATS_FROM = 64  # events from which equal passes are looked for
FEW = 1024  # numbers of a tensor with values kept
MARKS = 24  # events by which the end of a pass is recognised
BLIND = 32  # backward passes without an optimizer and without a step by hand


class Refused(Exception):
    """The training cannot be traced; the text says why and what to do."""


class Done(BaseException):
    """Ends a script after its second step; not an Exception, so no script catches it."""


if torch is not None and int(torch.__version__.split(".")[0]) >= 2:
    import carma_bounds
    import carma_choices
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.weak import WeakTensorKeyDictionary
    _tensor = torch.empty(1)
    # Whether the Python object of a storage lasts as long as the storage: from PyTorch 2.1 on.
    STORAGES_LAST = weakref.ref(_tensor.untyped_storage())() is not None
else:
    TorchDispatchMode = object


def need_torch():
    if torch is None:
        raise Refused(f"PyTorch is not installed for this Python ({sys.executable}): run it where your training runs")
    if int(torch.__version__.split(".")[0]) < 2:
        raise Refused(f"PyTorch {torch.__version__} has no fake tensors to trace with: PyTorch 2.0 or later is needed")


# Contents of memory: classes of the text.
PARAMETER, GRADIENT, STATE, ACTIVATION = "p", "g", "o", "a"


def weakly(storage):
    """Calls of the result give None once the storage is gone.

    PyTorch's own StorageWeakRef keeps the Python object alive beyond the storage: fake tensors of real
    ones, which PyTorch finds again by these objects, would get memory that is freed.
    """
    if STORAGES_LAST:
        return weakref.ref(storage)
    reference = StorageWeakRef(storage)
    return lambda: None if reference.expired() else storage._cdata


class Recorder(TorchDispatchMode):
    """Births and deaths of the storages of one imagined GPU, in order.

    A storage is on the GPU if it was put there, or if an operation made it of
    one that is. Its tensors are fake ones of the device cpu: a fake device cuda
    needs a PyTorch that is linked with CUDA, and keeps the same.
    """

    def __init__(self):
        super().__init__()
        self.marks = []  # the events without the numbers of storages: equal passes have equal ones
        self.places = {}  # the last marks before a boundary -> position
        self.ends = {}  # the same without sizes
        self.any_is = True  # the answer of any()
        self.asked = False  # any() was read
        self.equal = True  # the answer of torch.equal()
        self.anys = WeakTensorKeyDictionary()
        self.chosen = WeakTensorKeyDictionary()  # mask -> (stamp, number of places chosen)
        self.values = WeakTensorKeyDictionary()  # few whole numbers put there by the host -> (stamp, values)
        self.choices = carma_choices.Choices()
        self.events = []  # ("+", id, bytes), ("-", id), (letter, convolution)
        self.live = {}  # storage -> (weak reference, id)
        self.tensors = {}  # weak references to tensors of storages
        self.left = set()  # storages left by a tensor since the last sweep
        self.count = 0
        self.kinds = {}  # id -> class
        self.convolutions = {}  # description -> number
        self.unseen = {}  # name -> count
        self.force = 0  # more than 0: whatever is made is on the GPU
        self.hide = 0  # more than 0: nothing is
        self.inside = 0  # more than 0: PyTorch itself runs an operation
        self.steps = 0
        self.backwards = 0
        self.by_hand = False  # since the last backward pass the script itself has changed parameters
        self.parameters = []  # weak references to parameters of modules on the GPU
        self.settings = {}
        self.false = WeakTensorKeyDictionary()  # results of isnan and the like
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def on_gpu(self, tensor):
        if not isinstance(tensor, FakeTensor):
            return False
        known = self.live.get(tensor.untyped_storage()._cdata)
        return known is not None and known[0]() is not None

    def note(self, name):
        self.unseen[name] = self.unseen.get(name, 0) + 1

    def sweep(self, keys=None):
        keys = list(self.live if keys is None else keys)  # a garbage collection adds to self.left meanwhile
        dead = [key for key in keys if key in self.live and self.live[key][0]() is None]
        for key in sorted(dead, key=lambda key: self.live[key][1]):
            number = self.live.pop(key)[1]
            self.add(("-", number), ("-", self.count - number))
        self.left.difference_update(keys)

    def watch(self, tensor, key):
        """Notes the end of a tensor: only then may the storage end. Asking all storages takes too long."""
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
        if known is not None:
            if known[0]() is not None:
                self.watch(tensor, storage._cdata)
                return
            self.left.add(storage._cdata)  # the place of a dead storage
        size = storage.nbytes()
        if size == 0:
            return
        self.sweep(self.left)
        self.watch(tensor, storage._cdata)
        self.live[storage._cdata] = (weakly(storage), self.count)
        self.add(("+", self.count, size), ("+", size))
        self.count += 1
        if len(self.events) > MOST_RECORDED:
            raise Refused(f"what it does until its second step makes more than {MOST_RECORDED:,} allocations, even if "
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
            self.grown()
            return
        births = sum(1 for mark in marks[n - width:] if mark[0] == "+")
        first, live = self.count - births, {number for _, number in self.live.values()}
        if any(number >= first and number - births in live for number in live):
            return  # what the pass leaves piles up
        if self.uses_up(n - width, n, first - births):
            return
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

    def uses_up(self, start, end, first):
        """Whether a pass ends storages that are older than the pass before: without the pass, these would never end."""
        return any(event[0] == "-" and event[1] < first for event in self.events[start:end])

    def grown(self):
        """Growing passes, for example of a text written letter by letter: the last pass is largest at each event.

        Of four passes with a growth of an eighth or less, the second is forgotten. The first pass, and passes with more
        growth, stay: blocks too small for later passes remain with the allocator.
        """
        marks, n = self.marks, len(self.marks)
        key = tuple(mark[0] if mark[0] == "+" else mark for mark in marks[-MARKS:])
        before, self.ends[key] = self.ends.get(key, n), n
        width = n - before
        if not 0 < width <= n // 4:
            return
        births = least = most = 0
        for i in range(n - 4 * width, n - 3 * width):
            four = marks[i:n:width][:4]
            if four[0][0] != "+" and four.count(four[0]) == 4:
                continue
            if any(mark[0] != "+" for mark in four) or four != sorted(four):
                return
            births, least, most = births + 1, least + four[0][1], most + four[3][1]
        first, live = self.count - 3 * births, {number for _, number in self.live.values()}
        if 8 * most > 9 * least or any(number in live for number in range(first, self.count - births)):
            return
        if self.uses_up(n - 3 * width, n - 2 * width, first - births):
            return
        del marks[n - 3 * width:n - 2 * width], self.events[n - 3 * width:n - 2 * width]
        for i in range(n - 3 * width, n - width):
            if self.events[i][0] in "+-":
                letter, number, *size = self.events[i]
                self.events[i] = letter, number - births, *size
        for at, (ref, number) in self.live.items():
            if number >= first:
                self.live[at] = ref, number - births
        for number in range(first, self.count):
            kind = self.kinds.pop(number, None)
            if kind is not None and number >= first + births:
                self.kinds[number - births] = kind
        self.count -= births
        self.ends[key] = n - width

    def id_of(self, tensor):
        known = self.live.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[1]

    def name(self, tensors, kind):
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and self.on_gpu(tensor):
                self.kinds[self.id_of(tensor)] = kind

    def device(self, tensor):
        """tensor.device as read by a program; in PyTorch's operations, a fake tensor is of the device cpu."""
        if tensor.fake_mode.in_kernel_invocation:
            return torch.device("meta")
        return GPU if not self.inside and self.on_gpu(tensor) else tensor.fake_device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.inside += 1
        try:
            return self.run(func, args, kwargs or {})
        finally:
            self.inside -= 1

    def run(self, func, args, kwargs):
        self.choices.before(func, args, kwargs)
        if func in READS:
            if not isinstance(args[0], FakeTensor):
                return func(*args, **kwargs)  # a host tensor, for example a size
            self.boundary()
            value = self.value(args[0])
            return bool(value) if func is torch.ops.aten.is_nonzero.default else value
        if func.overloadpacket in IN_PLACE and isinstance(args[0], FakeTensor):
            if self.backwards and not self.by_hand and not OPTIMIZERS:
                self.changes(args[0])
            self.choices.after(func, args, kwargs, args[0])
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
        self.choices.after(func, args, kwargs, out)
        if func is torch.ops.aten.lift_fresh.default and isinstance(out, FakeTensor):
            self.keep(out, args[0])
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
        """The value read out of a tensor without data."""
        if tensor in self.anys:
            self.asked = True
            return self.any_is
        if tensor.dtype == torch.bool:
            return tensor not in self.false
        return 1.0 if tensor.is_floating_point() else 1

    # Tensors of the recorder.

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
            self.keep(copy, plain)
            return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy
        return tensor if dtype is None else tensor.to(dtype)

    def keep(self, tensor, host):
        if not isinstance(host, FakeTensor) and tensor.dtype == host.dtype == torch.int64 and host.numel() <= FEW:
            self.values[tensor] = self.choices.stamp(tensor), host.detach().clone()

    def data(self, tensor):
        """A host tensor of the values, if known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        found = self.choices.get(self.values, tensor)
        return found[0] if found else None

    def module_to_gpu(self, module, dtype=None):
        """Puts a module's parameters and buffers on the GPU; shared ones stay shared."""
        boxes = sys.modules.get("torchvision.ops.boxes")
        if boxes is not None and hasattr(boxes, "_batched_nms_coordinate_trick"):
            boxes._batched_nms_vanilla = boxes._batched_nms_coordinate_trick  # as for boxes on a GPU, in a single call
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
            if not self.count:
                raise Refused(f"it has made {BLIND} backward passes and put nothing on a GPU: nothing was traced; "
                              "see its options for the device")
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


GPU = None if torch is None else torch.device("cuda", 0)
CHANNELS_LAST = "channels_last: cuDNN's algorithms for this order of the data take other memory"
OPTIMIZERS = []  # of this trace, in order
MATMULS = WRONG = IN_PLACE = READS = frozenset()
if torch is not None:
    _aten = torch.ops.aten
    MATMULS = frozenset((_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot))
    IN_PLACE = frozenset((_aten.add_, _aten.sub_, _aten.mul_, _aten.div_, _aten.addcmul_, _aten.addcdiv_, _aten.lerp_,
                          _aten.zero_, _aten.fill_, _aten.copy_, _aten.uniform_, _aten.normal_))
    READS = frozenset((_aten._local_scalar_dense.default, _aten.item.default,
                       _aten.is_nonzero.default))  # the last two in inference mode
    WRONG = frozenset((_aten.isnan, _aten.isinf, _aten.isneginf, _aten.isposinf))


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()
