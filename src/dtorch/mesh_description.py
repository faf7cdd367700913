"""What a described mesh is made of: devices that need not be here, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

kinds: Callable[[], Mapping[str, type]] = dict
"""The classes of devices and links by the names that files call them; whoever has them sets it."""


class Description(NamedTuple):
    """The devices of a mesh by their data sheet; its tensors have no storage.

    Attributes:
        device: a frozen value with a `name` (perf/device.py); all devices of the mesh are alike.
        links: for each mesh axis what joins the devices along it, a frozen value with a `name`.
    """

    device: Any
    links: tuple[Any, ...] = ()

    def along(self, axes: Sequence[int]) -> Description:
        """The description of a mesh over some of the axes, in that order."""
        return Description(self.device, tuple(self.links[axis] for axis in axes))
