"""Running an operator's own kernel on shards, and looking whether the shards of a result are right.

Nothing here uses the code under judgement: parts are cut and put together index by index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.signature import Role, placement_of
from dtorch.runtime.runner import Program
from dtorch.spec import Spec
from dtorch.testing.calls import Call, copy
from dtorch.testing.compare import Tolerance, difference

UNCHECKED = re.compile(
    r"backward|fused|native_|loss|norm|pool|attention|cdist|grid_sampler|upsample|bag|ctc|renorm|linalg|lu_|qr|segment"
)
"""Operators of torch itself whose kernels trust sizes and indices, and would write out of bounds."""

Layouts = tuple[Layout | None, ...]
Parts = list[torch.Tensor]


def roles_of(tensor: torch.Tensor | None, pending: bool = True) -> list[Role]:
    """Roles that a tensor can have on one mesh axis; sums of bools do not exist."""
    if tensor is None:
        return [None]
    can_sum = pending and tensor.dtype is not torch.bool
    return ["R", *range(tensor.ndim), *(["P"] if can_sum else [])]


def layout_of(mesh: DeviceMesh, shape: Sequence[int], roles: Sequence[Role]) -> Layout:
    """The layout of one role per mesh axis."""
    return Layout.from_placements(mesh.shape, shape, [placement_of(role) for role in roles])


def region(layout: Layout, coord: tuple[int, ...], full: torch.Tensor) -> torch.Tensor:
    """What the device at `coord` holds of a full tensor, a copy that keeps the order of strides."""
    piece = full
    for dim in range(layout.ndim):
        runs = layout.local_indices(dim, coord)
        kept = [i for start, stop in runs for i in range(start, stop)]
        if len(kept) < piece.shape[dim]:
            piece = piece.index_select(dim, torch.tensor(kept, dtype=torch.int64))
    return copy(piece)


def parts_of(
    full: torch.Tensor,
    layout: Layout,
    mesh: DeviceMesh,
    generator: torch.Generator | None,
    apart: Sequence[int] = (),
) -> Parts:
    """Local tensors in mesh order; pending sums of mixed sign and unequal size, replicas one object.

    Args:
        full: the value.
        layout: how it is laid out.
        mesh: where.
        generator: of the pending sums; None for sums that are exact in any precision, 4x, -2x, -x.
        apart: axes on which replicas are tensors of their own nevertheless.
    """
    spread = [mesh.shape[axis] for axis in layout.partial]
    addends = (
        _exact_addends(full, prod(spread)) if generator is None else _addends(full, prod(spread), generator)
    )
    made: dict[Any, torch.Tensor] = {}
    parts = []
    for coord in mesh.coords:
        number = 0
        for axis, size in zip(layout.partial, spread):
            number = number * size + coord[axis]
        key = (number, tuple(coord[axis] for axis in (*layout.cut_axes, *apart)))
        if key not in made:
            made[key] = region(layout, coord, addends[number])
        parts.append(made[key])
    return parts


def _addends(full: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    if _is_float(full) and torch.finfo(full.dtype).bits < 32:
        return _exact_addends(full, count)  # what is left of others would be rounded, and add up to another
    addends = []
    for i in range(count - 1):
        if _is_float(full):
            part = torch.randn(full.shape, dtype=full.dtype, generator=generator) * (1.5 + i)
        else:
            part = torch.randint(-7, 8, full.shape, generator=generator).to(full.dtype)
        addends.append(torch.empty_like(full).copy_(part))
    rest = copy(full)
    for part in addends:
        rest = rest - part
    return [*addends, rest]


def _exact_addends(full: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Powers of two times the value: summed in order, nothing is rounded."""
    return (
        [full.clone()]
        if count == 1
        else [full * 2 ** (count - 1), *(full * -(2**i) for i in range(count - 1)[::-1])]
    )


def wrong_value(
    parts: Sequence[Any], layout: Layout, mesh: DeviceMesh, expected: Any, allowed: Tolerance | None = None
) -> str | None:
    """Why local tensors are not `expected` under a layout, None if they are."""
    if not isinstance(expected, torch.Tensor):
        return None if all(part == expected for part in parts) else f"{parts} is not {expected}"
    sums: dict[tuple[int, ...], torch.Tensor] = {}
    for coord, part in zip(mesh.coords, parts, strict=True):
        if not isinstance(part, torch.Tensor):
            return f"{part} is no tensor"
        if tuple(part.shape) != layout.local_shape(coord):
            return f"local shape {list(part.shape)} at {coord}, not {list(layout.local_shape(coord))}"
        if part.dtype != expected.dtype:
            return f"dtype {part.dtype} instead of {expected.dtype}"
        rest = tuple(0 if axis in layout.partial else c for axis, c in enumerate(coord))
        sums[rest] = sums[rest] + part if rest in sums else part
    for coord, total in sums.items():
        found = difference(total, region(layout, coord, expected), allowed)
        if found is not None:
            return f"value at {coord}: {found}"
    return None


