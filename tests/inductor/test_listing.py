"""Listings: a function as torch's calls."""

from __future__ import annotations

import pytest
import torch

import dtorch
from dtorch.inductor.listing import Meta, flat, list_calls
from dtorch.plan.passes.kept import MIN_BYTES

SMALL = Meta((4,), (1,), "float32")


def test_a_detached_tensor_is_the_tensor() -> None:
    """What functionalisation makes of `detach` is a copy, between loops that could be one."""

    def function(x: list[torch.Tensor]) -> list[torch.Tensor]:
        made = torch.zeros(4)  # ends with a detach that torch makes itself
        made += x[0].detach()
        return [made.detach() * 2, x[0].detach()]

    found = list_calls(function, [SMALL])
    assert "detach" not in found.text
    assert found.outputs[1].root == 0, "the input itself"
    assert found.results == (found.calls[-1].outputs[0],)


@pytest.mark.recorded
def test_results_in_kept_memory_are_listed_as_one_chain() -> None:
    x = dtorch.ones(MIN_BYTES, device_mesh=dtorch.init_device_mesh("cpu", 1))

    @dtorch.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 1.01 + 0.01

    step.capture(x)
    step(x)
    (program,) = (program for course in step._courses.values() for program in course.programs)
    listing = list_calls(lambda given: flat(program.plan.function(given)), [Meta.of(x.to_local(0))])
    assert [call.name for call in listing.calls] == [
        "aten.empty_strided.default",
        "aten.mul.out",
        "aten.add.out",
    ]
