"""What tables, page, figures and trace show of a report: sums and groups, made in one place.

All functions take the dict of `Report.to_dict()`. FLOPs, bytes and bytes received are those of the device
that has most, as times are. Units: FLOPs, bytes, seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtorch.op.priced import WITHIN

Data = Mapping[str, Any]
Entry = Mapping[str, Any]

# What bounds an operator, in the order in which legends name it.
BOUNDS = ("compute", "memory", "communication", "launch")
# What holds memory, from the ground of a stacked figure upwards.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")

OUTSIDE = "(no module)"


@dataclass
class Group:
    """Operators taken together.

    Attributes:
        name: what they have in common.
        uses: their number; `flops`, `traffic`, `sent`, `time`, `measured`: sums of the device that has most.
        by_bound: seconds by what bounds the operator.
        known: whether the price of each is known.
    """

    name: str
    uses: int = 0
    flops: int = 0
    has_flops: bool = False
    traffic: int = 0
    sent: int = 0
    time: float = 0.0
    measured: float = 0.0
    by_bound: dict[str, float] = field(default_factory=dict)
    known: bool = True

    def add(self, operator: Entry) -> None:
        """Enter one operator."""
        time, bound = operator["time_s"] or 0.0, operator["bound"]
        self.uses += 1
        self.flops += operator["flops_max_device"] or 0
        self.has_flops |= operator["flops_max_device"] is not None
        self.traffic += operator["traffic_bytes_max_device"] or 0
        self.sent += operator["sent_bytes_max_device"]
        self.time += time
        self.measured += operator["measured_s"] or 0.0
        self.known &= operator["known"]
        if bound is not None:
            self.by_bound[bound] = self.by_bound.get(bound, 0.0) + time

    @property
    def bound(self) -> str | None:
        """What bounds most of its time."""
        return max(self.by_bound, key=lambda name: self.by_bound[name]) if self.by_bound else None


def groups(operators: Iterable[Entry], name_of: Any) -> list[Group]:
    """Operators by `name_of(operator)`, the longest time first, then the most FLOPs and bytes."""
    found: dict[str, Group] = {}
    for operator in operators:
        name = name_of(operator)
        found.setdefault(name, Group(name)).add(operator)
    return sorted(found.values(), key=lambda group: (-group.time, -group.flops, -group.traffic, group.name))


def by_kind(data: Data) -> list[Group]:
    """One group per kind of operator."""
    return groups(data["operators"], lambda operator: operator["kind"])


def by_phase(data: Data) -> list[Group]:
    """One group per phase (forward, backward, optimizer), in order of first use."""
    order = list(dict.fromkeys(operator["phase"] for operator in data["operators"]))
    return sorted(
        groups(data["operators"], lambda operator: operator["phase"]), key=lambda one: order.index(one.name)
    )


def by_bound(data: Data) -> dict[str, float]:
    """Seconds by what bounds the operators, in the order of BOUNDS; those that take no time left out."""
    found = Group("")
    for operator in data["operators"]:
        found.add(operator)
    return {name: found.by_bound[name] for name in BOUNDS if found.by_bound.get(name)}


def measured(data: Data) -> float | None:
    """Seconds of all operators that have been measured; None where none has been."""
    found = [operator["measured_s"] for operator in data["operators"] if operator["measured_s"] is not None]
    return sum(found) if found else None


def merged(rows: Iterable[Group], name: str) -> Group:
    """Several groups as one."""
    found = Group(name)
    for row in rows:
        found.uses += row.uses
        found.flops += row.flops
        found.has_flops |= row.has_flops
        found.traffic += row.traffic
        found.sent += row.sent
        found.time += row.time
        found.measured += row.measured
        found.known &= row.known
        for bound, seconds in row.by_bound.items():
            found.by_bound[bound] = found.by_bound.get(bound, 0.0) + seconds
    return found


def by_module(data: Data, rows: int = 20) -> list[Group]:
    """One group per module, alike numbered ones together; paths as long as `rows` groups allow."""
    paths = together(data)
    deepest = max(map(len, paths.values()), default=1)
    for depth in range(deepest, 0, -1):
        if len({names[:depth] for names in paths.values()}) <= rows:
            break
    return groups(data["operators"], lambda operator: ".".join(paths[operator["module"]][:depth]) or OUTSIDE)


def together(data: Data) -> dict[str, tuple[str, ...]]:
    """Module path -> its names, where alike numbered modules bear one name: layers.*, or 5,6,..,15.

    Alike are siblings whose forwards call the same kinds of operators in the same modules inside.
    """
    inside: dict[tuple[str, ...], set[Any]] = {}
    for operator in data["operators"]:
        names = tuple(operator["module"].split("."))
        for place, name in enumerate(names):
            if name.isdigit():
                called = inside.setdefault(names[: place + 1], set())
                # First and last layers may differ in what is moved, and in where gradients meet.
                if operator["phase"] == "forward" and operator["communication"] is None:
                    called.add((names[place + 1 :], operator["kind"]))
    alike: dict[tuple[str, ...], dict[frozenset[Any], list[int]]] = {}
    for path, called in inside.items():
        alike.setdefault(path[:-1], {}).setdefault(frozenset(called), []).append(int(path[-1]))
    labels: dict[tuple[str, ...], str] = {}
    for parent, found in alike.items():
        for numbers in found.values():
            label = "*" if len(found) == 1 and len(numbers) > 1 else _listed(sorted(numbers))
            labels.update({(*parent, str(number)): label for number in numbers})
    modules = dict.fromkeys(operator["module"] for operator in data["operators"])
    return {module: _labelled(tuple(module.split(".")), labels) for module in modules}


def _listed(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 3 else [*numbers[:2], "..", numbers[-1]]
    return ",".join(map(str, shown))


def _labelled(names: tuple[str, ...], labels: Mapping[tuple[str, ...], str]) -> tuple[str, ...]:
    """The names, each number's label joined to the name it numbers."""
    found: list[str] = []
    for place, name in enumerate(names):
        label = labels.get(names[: place + 1], name)
        if name.isdigit() and found:
            found[-1] += f".{label}"
        else:
            found.append(label)
    return tuple(found)


