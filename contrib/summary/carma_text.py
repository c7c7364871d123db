# SPDX-License-Identifier: Apache-2.0
"""The text of a trace, which docs/trace.md describes. A part of carma_trace.py."""

from carma_recorder import ACTIVATION, MOST_EVENTS, Refused

MOST_BYTES = 256 << 10  # estimator/trace, MaxBytes


def tokens(result):
    """The events with births numbered by class and size, deaths by their distance."""
    out, deep, born = [], 0, 0
    for event in once(result["events"]):
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
            out.append(tuple(event))
    return out


NEAR = 8  # births since the storage's own, up to which a death counts births


def once(events):
    """Leaves out all but the first matrix product: cuBLAS takes its workspace once."""
    seen, out = False, []
    for event in events:
        if event[0] != "m" or not seen:
            out.append(event)
        seen = seen or event[0] == "m"
    return out


# A loop within a step, such as a decoder of 600 letters, makes more events than a text may hold.

PASSES = 6  # of which a run of equal passes has as many or more
GRAM = 8  # events by which a pass is found again


def sized(results):
    """The events of runs of equal shape, as numbers: equal for equal sizes, of any storage."""
    size = [{e[1]: e[2] for e in r["events"] if e[0] == "+"} for r in results]
    numbers = {}
    for events in zip(*(once(r["events"]) for r in results)):
        letter, number = events[0][:2]
        key = letter, *([size[k][e[1]] for k, e in enumerate(events)] if letter in "+-" else [number])
        yield numbers.setdefault(key, len(numbers))


def middles(stream):
    """Where equal passes follow each other: from the end of the second to the start of the last but one."""
    last, far, i = {}, {}, 0
    while i + GRAM <= len(stream):
        key = tuple(stream[i:i + GRAM])
        before, last[key] = last.get(key, i), i
        width, i = i - before, i + 1
        if width == 0 or far.get(width, 0) > i:
            continue
        end = i
        while end < len(stream) and stream[end] == stream[end - width]:
            end += 1
        far[width] = end
        if end - before >= PASSES * width:
            yield before + 2 * width, end - 2 * width, width
            for k in range(i, end - GRAM + 1):
                last[tuple(stream[k:k + GRAM])] = k
            i = max(i, end - GRAM + 1)


def most_alive(events):
    """The most bytes alive at once."""
    size, alive, most = {}, 0, 0
    for e in events:
        if e[0] == "+":
            size[e[1]] = rounded(e[2])
            alive += size[e[1]]
            most = max(most, alive)
        elif e[0] == "-":
            alive -= size[e[1]]
    return most


def thin(results):
    """Leaves out the temporary allocations and the convolutions of a loop's middle passes.

    From pass to equal pass, memory grows or shrinks by the same amount. So the most is in the first or the last passes,
    which stay. Allocations kept by the middle passes stay, too.
    """
    events = [once(r["events"]) for r in results]
    end = {e[1]: i for i, e in enumerate(events[0]) if e[0] == "-"}
    out, runs = set(), list(middles(list(sized(results))))
    for begin, to, _ in runs:
        for i in range(begin, to):
            letter, number = events[0][i][:2]
            if letter == "+" and end.get(number, to) < to:
                out.update((i, end[number]))
            elif letter in "fdw":
                out.add(i)
    new = [{} for _ in results]
    if len(events[0]) - len(out) > MOST_EVENTS:
        for births, deaths in together(events, end, out, runs):
            last, first = max(births), min(deaths)
            out.update((*births, *deaths))
            out -= {last, first}
            for e, changed in zip(events, new):
                changed[last] = "+", e[last][1], sum(rounded(e[i][2]) for i in births)
                changed[first] = "-", e[last][1]
    return [thinned(r, e, out, changed) for r, e, changed in zip(results, events, new)]


def together(events, end, out, runs):
    """Events of small storages with births in the same middle pass, and deaths in the same. One storage stands for all.

    From the last birth to the first death, the sum is equal; before and after, within the middle passes, the sum is
    smaller. Up to 1 MiB, an allocator uses the same segments.
    """
    width_at = [0] * len(events[0])
    for begin, to, width in runs:
        width_at[begin:to] = [width] * (to - begin)
    run_at = {}
    for n, (begin, to, _) in enumerate(runs):
        run_at.update(dict.fromkeys(range(begin, to), n))
    group, size = [], [0] * len(events)

    def fits(i, d, new):
        (j, c), within = group[0], max(size[k] + n for k, n in enumerate(new)) <= SMALL
        return (within and run_at[i] == run_at[j] and run_at[d] == run_at[c] and i - j < width_at[i]
                and abs(d - c) < width_at[d])

    for begin, to, _ in runs:
        for i in range(begin, to):
            if events[0][i][0] != "+" or i in out:
                continue
            d, new = end.get(events[0][i][1]), [rounded(e[i][2]) for e in events]
            if d not in run_at:
                continue
            if group and not fits(i, d, new):
                if len(group) > 1:
                    yield tuple(zip(*group))
                group, size = [], [0] * len(events)
            if max(new) <= SMALL:
                group.append((i, d))
                size = [n + m for n, m in zip(size, new)]
    if len(group) > 1:
        yield tuple(zip(*group))


SMALL = 1 << 20


def rounded(size):
    """As an allocator gives."""
    return (size + 511) // 512 * 512


def thinned(result, events, out, changed):
    left, kinds, new = [], {}, {}
    for i, e in enumerate(events):
        if i in out:
            continue
        e = changed.get(i, e)
        if e[0] == "+":
            kinds[len(new)] = result["kinds"].get(e[1], ACTIVATION)
            new[e[1]] = len(new)
        left.append((e[0], new[e[1]], *e[2:]) if e[0] in "+-" else e)
    if most_alive(left) != most_alive(events):
        raise Refused("its loops cannot be written in a text: give mem= in the script instead")
    return dict(result, events=left, kinds=kinds)


def shape_of(stream):
    """Everything but sizes: equal in two batch sizes."""
    return [(k, v[0] if k == "+" else v if k in "-~" else "") for k, v in stream]


def alike(first, second):
    """Whether two traces differ in sizes alone."""
    return shape_of(tokens(first)) == shape_of(tokens(second))


def fold(stream):
    """Writes a repeated run as =DISTANCE,LENGTH."""
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
    """The lines of a trace; of two if only sizes differ."""
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
        if second is None or shape_of(tokens(first)) != shape_of(tokens(second)):
            (first,) = thin((first,))
        else:
            first, second = thin((first, second))
    if len(once(first["events"])) > MOST_EVENTS:
        raise Refused(f"two steps make {len(first['events']):,} allocations, more than {MOST_EVENTS:,}: "
                      "give mem= in the script instead")
    out = ["#CARMA on" if not batch else f"#CARMA batch={batch}"]
    out += ["#CARMA| " + line for line in text(first, batch, second, second_batch)]
    if sum(len(line) - 7 for line in out[1:]) > MOST_BYTES:
        raise Refused("the trace is longer than 256 KiB: give mem= in the script instead")
    return out