def is_safe(
    name: str, inputs: Sequence[torch.Tensor | None], layouts: Sequence[Layout | None], mesh: DeviceMesh
) -> bool:
    """Whether a rule that nobody has vouched for may be run at all: torch checks sizes, or they fit.

    Sizes of a sample are distinct, so dims of one size are one dim and must be cut alike. Indices may point
    anywhere in dims that the index tensors themselves do not have, so these stay whole.

    Args:
        name: of the torch operator.
        inputs: full tensors, None where one is absent.
        layouts: of the inputs.
        mesh: where.
    """
    if not name.startswith("aten.") or not UNCHECKED.search(name):
        return True
    if "attention" in name:
        # Heads of q are counted by heads of k: sizes that differ and still belong together.
        cuts = {tuple(map(bool, map(lay.axes_of, range(4)))) for lay in layouts if lay and lay.ndim == 4}
        if len(cuts) > 1:
            return False
    indexed = {n for x in inputs if x is not None and not _is_float(x) for n in x.shape}
    for coord in mesh.coords:
        local: dict[int, int] = {}
        for x, layout in zip(inputs, layouts, strict=True):
            if x is None or layout is None:
                continue
            for n, here in zip(x.shape, layout.local_shape(coord), strict=True):
                # Some kernels divide by a size.
                empty = n > 0 and here == 0
                if empty or local.setdefault(n, here) != here or (indexed and n != here and n not in indexed):
                    return False
    return True


def run_locally(operator: Operator, parts: Sequence[Parts | None]) -> list[list[Any]]:
    """What every device computes, for each output, in mesh order.

    The runner would give all devices the first one's where the output's layout says that they are equal.
    """
    program = Program(operator, operator.layouts)
    local = [[None if p is None else p[position] for p in parts] for position in program.positions]
    results: list[list[Any]] = [[] for _ in local]
    if program.group is not None:
        operator.compute_group(local, results, program.group)
    else:
        for kernel, mine, found in zip(program.kernels, local, results, strict=True):
            kernel.compute(mine, found)
    by_position = dict(zip(program.positions, results, strict=True))
    return [[by_position[owner][number] for owner in program.owner] for number in range(len(results[0]))]


