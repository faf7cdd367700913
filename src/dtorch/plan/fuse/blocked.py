"""Whether a region can take the product before it in, made block by block, and where it is cut.

A block is a stretch of the first dim of the product's result that is not 1: of rows, or of the batch. What
has that dim, counted from the last, is cut with it; what has not is read whole by each block.
"""

from __future__ import annotations

import torch

from dtorch.inductor.cut import Cut
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.fuse.legality import local_stride, row_dims, sharing
from dtorch.plan.passes.draft import Draft

BLOCK_BYTES = 2**21
"""What a block of the result takes at most: it is still in the caches when the calls behind it read it."""

LEAST_ROWS, STEP_ROWS = 128, 8
"""Rows of a block, at least: with fewer a library reads the other operand too often. And their multiple."""

LEAST_COLUMNS = 64
"""Columns of a product, at least: narrow ones are made by other code, by how many rows there are."""


def is_product(draft: Draft, number: int) -> bool:
    """Whether a product makes an operand."""
    maker = draft.maker.get(number)
    return maker is not None and draft.operator(maker).name in draft.operator(maker).products


def why_not(draft: Draft, number: int, nodes: tuple[int, ...]) -> str:
    """Why a product is none that a region can take in, wherever it is cut; nothing where it can.

    Args:
        draft: the sequence.
        number: of the product's result.
        nodes: of the region.
    """
    node = draft.maker[number]
    if number in draft.wanted or not set(nodes).issuperset(draft.readers[number]):
        return "somebody else reads it"
    if any(draft.recipes[n].written for n in nodes):
        return "the calls behind it write"
    spec, inputs = draft.spec(number), draft.inputs[node]
    assert spec is not None
    if spec.dtype not in (torch.float32, torch.float64):
        return f"it is in {str(spec.dtype).removeprefix('torch.')}"
    if len(set(inputs)) != len(inputs):
        return "it reads one operand twice"
    if sharing(draft, node):
        return sharing(draft, node)
    here, there = draft.recipes[node].program, draft.recipes[nodes[0]].program
    if here.positions != there.positions or draft.operator(node).mesh != draft.operator(nodes[0]).mesh:
        return "other devices make it"
    if any(draft.written_between(n, node, nodes[-1]) for n in inputs):
        return "what it reads is written before the region runs"
    mesh = draft.operator(node).mesh
    for spec in map(draft.spec, inputs):
        if spec is None:
            return "a number of it is given by each call anew"
        if any(local_stride(spec, mesh.coords[p]) is None for p in here.positions):
            return "what it reads is cut out of memory in a way that its spec does not tell"
    return ""


def cut_of(draft: Draft, region: Candidate, coord: tuple[int, ...]) -> Cut | str:
    """Where a region is cut on a device; why it cannot be, as text.

    Args:
        draft: the sequence.
        region: whose first call is a product.
        coord: of the device.
    """
    product, *behind = region.nodes
    (number,) = draft.outputs[product]
    shape, itemsize = _shape(draft, number, coord), _itemsize(draft, number)
    if shape[-1] < LEAST_COLUMNS:
        return f"it has fewer than {LEAST_COLUMNS} columns"
    dim = next((d for d, n in enumerate(shape[:-1]) if n > 1), 0)
    size = _size(shape, dim, itemsize)
    if 2 * size > shape[dim]:
        return "it is no larger than two blocks"
    walk = _Walk(draft, coord, len(shape) - dim, shape[dim])
    walk.take(product, dim)
    for node in behind:
        walk.follow(node)
    inputs = [n for n in region.inputs if n not in draft.facts.constants]
    tensors = [n for n in inputs if draft.spec(n) is not None]
    numbers = (len(tensors),) if len(inputs) > len(tensors) else ()  # in one tensor behind the others
    if any(walk.dims[n] < 0 for n in region.outputs):
        walk.why = walk.why or "each block would make a result that is not cut"
    if walk.why:
        return walk.why
    places = {n: i for i, n in enumerate(tensors)}
    read = dict.fromkeys(n for node in behind for n in draft.inputs[node] if n in places)
    return Cut(
        extent=shape[dim],
        size=size,
        inputs=(*[walk.dims.get(n, -1) for n in tensors], *[-1 for _ in numbers]),
        outputs=tuple(walk.dims[n] for n in region.outputs),
        first=tuple(places[n] for n in draft.inputs[product]),
        behind=(*[places[n] for n in read], *numbers),
    )


