"""Operands that a function makes beside the graph: random numbers, and plain tensors that it distributes.

A replay makes them anew before its plan runs, in the order of the program, so that generators advance as they
do in a recorded call, and as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dtorch import redistribute
from dtorch.errors import CaptureError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Parts
from dtorch.redistribute.local_work import LocalWork


@dataclass(frozen=True)
class Split:
    """Distributes a plain tensor."""

    layout: Layout
    mesh: DeviceMesh

    def __call__(self, full: torch.Tensor) -> Parts:
        """Fresh parts."""
        return redistribute.split(full, self.layout, self.mesh)


class Constant:
    """Makes a plain tensor of values that came from Python; equal to another one of the same values.

    Attributes:
        value: when it was recorded.
        lives: whether it is made over memory that outlives the call, such as an array's, and is read there.
    """

    __slots__ = ("lives", "value")

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.lives = False

    def __call__(self, memory: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor of its own; or of the memory that it is given, if that lives."""
        return memory.detach() if self.lives and memory is not None else self.value.clone()

    def __eq__(self, other: object) -> bool:
        if type(other) is not Constant:
            return False
        a, b = self.value, other.value
        alike = (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        return alike and (torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()))

    def __hash__(self) -> int:
        return hash((self.value.dtype, self.value.shape))


class Generators:
    """The random generators of a captured call: what a replay does not see must leave them alone.

    Attributes:
        used: those that were drawn from.
        watching: whether this is still a captured call; where operators run at once, they draw unseen.
    """

    def __init__(self) -> None:
        self.watching = True
        self.used: list[torch.Generator] = []
        self._states: dict[torch.Generator, torch.Tensor] = {}
        known = [torch.default_generator]
        if torch.cuda.is_initialized():
            known += torch.cuda.default_generators
        for generator in known:
            self._states[generator] = generator.get_state()

    def check(self) -> None:
        """Look whether their states are those after the last draw that was seen.

        Raises:
            CaptureError: one is another.
        """
        if not self.watching:
            return
        with LocalWork():
            same = all(torch.equal(g.get_state(), state) for g, state in self._states.items())
        if not same:
            raise CaptureError(
                "capture(): the function sets the state of a random generator, or draws from it where a "
                "replay cannot see it (manual_seed, fork_rng, checkpointing of a random function); do that "
                "outside"
            )

    def before(self, explicit: Sequence[torch.Generator]) -> None:
        """A draw follows, from these generators or a default one."""
        self.check()
        for generator in explicit:
            self._states.setdefault(generator, generator.get_state())

    def after(self) -> None:
        """The draw has been made."""
        for generator, state in list(self._states.items()):
            now = generator.get_state()
            with LocalWork():
                moved = not torch.equal(now, state)
            if moved:
                self._states[generator] = now
                if generator not in self.used:
                    self.used.append(generator)
