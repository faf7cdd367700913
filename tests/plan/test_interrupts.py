"""Ctrl-C anywhere in a write of several steps: all aliases are whole, old or new, or say what happened."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, OperatorError, Partial, Shard

MESH = DeviceMesh("cpu", [0, 1])


def on(values: torch.Tensor, graph: dtorch.Graph, *placements: Any) -> dtorch.Tensor:
    return dtorch.Tensor(values, MESH, list(placements) or None, graph=graph)


class Interrupted:
    """Presses Ctrl-C at the n-th function call inside dtorch, while it is entered.

    Nothing is collected meanwhile: what a collection calls (a weak dictionary that drops a key) cannot raise.
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_code.co_name == "__exit__":
            return  # a generator that is closed cannot raise; what `with` has entered nothing else leaves
        if event == "call" and frame.f_globals.get("__name__", "").startswith("dtorch."):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def __enter__(self) -> Interrupted:
        gc.disable()
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()


def write_to_a_copied_view(graph: dtorch.Graph) -> tuple[list[dtorch.Tensor], Callable[[], Any]]:
    x = on(torch.arange(12.0).reshape(4, 3), graph, Shard(0))
    row = x[2]  # of rows that are cut: a copy, tied to its base
    pair = row[:2]
    row.sum().item()
    return [x, row, pair], lambda: row.mul_(10.0)


def write_through_a_converted_copy(graph: dtorch.Graph) -> tuple[list[dtorch.Tensor], Callable[[], Any]]:
    x = on(torch.arange(12.0).reshape(4, 3), graph, Shard(0))
    return [x, x.t()], lambda: x.index_add_(0, torch.tensor([1, 3]), torch.ones(2, 3))


def reduce_pending_sums(graph: dtorch.Graph) -> tuple[list[dtorch.Tensor], Callable[[], Any]]:
    x = on(torch.arange(12.0).reshape(4, 3), graph, Partial())
    return [x, x.t()], lambda: x.clamp_(2.0, 7.0)


@pytest.mark.parametrize("eager", [False, True], ids=["recorded", "at once"])
@pytest.mark.parametrize(
    "program", [write_to_a_copied_view, write_through_a_converted_copy, reduce_pending_sums]
)
def test_an_interrupted_write_is_whole_or_told(graph: dtorch.Graph, program: Any, eager: bool) -> None:
    """Wherever Ctrl-C comes: all aliases have the old value, or the new one, or raise."""
    graph.constructor.eager = eager
    tensors, write = program(graph)
    before = [t.to_torch() for t in tensors]
    write()
    after = [t.to_torch() for t in tensors]
    assert not torch.equal(before[0], after[0])
    told, at = set(), 0
    while True:
        at += 1
        tensors, write = program(graph)
        graph.sync()
        try:
            with Interrupted(at):
                write()
                graph.sync()
        except KeyboardInterrupt:
            found = [_value_or_failure(t) for t in tensors]
            told.add(type(found[0]))
            assert _is(found, before) or _is(found, after) or _all_told(found), (at, found)
        else:
            break
    assert str in told


def _value_or_failure(tensor: dtorch.Tensor) -> torch.Tensor | str:
    try:
        return tensor.to_torch()
    except OperatorError as error:
        return str(error)


def _is(found: list[Any], values: list[torch.Tensor]) -> bool:
    return all(isinstance(a, torch.Tensor) and torch.equal(a, b) for a, b in zip(found, values, strict=True))


def _all_told(found: list[Any]) -> bool:
    pattern = r"interrupted while .*(wrote it|were reduced)\n  called from .*test_interrupts"
    return all(isinstance(text, str) and re.search(pattern, text) for text in found)
