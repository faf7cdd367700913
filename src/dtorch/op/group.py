"""What an operator sees that needs its siblings: the shards of all devices, and reductions over mesh axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dtorch.layout import Layout, coordinates
from dtorch.redistribute import dim_order
from dtorch.redistribute.copying import make
from dtorch.redistribute.fetching import Block, block_at
from dtorch.redistribute.local_work import LocalWork

if TYPE_CHECKING:
    from dtorch.op.operator import Local

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "prod": torch.mul,
}


class Group:
    """The devices that run one operator together, one entry for each distinct shard.

    Attributes:
        locals: the operator's call on each of them.
        coords: their mesh coordinates.
    """

    def __init__(self, locals_: Sequence[Local]) -> None:
        self.locals = tuple(locals_)
        self.coords = tuple(local.coord for local in locals_)
        self._rings: dict[tuple[int, ...], list[list[int]]] = {}

    def rings(self, axes: Sequence[int]) -> list[list[int]]:
        """Devices (numbers into `coords`) that differ on `axes` only, each ring in mesh order."""
        key = tuple(axes)
        if key not in self._rings:
            found: dict[tuple[int, ...], list[int]] = {}
            for i, coord in enumerate(self.coords):
                rest = tuple(-1 if axis in key else c for axis, c in enumerate(coord))
                found.setdefault(rest, []).append(i)
            self._rings[key] = list(found.values())
        return self._rings[key]

    def all_reduce(
        self, values: Sequence[torch.Tensor], axes: Sequence[int], kind: str = "sum"
    ) -> list[torch.Tensor]:
        """Combine one small tensor per device over mesh axes, in mesh order; every device gets the result.

        Args:
            values: a tensor per device, of one shape within each ring.
            axes: mesh axes to combine over.
            kind: "sum", "max", "min" or "prod".
        """
        combine = _COMBINE[kind]
        results = list(values)
        for ring in self.rings(axes):
            total = values[ring[0]]
            for i in ring[1:]:
                total = combine(total, values[i].to(total.device))
            for i in ring:
                results[i] = total.to(values[i].device)
        return results

    def all_gather(self, values: Sequence[torch.Tensor], axes: Sequence[int], dim: int) -> list[torch.Tensor]:
        """Join one small tensor per device over mesh axes, in mesh order; every device gets the result.

        Args:
            values: a tensor per device, of one shape within each ring but for `dim`.
            axes: mesh axes to join over.
            dim: the dim along which they are joined.
        """
        results = list(values)
        for ring in self.rings(axes):
            for i in ring:
                results[i] = torch.cat([values[j].to(values[i].device) for j in ring], dim)
        return results

    def fetch(
        self, values: Sequence[torch.Tensor], layout: Layout, blocks: Sequence[Block], fill: float = 0
    ) -> list[torch.Tensor]:
        """Give every device the block of a tensor that it asks for, whoever holds it.

        Args:
            values: each device's part of the tensor.
            layout: of the tensor; pending sums stay pending.
            blocks: what each device asks for; may stick out beyond the ends of the tensor.
            fill: what stands beyond the ends.

        Returns:
            A tensor per device, compact, in the parts' order of dims; the part itself where it is the block.
        """
        position = {coord: i for i, coord in enumerate(coordinates(layout.mesh_shape))}
        parts = {position[coord]: value for coord, value in zip(self.coords, values, strict=True)}
        order = dim_order(max(values, key=torch.Tensor.numel))
        found = []
        with LocalWork():
            for coord, mine, block in zip(self.coords, values, blocks, strict=True):
                result = block_at(layout, block, coord)
                sources = [copy.sources for copy in result.copies]
                if sources == [(position[coord],)] and result.shape == mine.shape and result.full:
                    found.append(mine)
                else:
                    found.append(make(result, parts, order, mine.dtype, mine.device, fill))
        return found
