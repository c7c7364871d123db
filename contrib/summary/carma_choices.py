# SPDX-License-Identifier: Apache-2.0
"""The most places a mask can choose, as far as the program tells. A part of carma_trace.py.

A trace has no data, but knows the operations. The indices positive = where(labels >= 1)[0] are places of labels with the
property >= 1, and so are positive[randperm(n)[:128]]. Of labels[torch.cat((positive, negative))], as in samplers of
detection models, no more than 128 are above 0 if negative was chosen by labels == 0.

Known of a tensor are counts of elements by property, in sum all elements. A property is a tuple of comparisons with
numbers, for example (("ge", 1),): each comparison holds. Nothing is known of elements with ().
"""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

NOT = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
COMPARE = {"eq": float.__eq__, "ne": float.__ne__, "lt": float.__lt__, "le": float.__le__, "gt": float.__gt__,
           "ge": float.__ge__}
MOST = 64  # properties of one tensor
MASKS = torch.bool, torch.uint8
FALSE, TRUE = (("eq", 0.0),), (("eq", 1.0),)


def holds(property_of, test):
    """Whether a comparison holds for elements of a property: True, False, or None if unknown."""
    op, c = test
    for have, k in property_of:
        if (have, k) == test:
            return True
        if (NOT[have], k) == test:
            return False
        if have == "eq":
            return COMPARE[op](k, c)
        up = have in ("ge", "gt") and (c < k or c == k and have == "gt")  # the elements are above c
        down = have in ("le", "lt") and (c > k or c == k and have == "lt")
        if up or down:
            return op == "ne" or op in (("gt", "ge") if up else ("lt", "le"))
        if c == k and have in ("ge", "le") and op == have:
            return True
    return None


def exact(c):
    """A whole number as a float; None for fractions and numbers above 2^53."""
    return float(c) if isinstance(c, (int, float)) and abs(c) <= 1 << 53 and c == int(c) else None


def whole(indices):
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.int64


def written(func, args, kwargs):
    """The tensors an operation changes."""
    if func not in WRITTEN:
        WRITTEN[func] = [(i, a.name) for i, a in enumerate(func._schema.arguments)
                         if a.alias_info is not None and a.alias_info.is_write]
    for i, name in WRITTEN[func]:
        changed = args[i] if i < len(args) else kwargs.get(name)
        yield from changed if isinstance(changed, (list, tuple)) else () if changed is None else (changed,)


WRITTEN = {}  # operation -> the arguments to change


