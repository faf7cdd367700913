"""What a pending sum cannot promise: it is the sum of its parts, taken late, and parts are numbers too.

an infinity among the other operand's values, known only when they are computed
    `test_times_an_infinity_that_a_tensor_holds`; one that the call names is met by the whole sum:
    `tests/ops/test_reduce.py`
a part overflows where the sum would not
    `test_a_part_that_overflows`, `test_a_sum_that_overflows_on_its_way`
the sign of zero
    `test_zero_has_no_sign`
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dtorch
from dtorch import Partial, Replicate, Shard
from tests.hazards.cases import pending

INF = float("inf")
MESH = dtorch.init_device_mesh("cpu", 2)


def whole(x: dtorch.Tensor) -> dtorch.Tensor:
    return x.redistribute(placements=[Replicate()])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x * w,
        lambda x, w: x / (1 / w),
        lambda x, w: torch.outer(x, w).diagonal(),
        lambda x, w: x @ w,
    ],
    ids=["mul", "div", "outer", "matmul"],
)
@pytest.mark.parametrize("parts", [(7.0, -2.0), (5.0, 0.0)], ids=str)
def test_times_an_infinity_that_a_tensor_holds(
    fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], parts: tuple[float, float]
) -> None:
    """NaN, which is seen, never another number; what is reduced first is torch's."""
    x = pending(*([part] for part in parts))
    assert x.to_torch().tolist() == [5.0]
    weight = torch.tensor([INF])
    found, wanted = fn(x, weight), fn(torch.tensor([5.0]), weight)
    assert torch.equal(found.to_torch(), wanted) or bool(found.to_torch().isnan().all())
    assert torch.equal(fn(whole(x), weight).to_torch(), wanted)


@pytest.mark.parametrize("infinity", [INF, -INF, float("nan")])
def test_a_number_that_the_call_names_meets_the_whole_sum(infinity: float) -> None:
    x = pending([7.0], [-2.0])
    assert (x * infinity).to_torch().equal(torch.tensor([5.0]) * infinity) or infinity != infinity
    assert (x / 0).to_torch().tolist() == [INF]


def test_a_part_that_overflows() -> None:
    """Row-parallel products in half precision: what one device holds is a number of that precision too."""
    x = torch.full((1, 4), 200.0, dtype=torch.float16)
    w = torch.tensor([[200.0], [200.0], [-200.0], [-199.0]], dtype=torch.float16)
    assert (x @ w).tolist() == [[200.0]]
    placed = dtorch.Tensor(x, MESH, [Shard(1)]) @ dtorch.Tensor(w, MESH, [Shard(0)])
    assert placed.placements == [Partial()]
    assert not placed.to_torch().isfinite().any()
    assert (whole(dtorch.Tensor(x, MESH, [Shard(1)])) @ w).to_torch().tolist() == [[200.0]]


def test_a_sum_that_overflows_on_its_way() -> None:
    """Half precision is added up in float32, so only the parts and the sum must fit."""
    three = dtorch.init_device_mesh("cpu", 3)
    parts = [torch.tensor([v], dtype=torch.float16) for v in (6e4, 6e4, -6e4)]
    x = dtorch.from_local(parts, three, [Partial()])
    assert x.to_torch().equal(parts[0])
    big = [torch.tensor([v]) for v in (3e38, 3e38, -3e38)]
    y = dtorch.from_local(big, three, [Partial()]).to_torch()
    assert y.equal(big[0] + big[1] + big[2]), "the order of devices, as plain torch would add them"


def test_zero_has_no_sign() -> None:
    """-0. and 0. are equal; of a pending sum the sign of zero is that of a sum, 0. unless all are -0."""
    x = dtorch.Tensor(torch.tensor([-0.0]), MESH, [Partial()])
    assert x.to_torch().tolist() == [0.0]
    moved = dtorch.Tensor(torch.tensor([-0.0, 0.0]), MESH, [Shard(0)])
    assert whole(moved).to_torch().signbit().tolist() == [True, False], "what is only moved keeps every bit"
