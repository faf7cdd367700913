"""Operators called by typed parameters: what they get when the call is recorded and runs later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.operators import CustomOperator, Dims, Local, OpParam, OutputMeta, add_operator

MESH = dtorch.DeviceMesh("cpu", [0, 1])


class SumOfTwoParam(OpParam, frozen=True):
    """It has none."""


class SumOfTwo(CustomOperator):
    """The sum of two tensors of one shape."""

    param_type = SumOfTwoParam
    dims = Dims("x[a b], y[a b] -> z[a b]")

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As the first input."""
        assert self.inputs[0] is not None
        spec = self.inputs[0].spec
        return [OutputMeta(spec.shape, spec.stride, spec.dtype)]

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """Element by element."""
        outputs[:] = [inputs[0] + inputs[1]]


@pytest.fixture
def x() -> dtorch.Tensor:
    graph = dtorch.Graph()
    graph.constructor.eager = False
    for _ in range(2):  # once confirmed, a call is recorded
        found = dtorch.Tensor(torch.ones(4, 2), MESH, [Shard(0)], graph=graph)
        add_operator(SumOfTwoParam(), found, torch.zeros(4, 2))
    return found


def test_a_plain_input_is_read_when_the_call_is_made(x: dtorch.Tensor) -> None:
    plain = torch.zeros(4, 2)
    made = add_operator(SumOfTwoParam(), x, plain)
    assert made._operand.parts is None
    plain.fill_(100)
    assert torch.equal(made.to_torch(), torch.ones(4, 2))


def test_an_input_of_another_graph_has_a_value(x: dtorch.Tensor) -> None:
    theirs = dtorch.Tensor(torch.ones(4, 2), MESH, [Shard(0)], graph=dtorch.Graph())
    for _ in range(3):
        made = add_operator(SumOfTwoParam(), x, theirs * 2.0)
        assert torch.equal(made.to_torch(), torch.full((4, 2), 3.0))