class Choices:
    """All is kept with the stamp of the tensor: PyTorch's own versions miss writes through .data and torch._foreach_*,
    and inference mode has none."""

    def __init__(self):
        self.writes = {}  # storage -> number of operations with changes of the storage
        self.elements = WeakTensorKeyDictionary()  # tensor -> (stamp, [(how many, property)])
        self.masks = WeakTensorKeyDictionary()  # mask -> (stamp, name of the tensor compared, property)
        self.places = WeakTensorKeyDictionary()  # indices or mask -> (stamp, [(how many, of what, property)])
        self.names = WeakTensorKeyDictionary()  # tensor compared -> (stamp, an object as name)

    def stamp(self, tensor, ago=0):
        at = tensor.untyped_storage()._cdata
        return at, self.writes.get(at, 0) - ago

    def before(self, func, args, kwargs):
        for tensor in written(func, args, kwargs):
            if tensor.layout is torch.strided:  # others have no storage to ask for
                at, n = self.stamp(tensor)
                self.writes[at] = n + 1

    def get(self, kept, tensor, ago=0):
        found = kept.get(tensor)
        return found[1:] if found is not None and found[0] == self.stamp(tensor, ago) else None

    def elements_of(self, tensor, ago=0):
        found = self.get(self.elements, tensor, ago)
        return found[0] if found else None

    def name(self, tensor):
        found = self.get(self.names, tensor)
        if found is None:
            found = (object(),)
            self.names[tensor] = self.stamp(tensor), *found
        return found[0]

    def most(self, mask):
        """How many places a mask chooses at most; None: any number."""
        known = self.elements_of(mask)
        if known is None:
            return None
        return min(mask.numel(), sum(n for n, what in known if holds(what, ("ne", 0.0)) is not False))

    def put(self, tensor, elements):
        if len(elements) <= MOST:
            self.elements[tensor] = self.stamp(tensor), elements

    # Effects of operations. ago=1: as before the operation.

    def after(self, func, args, kwargs, out):
        name = func._schema.name
        handler = HANDLERS.get(name)
        if handler is None or "out" in kwargs or func._overloadname in ("value_reduce", "dtype"):
            return  # x.scatter_(0, indices, 1, reduce="add"), x.view(torch.int32)
        if name == "aten::unbind" and len(out) == 1:
            out = out[0]
        if isinstance(out, torch.Tensor) and not out.is_floating_point():
            handler(self, name.partition("::")[2], args, out)

    def compared(self, op, args, out):
        x, c = args[:2]
        if x.dtype not in (torch.int64, torch.int32) or exact(c) is None:
            return
        test = op, exact(c)
        self.masks[out] = self.stamp(out), self.name(x), (test,)
        known = self.elements_of(x)
        if known is not None:
            truth = {True: TRUE, False: FALSE, None: ()}
            self.put(out, [(n, truth[holds(what, test)]) for n, what in known])

    def both(self, op, args, out):
        """a & b: of elements of the same tensor, element by element; else no more than in a, or in b."""
        a, b = args[:2]
        if not isinstance(b, torch.Tensor) or a.shape != b.shape:
            return
        one, two = self.get(self.masks, a), self.get(self.masks, b)
        same = one is not None and two is not None and one[0] is two[0]
        if same:
            self.masks[out] = self.stamp(out), one[0], one[1] + two[1]
        known = [self.elements_of(t) for t in (a, b)]
        if same and None not in known and len(known[0]) == len(known[1]):
            self.put(out, [(n, FALSE if FALSE in (p, q) else p if p == q else ())
                           for (n, p), (_, q) in zip(*known)])
            return
        most = [n for n in (self.most(a), self.most(b)) if n is not None]
        if most:
            self.put(out, [(min(most), ()), (out.numel(), FALSE)])

    def either(self, op, args, out):
        a, b = args[:2]
        if not isinstance(b, torch.Tensor) or a.shape != b.shape:
            return
        most = self.most(a), self.most(b)
        if None not in most:
            self.put(out, [(sum(most), ()), (out.numel(), FALSE)])
        places = [self.get(self.places, t) for t in (a, b)]
        if None not in places and out.dtype in MASKS:
            self.places[out] = self.stamp(out), places[0][0] + places[1][0]

    def filled(self, op, args, out):
        value = exact(1 if "ones" in op else 0 if "zero" in op else args[1] if len(args) > 1 else None)
        if value is not None:
            self.put(out, [(out.numel(), (("eq", value),))])

    def scattered(self, op, args, out):
        """x.scatter_(dim, indices, value)."""
        x, _, indices, value = args[:4]
        known = self.elements_of(x, 1)
        if known is not None and exact(value) is not None:
            self.put(x, known + [(indices.numel(), (("eq", exact(value)),))])

    def written(self, op, args, out):
        """x[indices] = value: so many elements of x may be anything now."""
        x, indices, values = args[:3]
        known = self.elements_of(x, 1)
        if known is None or x.dim() != 1 or not whole(indices) or len(args) > 3 and args[3]:
            return
        n, before = indices[0].numel(), self.get(self.places, x, 1)
        if x.dtype in MASKS and (before is not None or all(what == FALSE for _, what in known)):
            places = self.get(self.places, indices[0]) or ([(n, None, ())],)
            self.places[x] = self.stamp(x), (before[0] if before else []) + places[0]
        self.put(x, known + [(n, ())])

    def chosen(self, op, args, out):
        """nonzero(mask)."""
        mask, found = args[0], None
        if mask.dim() != 1:
            return
        compared = self.get(self.masks, mask)
        if compared is not None:
            found = [(out.shape[0], *compared)]
        elif mask.dtype in MASKS and self.get(self.places, mask) is not None:
            found = self.get(self.places, mask)[0]
        if found is not None:
            self.places[out] = self.stamp(out), found

    def taken(self, op, args, out):
        """x[indices]."""
        x, indices = args[:2]
        if x.dim() != 1 or not whole(indices):
            return
        n = out.numel()
        places = self.get(self.places, x)
        if places is not None and x.dtype == torch.int64:
            # Of several kinds, a single place may be taken many times.
            self.places[out] = self.stamp(out), [(n, *what) for _, *what in places[0]]
        known, name = self.get(self.places, indices[0]), self.get(self.names, x)
        if known is not None and name is not None:
            self.put(out, [(m, what if of is name[0] else ()) for m, of, what in known[0]])
        elif self.elements_of(x) is not None:
            self.put(out, [(n, what) for _, what in self.elements_of(x)])

    def joined(self, op, args, out):
        tensors = [t for t in args[0] if t.numel()]
        known = [self.elements_of(t) for t in tensors]
        if any(k is not None for k in known):
            self.put(out, [e for k, t in zip(known, tensors) for e in (k if k is not None else [(t.numel(), ())])])
        places = [self.get(self.places, t) for t in tensors]
        if out.dtype == torch.int64 and any(p is not None for p in places):
            self.places[out] = self.stamp(out), [
                e for p, t in zip(places, tensors) for e in (p[0] if p else [(t.numel(), None, ())])]

    def passed(self, op, args, out):
        """The same elements in another form, or a part."""
        x = args[0]
        if out.numel() > x.numel():
            return
        known, places, compared = (self.elements_of(x), *(self.get(kept, x) for kept in (self.places, self.masks)))
        whole, n = out.numel() == x.numel(), out.numel()
        line = whole and out.dim() == x.dim() == 1
        if known is not None:
            same = out.dtype == x.dtype
            self.put(out, [(m if whole else min(m, n), what if same or what in (FALSE, TRUE) else ())
                           for m, what in known])
        if places is not None and (line and out.dtype in MASKS if x.dtype in MASKS else out.dtype == x.dtype):
            self.places[out] = self.stamp(out), [(m if whole else min(m, n), *what) for m, *what in places[0]]
        if compared is not None and line:
            self.masks[out] = self.stamp(out), *compared


HANDLERS = {"aten::" + name: handler for names, handler in (
    ("eq ne lt le gt ge", Choices.compared), ("bitwise_and logical_and __and__", Choices.both),
    ("bitwise_or logical_or __or__", Choices.either),
    ("zeros new_zeros zeros_like ones new_ones ones_like fill_ zero_ full full_like", Choices.filled),
    ("index_put_", Choices.written), ("scatter_", Choices.scattered), ("nonzero", Choices.chosen),
    ("index", Choices.taken),
    ("cat stack", Choices.joined),
    ("squeeze unbind select slice view _unsafe_view unsqueeze clone detach alias _to_copy", Choices.passed),
) for name in names.split()}
