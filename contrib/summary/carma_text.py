# SPDX-License-Identifier: Apache-2.0
"""The text of a trace, which docs/trace.md describes. A part of carma_trace.py."""

from carma_recorder import ACTIVATION, MOST_EVENTS, Refused

MOST_BYTES = 256 << 10  # estimator/trace, MaxBytes


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
