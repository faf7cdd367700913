"""The plan of a captured call, compiled as one program of all devices' local tensors once that pays.

A compilation costs seconds, on another core. It is begun when as much time has gone into replays as it takes:
then at most twice the time is spent that would have been, had it been known beforehand. What is compiled
takes the plan's place under the mode that it was compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from dtorch.inductor import worth
from dtorch.inductor.listing import Meta
from dtorch.inductor.mode import mode
from dtorch.inductor.region import Region
from dtorch.plan.codegen import Plan


class CompiledPlan:
    """A plan's function, by compiled code where there is some.

    Args:
        plan: takes local tensors, then numbers.
        num_numbers: how many numbers.
        name: of the captured function.
    """

    __slots__ = ("_counts", "_function", "_metas", "_name", "_num_numbers", "_regions", "_seconds")

    def __init__(self, plan: Plan, num_numbers: int, name: str) -> None:
        self._function = plan.function
        self._counts = [len(plan.names[number]) for number in plan.selection.wanted]
        self._num_numbers = num_numbers
        self._name = name
        self._metas: list[Meta] = []
        self._regions: dict[str, Region] = {}
        self._seconds = 0.0

    def __call__(self, values: list[Any]) -> list[list[Any]]:
        """The parts of the plan's outputs; takes the values out of the list."""
        region = self._regions.get(mode())
        if region is not None and region.state == "compiled":
            return self._grouped(region(values))
        if region is not None:
            return self._function(values)
        if not self._metas and not self._num_numbers:
            self._metas = [Meta.of(value) for value in values]
        start = perf_counter()
        made = self._function(values)
        self._seconds += perf_counter() - start
        if self._seconds > worth.SPENT_SECONDS:
            self._start()
        return made

    def compile(self) -> None:
        """Compile it under the mode in force and wait; nothing before it has run once."""
        if self._metas or self._num_numbers:
            self._start().wait()

    def why(self) -> str:
        """Whether compiled code takes its place and why not, as the end of a sentence."""
        region = self._regions.get(mode())
        if region is None or region.state == "off":
            return ""
        if region.state == "compiled":
            return f", compiled ({region.mode})"
        if region.reason:
            return f", not compiled: {region.reason}"
        return ", waiting to be compiled" if region.state == "waiting" else ", being compiled"

    def _start(self) -> Region:
        region = self._regions.get(mode())
        if region is None:
            region = Region(self._flat, self._metas, name=f"the replay of {self._name}")
            if self._num_numbers and region.state != "off":
                region.refuse("numbers that change from call to call are among its inputs")
            self._regions[mode()] = region.start()
        return region

    def _flat(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        return [part for parts in self._function(list(values)) for part in parts]

    def _grouped(self, made: Sequence[Any]) -> list[list[Any]]:
        found, at = [], 0
        for count in self._counts:
            found.append(list(made[at : at + count]))
            at += count
        return found
