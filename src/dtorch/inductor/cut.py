"""Where a function is cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a function is cut.

    Attributes:
        extent: size of the dim that is cut.
        size: of a block along it; no more than the extent.
        inputs: for each input the dim that is cut; -1 where each block reads it whole.
        outputs: for each output the dim that is cut.
        first: numbers of the inputs that the product reads.
        behind: numbers of the inputs that the calls behind it read.
    """

    extent: int
    size: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first: tuple[int, ...]
    behind: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the blocks begin."""
        return (*range(0, self.extent - self.size, self.size), self.extent - self.size)