class Bench:
    """One call on one mesh: its operator on shards, with any layouts for inputs and outputs.

    Args:
        call: what to run.
        mesh: a mesh of virtual devices.
        seed: of the pending sums.
        operator_class: the class to judge; by default the one that serves the call.
    """

    def __init__(
        self, call: Call, mesh: DeviceMesh, seed: int = 0, operator_class: type[Operator] | None = None
    ) -> None:
        self.call = call
        self.mesh = mesh
        self.operator_class = operator_class or call.operator_class
        self.expected = call.run()
        self._written = [
            copy(x) if i in call.written and x is not None else x for i, x in enumerate(call.inputs)
        ]
        if call.written:
            call.run(tuple(self._written))
        self._seed = seed
        self._metas: list[OutputMeta | None] | None = None

    def layouts(self, roles: Sequence[Sequence[Role] | None]) -> Layouts:
        """Layouts of the inputs, from one role per mesh axis for each (None: absent)."""
        return tuple(
            None if x is None or r is None else layout_of(self.mesh, x.shape, r)
            for x, r in zip(self.call.inputs, roles, strict=True)
        )

    def operator(self, layouts: Layouts) -> Operator:
        """The operator on inputs of these layouts, without value and not yet inferred."""
        operands = [
            None if x is None or layout is None else Operand(self._spec(x, layout))
            for x, layout in zip(self.call.inputs, layouts, strict=True)
        ]
        found = self.operator_class(self.call.param, operands)
        # What comes out does not depend on layouts, and torch's meta kernels are slow.
        infer = found.infer_output_meta_info

        def once() -> list[OutputMeta | None]:
            if self._metas is None:
                self._metas = infer()
            return self._metas

        found.infer_output_meta_info = once  # type: ignore[method-assign]
        return found

    def _spec(self, tensor: torch.Tensor, layout: Layout) -> Spec:
        return Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype, layout, self.mesh)

    def whole(self) -> Layouts:
        """Every input whole."""
        return self.layouts([None if x is None else ("R",) * self.mesh.ndim for x in self.call.inputs])

    def wrong(self, inputs: Layouts, outputs: Sequence[Layout], seed: int = 0) -> list[str | None]:
        """For each output why it is wrong under its layout, None where it is right."""
        generator = torch.Generator().manual_seed(self._seed + seed)
        # Devices that see different shards each write a replica of their own, or they would write one twice.
        axes = sorted({axis for lay in inputs if lay is not None for axis in (*lay.cut_axes, *lay.partial)})
        parts = [
            None
            if x is None or layout is None
            else parts_of(x, layout, self.mesh, generator, axes if i in self.call.written else ())
            for i, (x, layout) in enumerate(zip(self.call.inputs, inputs, strict=True))
        ]
        before = [None if p is None else [part.clone() for part in p] for p in parts]
        try:
            operator = self.operator(inputs)
            operator.choice = Choice(inputs, tuple(outputs))
            if (
                operator.type != "General"
            ):  # whose outputs are as they come, whatever torch's meta kernel says
                operator.infer()
            results = run_locally(operator, parts)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return [text] * len(outputs)
        if len(results) != len(self.expected):
            return [f"{len(results)} outputs instead of {len(self.expected)}"] * len(outputs)
        spoiled = self._spoiled(inputs, parts, before)
        return [
            spoiled or wrong_value(found, layout, self.mesh, full, self.call.tolerance(full))
            for found, layout, full in zip(results, outputs, self.expected, strict=True)
        ]

    def _spoiled(self, layouts: Layouts, parts: Sequence[Any], before: Sequence[Any]) -> str | None:
        """Why the inputs are not what they should be afterwards: written ones as torch leaves them."""
        for i, layout in enumerate(layouts):
            if layout is None:
                continue
            if i in self.call.written:
                found = wrong_value(
                    parts[i], layout, self.mesh, self._written[i], self.call.tolerance(self._written[i])
                )
                if found is not None:
                    return f"written input {i}: {found}"
            elif any(difference(now, then) for now, then in zip(parts[i], before[i], strict=True)):
                return f"input {i} was changed, which the schema does not say"
        return None

    def candidates(self, number: int) -> list[Layout]:
        """Layouts of one output worth trying on the only mesh axis; a plain value is 0-dim and whole."""
        full = self.expected[number]
        if not isinstance(full, torch.Tensor):
            return [layout_of(self.mesh, (), ("R",))]
        return [layout_of(self.mesh, full.shape, (role,)) for role in roles_of(full)]

    def right_outputs(self, inputs: Layouts) -> list[list[Layout]]:
        """For each output the layouts that are right, on a mesh of one axis."""
        if not is_safe(getattr(self.call.param, "op", ""), self.call.inputs, inputs, self.mesh):
            return [[]]
        choices = [self.candidates(i) for i in range(len(self.expected))]
        right: list[list[Layout]] = [[] for _ in choices]
        for turn in range(max(map(len, choices), default=0)):
            tried = [options[min(turn, len(options) - 1)] for options in choices]
            for i, why in enumerate(self.wrong(inputs, tried)):
                if why is None and tried[i] not in right[i]:
                    right[i].append(tried[i])
        return right


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def rows(
    call: Call, keep: Sequence[tuple[Role, ...]], limit: int, generator: torch.Generator
) -> list[tuple[Role, ...]]:
    """Rows of input roles to try on one axis: all, or of many the kept, their neighbours, and a sample."""
    integers_too = getattr(call.operator_class, "linear_inputs", None) is not None
    roles = [roles_of(x, x is not None and (integers_too or _is_float(x))) for x in call.inputs]
    if prod(map(len, roles)) <= limit:
        return list(product(*roles))
    # Operators that write their rules down nowhere have at least these: all inputs alike.
    alike = [tuple(None if o == [None] else w if w in o else "R" for o in roles) for w in ("R", 0, 1, "P")]
    found = dict.fromkeys([*keep, *alike])
    for row in list(found)[: len(keep) + 1]:
        for i, options in enumerate(roles):
            found.update(dict.fromkeys(row[:i] + (role,) + row[i + 1 :] for role in options))
    chosen = list(found)[:limit]
    while len(chosen) < limit:
        chosen.append(
            tuple(options[int(torch.randint(len(options), (), generator=generator))] for options in roles)
        )
    return list(dict.fromkeys(chosen))
