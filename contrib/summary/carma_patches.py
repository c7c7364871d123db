# SPDX-License-Identifier: Apache-2.0
"""The GPU of a traced program: replacements of PyTorch's functions.

A part of carma_trace.py.
"""

import contextlib
import importlib
import os
import sys
import warnings

from carma_command import LAUNCHER
from carma_recorder import CHANNELS_LAST, GRADIENT, OPTIMIZERS, Done, Recorder, Refused, bytes_of, need_torch, torch

if torch is not None and int(torch.__version__.split(".")[0]) >= 2:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map
else:
    TorchFunctionMode = object

FAKE_FROM = 1 << 14  # elements of a host tensor from which its data are left out
GIB = 1 << 30


def is_gpu(device):
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True
    try:
        return torch.device(device).type == "cuda"
    except (RuntimeError, TypeError):
        return False


# Types of tensors on a GPU by old names.
LEGACY = {} if torch is None else {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool}


def legacy(dtype):
    """torch.cuda.FloatTensor and the like."""
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
            t.is_cpu.__get__: lambda x, *a: not recorder.on_gpu(x) and bool(t.is_cpu.__get__(x)),
            t.is_cuda.__get__: lambda x, *a: recorder.on_gpu(x) or bool(t.is_cuda.__get__(x)),
            t.new_tensor: self.new_tensor, t.type_as: lambda x, like: self.to(x, like),
            t.record_stream: lambda x, s: None,
            torch.istft: self.istft, t.istft: self.istft,
        }
        self.default = 0  # more than 0: what names no device is on the GPU (torch.set_default_device)
        self.makers = torch.utils._device._device_constructors()
        self.factories = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn,
                          torch.empty_strided}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.recorder.inside += 1  # the mode is off meanwhile: nothing may ask for cuda
        try:
            return self.run(func, args, kwargs or {})
        finally:
            self.recorder.inside -= 1

    def run(self, func, args, kwargs):
        special = self.special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if self.default and kwargs.get("device") is None and func in self.makers:
            kwargs = dict(kwargs, device="cuda")
        if kwargs.get("device") is not None and is_gpu(kwargs["device"]):
            with self.recorder.on():
                out = func(*args, **dict(kwargs, device="cpu"))
                # as_tensor shares a host tensor's storage; on a GPU there is a copy.
                return self.recorder.to_gpu(out) if isinstance(out, torch.Tensor) else out
        if func in self.factories and not self.recorder.force:
            with contextlib.suppress(Exception), self.recorder.fake, self.recorder.hidden():  # a size may be a tensor
                out = func(*args, **kwargs)
                if out.is_floating_point() and out.numel() >= FAKE_FROM:
                    return out
        return func(*args, **kwargs)

    def backward(self, x, gradient=None, *args, **kwargs):
        self.recorder.backward_begins()
        return self.outside(torch.autograd.backward)(x, gradient, *args, **kwargs)

    def istft(self, *args, **kwargs):
        """Asks whether the sum of windows is zero somewhere."""
        self.recorder.equal = False
        try:
            return torch.istft(*args, **kwargs)
        finally:
            self.recorder.equal = True

    def outside(self, func):
        """A function of PyTorch's with calls of the script's code: of checkpoints, hooks, own backward passes."""
        def run(*args, **kwargs):
            inside, self.recorder.inside = self.recorder.inside, 0
            try:
                with self if inside else contextlib.nullcontext():
                    return func(*args, **kwargs)
            finally:
                self.recorder.inside = inside

        return run

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

    def new_tensor(self, x, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        gpu = self.recorder.on_gpu(x) if device is None else is_gpu(device)
        if isinstance(data, torch.Tensor):
            made = data.detach().clone().to(dtype or x.dtype)
            return (self.recorder.to_gpu(made) if gpu else made).requires_grad_(requires_grad)
        with self.recorder.on() if gpu else contextlib.nullcontext():
            return torch.tensor(data, dtype=dtype or x.dtype, device="cpu", requires_grad=requires_grad)

    def to_host(self, x, *args, **kwargs):
        if not self.recorder.on_gpu(x):
            return x
        self.recorder.hide += 1
        try:
            with torch.no_grad():
                host = self.recorder.data(x)
                return torch.empty_like(x.detach()) if host is None else host.clone()
        finally:
            self.recorder.hide -= 1

    def numpy(self, x, **kwargs):
        if not isinstance(x, FakeTensor):
            return x.numpy(**kwargs)
        host = self.recorder.data(x)
        if host is not None:
            return host.clone().numpy()
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


def is_fused(query, key, value, mask):
    """Whether a fused kernel of CUDA takes the tensors; else PyTorch multiplies and keeps the matrices.

    The filters are those of a GPU of compute capability 8.0 or later (PyTorch at 001f694aef, aten/src/ATen/native/
    transformers, cuda/sdp_utils.cpp and sdp_utils_cpp.h: can_use_flash_attention, can_use_mem_efficient_attention).
    """
    tensors = query, key, value
    if (any(t.dim() != 4 or 0 in t.shape or t.stride(-1) != 1 or t.shape[:2] != query.shape[:2] for t in tensors)
            or query.shape[-1] != key.shape[-1] or mask is not None and mask.dim() > 0 and mask.stride(-1) != 1):
        return False
    width, half = query.shape[-1], query.element_size() < 4
    if half and mask is None and width == value.shape[-1] <= 256 and torch.backends.cuda.flash_sdp_enabled():
        return True
    multiple = 8 if half else 4
    return width % multiple == value.shape[-1] % multiple == 0 and torch.backends.cuda.mem_efficient_sdp_enabled()


def patched_attention(recorder, plain):
    attention = attention_class()

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        if not recorder.on_gpu(query) or kwargs.get("enable_gqa"):
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (t.to(dtype) for t in (query, key, value))
        if not is_fused(query, key, value, attn_mask):
            # The mask of a dropout has four bytes an element here, and one on CUDA.
            with torch.autocast("cpu", enabled=False):
                return torch.ops.aten._scaled_dot_product_attention_math(
                    query, key, value, attn_mask, dropout_p, is_causal, **kwargs)[0]
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
        self.batch = batch  # of a second trace: batch size of DataLoaders
        self.loaders = []  # batch sizes of the script's loaders

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
        self.placement = Placement(recorder)
        self.optimizers()
        self.devices()
        self.autocast()
        self.modules()
        self.library = register_autocast()
        self.stack.callback(self.library._destroy)
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

    def devices(self):
        """A traced tensor is on cuda:0; PyTorch's own functions then ask a GPU, and get answers."""
        self.put(FakeTensor, "device", property(self.recorder.device))
        hooks, outside = torch.autograd.graph.saved_tensors_hooks, self.placement.outside
        init = hooks.__init__
        self.put(hooks, "__init__", lambda h, pack, unpack: init(h, outside(pack), outside(unpack)))
        if hasattr(torch.autograd, "_engine_run_backward"):  # torch.autograd.grad(), too, runs code of the script
            self.put(torch.autograd, "_engine_run_backward", outside(torch.autograd._engine_run_backward))
        self.put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # RNN's weights stay apart
        listed = FakeTensor.tolist

        def tolist(tensor):
            host = self.recorder.data(tensor)
            return listed(tensor) if host is None else host.tolist()

        self.put(FakeTensor, "tolist", tolist)
        generator = torch.Generator

        class Kind(type(generator)):
            def __instancecheck__(cls, x):
                return isinstance(x, generator)

        class Generator(generator, metaclass=Kind):
            def __new__(cls, device="cpu"):
                return generator.__new__(cls, "cpu" if is_gpu(device) else device)

        self.put(torch, "Generator", Generator)
        asarray = torch.asarray  # not seen by a TorchFunctionMode

        def array(obj, *args, device=None, **kwargs):
            made = asarray(obj, *args, device="cpu" if is_gpu(device) else device, **kwargs)
            return self.recorder.to_gpu(made) if is_gpu(device) else made

        self.put(torch, "asarray", array)

    def autocast(self):
        if hasattr(torch, "get_autocast_dtype"):  # since PyTorch 2.4
            for name in ("is_autocast_enabled", "get_autocast_dtype"):
                def answer(device_type="cuda", _asked=getattr(torch, name)):
                    return _asked("cpu" if device_type == "cuda" else device_type)

                self.put(torch, name, answer)
        else:
            self.put(torch, "is_autocast_enabled", torch.is_autocast_cpu_enabled)
        self.put(torch, "get_autocast_gpu_dtype", torch.get_autocast_cpu_dtype)
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
            kwargs["enabled"] = False  # the few numbers have no values here
            scaler_init(s, *args, **kwargs)

        self.put(scaler, "__init__", scaler_started)

    def modules(self):
        recorder, module = self.recorder, torch.nn.Module
        to = module.to

        def moved(m, *args, **kwargs):
            # A number is a GPU's; PyTorch asks for a GPU first.
            args = [f"cuda:{a}" if type(a) is int else a for a in args]
            kwargs = {k: f"cuda:{a}" if type(a) is int else a for k, a in kwargs.items()}
            if kwargs.get("memory_format") is torch.channels_last:
                recorder.unseen[CHANNELS_LAST] = 1
            with torch._C.DisableTorchFunction():  # Placement would take device= for a tensor to make
                device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
            if device is not None and device.type == "cuda":
                return recorder.module_to_gpu(m, dtype)
            return to(m, *args, **kwargs)

        call, depth = module.__call__, [0]

        def called(m, *args, **kwargs):
            if depth[0] == 0 and not torch.is_grad_enabled():
                recorder.boundary()  # a batch of an evaluation, or a letter of a text
            depth[0] += 1
            try:
                return call(m, *args, **kwargs)
            finally:
                depth[0] -= 1

        self.put(module, "__call__", called)
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
        with contextlib.suppress(ImportError):  # for torch.func.jvp: compiles functions
            importlib.import_module("torch._decomp.decompositions_for_jvp")
        for name in ("freeze", "optimize_for_inference"):
            self.put(torch.jit, name, lambda m, *a, **k: m)
        self.put(torch.jit, "save", lambda *a, **k: None)
        if torch.jit._state._enabled:  # compiled functions would not see the replacements
            torch.jit._state.disable()
            self.stack.callback(torch.jit._state.enable)
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
                # The first loader is taken for training.
                if tracing.batch and batch_size == tracing.loaders[0]:
                    batch_size = tracing.batch
            init(d, dataset, batch_size, *args, **kwargs)

        self.put(loader, "__init__", started)
        iterate, empty = loader.__iter__, set()

        def iterated(d):
            with contextlib.suppress(TypeError):  # a stream of samples has no length
                if d.drop_last and tracing.recorder.backwards == 0 and len(d) == 0:
                    if id(d) in empty:  # a second epoch without a batch
                        raise Refused(f"its DataLoader has {len(d.sampler)} samples and drops what is less than a "
                                      f"batch of {d.batch_size}: give it more samples, or a smaller batch")
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
        accelerator = getattr(torch, "accelerator", None)  # since PyTorch 2.6; missing names are left out
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
        if "RANK" in os.environ:  # of a launcher: the first and only process
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

        # Of one process: as the base class, with the same tensors for the backward pass.
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