def _size(shape: tuple[int, ...], dim: int, itemsize: int) -> int:
    """Of a block along a dim: blocks are equal, take no more than `BLOCK_BYTES` or have the fewest rows."""
    rows = shape[dim + 1 : -1]
    step_bytes, least = itemsize * shape[-1], LEAST_ROWS
    for n in rows:
        step_bytes, least = step_bytes * n, -(-least // max(n, 1))
    most = max(BLOCK_BYTES // max(step_bytes, 1), least, 1)
    count = -(-shape[dim] // most)
    size = -(-shape[dim] // max(count, 1))
    return size if rows else -(-size // STEP_ROWS) * STEP_ROWS


class _Walk:
    """Which dim of each operand of a region is cut.

    Attributes:
        dims: number -> the dim; -1 for an operand that is read whole.
        made: numbers of what its calls make.
        why: why it cannot be cut.
    """

    def __init__(self, draft: Draft, coord: tuple[int, ...], behind: int, extent: int) -> None:
        self.draft, self.coord, self.from_last, self.extent = draft, coord, behind, extent
        self.dims: dict[int, int] = {}
        self.made: set[int] = set()
        self.why = ""

    def take(self, node: int, dim: int) -> None:
        """The product: its rows are cut; the other operand, where the batch is."""
        operator, read = self.draft.operator(node), self.draft.inputs[node]
        rows, other, added = map(operator.arguments.get, operator.products[operator.name])
        assert rows is not None
        assert other is not None
        self._set(read[rows.index], dim)
        batched = len(_shape(self.draft, read[other.index], self.coord)) > 2 and dim == 0
        self._set(read[other.index], 0 if batched else -1)
        if added is not None:
            self._set(read[added.index], self._aligned(read[added.index]))
        self.made.update(self.draft.outputs[node])
        self.dims.update(dict.fromkeys(self.draft.outputs[node], dim))

    def follow(self, node: int) -> None:
        """A call behind the product."""
        operator, made = self.draft.operator(node), self.draft.outputs[node]
        read = [n for n in self.draft.inputs[node] if self.draft.spec(n) is not None]
        for number in read:
            if number not in self.made:
                self._set(number, self._aligned(number))
        is_cut = any(self.dims[number] >= 0 for number in read)
        if is_cut and operator.name in operator.rowwise:
            ndims = {len(_shape(self.draft, n, self.coord)) for n in (read[0], *made)}
            if len(ndims) > 1 or self.dims[read[0]] in row_dims(operator):
                self.why = self.why or f"{operator.kind_name()} needs more than a block"
        self.made.update(made)
        for number in made:
            self.dims[number] = self._aligned(number) if is_cut else -1
            if is_cut and self.dims[number] < 0:
                self.why = self.why or f"{operator.kind_name()} gives a result that cannot be cut"

    def _aligned(self, number: int) -> int:
        """The dim of an operand that meets the cut one; -1 where it has none, or 1 there."""
        shape = _shape(self.draft, number, self.coord)
        place = len(shape) - self.from_last
        return place if place >= 0 and shape[place] == self.extent else -1

    def _set(self, number: int, dim: int) -> None:
        if self.dims.setdefault(number, dim) != dim:
            self.why = self.why or "one operand is read both whole and in blocks"


def _shape(draft: Draft, number: int, coord: tuple[int, ...]) -> tuple[int, ...]:
    spec = draft.spec(number)
    assert spec is not None
    return spec.local_shape(coord)


def _itemsize(draft: Draft, number: int) -> int:
    spec = draft.spec(number)
    assert spec is not None
    return spec.itemsize