def module_tree(data: Data, *, apart: bool = True) -> list[dict[str, Any]]:
    """Modules nested as they are called, kinds of operators as leaves; parents before children.

    `apart` tells numbered modules (layers) apart; otherwise they are one. Each entry has id, parent (an id;
    "" for the root), label, leaf, and the sums of a group. A module's time includes that of all inside it;
    siblings keep the order of first use.
    """
    paths = {} if apart else together(data)
    inner: dict[str, Group] = {}
    parents: dict[str, str] = {}
    for operator in data["operators"]:
        if not operator["time_s"]:
            continue
        module = operator["module"]
        names = [*(paths.get(module) or module.split(".")), operator["kind"]]
        names[0] = names[0] or OUTSIDE
        path = "/"
        inner.setdefault(path, Group(data["title"])).add(operator)
        parents.setdefault(path, "")
        for number, name in enumerate(names):
            # A kind and a module may bear one name; the leaf's id ends differently.
            child = f"{path}{name}" + ("/" if number < len(names) - 1 else "#")
            inner.setdefault(child, Group(name)).add(operator)
            parents.setdefault(child, path)
            path = child
    return [
        {
            "id": path,
            "parent": parents[path],
            "label": group.name,
            "leaf": path.endswith("#"),
            **sums(group),
        }
        for path, group in inner.items()
    ]


def sums(group: Group) -> dict[str, Any]:
    """The numbers of a group under the names that the page uses."""
    return {
        "uses": group.uses,
        "flops": group.flops if group.has_flops else None,
        "traffic": group.traffic,
        "sent": group.sent,
        "time": group.time,
        "measured": group.measured or None,
        "bound": group.bound,
        "known": group.known,
    }


# ---- communication


@dataclass
class Exchange:
    """Communication of one kind over the same axes, chosen by the same side.

    Attributes:
        kind, axes: such as all_reduce over "tp".
        chosen: "implicit" (by dtorch), "asked for", or "of the operator" (statistics of
            softmax and the like, halos).
        cause: kind of the operator that needed it, "" where the user or a gradient asked.
        times, bytes, time: number, bytes received and seconds of the device that receives most.
    """

    kind: str
    axes: str
    chosen: str
    cause: str
    times: int = 0
    bytes: int = 0
    time: float = 0.0


def exchange_key(kind: str, axes: str, implicit: bool, cause: str | None) -> tuple[str, str, str, str]:
    """What tells exchanges apart, in words: kind, axes, who chose it, what it was for."""
    asked = "of the operator" if kind in WITHIN else "asked for"
    return kind, axes, "implicit" if implicit else asked, cause or "gradient or user"


def exchanges(data: Data) -> list[Exchange]:
    """Communication by kind, axes, who chose it and for what; the most bytes first."""
    found: dict[tuple[str, str, str, str], Exchange] = {}
    for operator in data["operators"]:
        sent = operator["communication"]
        if sent is None:
            continue
        key = exchange_key(sent["kind"], sent["axes"], sent["implicit"], sent["cause"])
        entry = found.setdefault(key, Exchange(*key))
        entry.times += 1
        entry.bytes += operator["sent_bytes_max_device"]
        entry.time += operator["time_s"] or 0.0
    return sorted(found.values(), key=lambda entry: (-entry.bytes, entry.kind, entry.axes))


# ---- timeline


@dataclass
class Segment:
    """Something a stream does without a pause.

    Attributes:
        start, time: seconds; `bound`: what bounds it; `label`: kind or module; `count`: operators in it.
        first: number of the first operator.
    """

    stream: str
    start: float
    time: float
    bound: str | None
    label: str
    first: int
    count: int = 1


def timeline(data: Data, limit: int | None = 3000) -> list[Segment]:
    """What each stream does when, in order of start; measured times as a stream "measured".

    Above `limit` operators, neighbours of one stream and bound that are too short to be seen apart become one
    segment; None keeps every operator.
    """
    found = sorted((*_predicted(data), *_measured(data)), key=lambda segment: segment.start)
    end = max((segment.start + segment.time for segment in found), default=0.0)
    if limit is None or len(found) <= limit:
        return found
    last: dict[str, Segment] = {}
    kept: list[Segment] = []
    for segment in found:
        before = last.get(segment.stream)
        if before is not None and before.bound == segment.bound:
            pause = segment.start - before.start - before.time
            if max(segment.time, before.time, pause) < end / limit:
                before.time = segment.start + segment.time - before.start
                before.count += 1
                continue
        last[segment.stream] = segment
        kept.append(segment)
    return kept


def _predicted(data: Data) -> Iterable[Segment]:
    for entry in data["operators"]:
        if entry["time_s"]:
            yield _segment(entry, entry["stream"], entry["start_s"], entry["time_s"])


def _measured(data: Data) -> Iterable[Segment]:
    """Measured durations have no start of their own: each begins where the one before it ends."""
    clock = 0.0
    for entry in data["operators"]:
        if entry["measured_s"]:
            yield _segment(entry, "measured", clock, entry["measured_s"])
            clock += entry["measured_s"]


def _segment(entry: Entry, stream: str, start: float, time: float) -> Segment:
    return Segment(stream, start, time, entry["bound"], entry["kind"], entry["index"])


def memory_peak(data: Data) -> Entry | None:
    """The step of the memory figure at which most bytes are held."""
    steps: Sequence[Entry] = data["memory"]
    return max(steps, key=lambda step: sum(step["bytes"].values()), default=None)
