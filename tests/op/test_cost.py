"""The price of one operator: its channels, how it prints, and how prices add up."""

import pickle

import pytest
import torch

from dtorch.errors import OperatorError
from dtorch.op.cost import OperatorCost


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (OperatorCost.compute(123456), "OperatorCost[flops=123456]"),
        (OperatorCost.memory(9), "OperatorCost[bandwidthBytes=9]"),
        (OperatorCost.compute_and_memory(7, 9), "OperatorCost[flops=7, bandwidthBytes=9]"),
        (OperatorCost(), "OperatorCost[none]"),
        (OperatorCost.compute(0), "OperatorCost[flops=0]"),
        (OperatorCost.memory(0), "OperatorCost[bandwidthBytes=0]"),
        (OperatorCost(sent_bytes=5), "OperatorCost[none]"),
        (OperatorCost.unknown(), "OperatorCost[unknown]"),
        (OperatorCost.unknown() + OperatorCost.compute(3), "OperatorCost[flops=3, unknown]"),
    ],
)
def test_str(cost, text):
    assert str(cost) == f"{cost}" == text


@pytest.mark.parametrize(
    ("cost", "compute", "memory"),
    [
        (OperatorCost.compute(0), True, False),
        (OperatorCost.memory(0), False, True),
        (OperatorCost.compute_and_memory(0, 0), True, True),
        (OperatorCost(), False, False),
        (OperatorCost(traffic_bytes=4, sent_bytes=4), False, False),
        (OperatorCost.unknown(), False, False),
    ],
)
def test_bounds(cost, compute, memory):
    assert cost.is_compute_bound() is compute
    assert cost.is_memory_bound() is memory
    assert cost.has_cost() is (compute or memory)


def test_channels():
    cost = OperatorCost.compute_and_memory(7, 9)
    assert (cost.flops, cost.bandwidth_bytes) == (7, 9)
    assert (OperatorCost.compute(7).bandwidth_bytes, OperatorCost.memory(9).flops) == (None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_from_operands_weighs_dtypes(dtype):
    x = torch.zeros(3, 5, dtype=dtype)
    cost = OperatorCost.from_operands([x, x], [x])
    assert cost == OperatorCost.memory(3 * 15 * dtype.itemsize)


@pytest.mark.parametrize(
    ("inputs", "outputs", "total"),
    [
        ([torch.zeros(4), None, torch.zeros(2)], [torch.zeros(3)], 36),
        ([torch.zeros(4)], [None], 16),
        ([torch.zeros(0)], [torch.zeros(())], 4),
        ([], [torch.zeros(3)], 12),
        ([None], [], 0),
        ((x for x in [torch.zeros(1)]), iter([torch.zeros(2)]), 12),
    ],
)
def test_from_operands(inputs, outputs, total):
    cost = OperatorCost.from_operands(inputs, outputs)
    assert cost.bandwidth_bytes == cost.traffic_bytes == total
    assert not cost.is_compute_bound()


@pytest.mark.parametrize(
    ("cost", "traffic"),
    [
        (OperatorCost(), 0),
        (OperatorCost.memory(9), 9),
        (OperatorCost.compute_and_memory(7, 9), 9),
        (OperatorCost.memory(9, traffic_bytes=0), 0),
        (OperatorCost.compute_and_memory(7, 9, traffic_bytes=3), 3),
        (OperatorCost.compute(7, traffic_bytes=3), 3),
        (OperatorCost.from_operands([torch.zeros(2)], [], traffic_bytes=0), 0),
        (OperatorCost.unknown(traffic_bytes=3), 3),
        # FLOPs alone do not tell the bytes
        (OperatorCost.compute(7), None),
        (OperatorCost.unknown(), None),
    ],
)
def test_traffic(cost, traffic):
    assert cost.traffic_bytes == traffic


def test_unknown_is_not_free():
    assert OperatorCost().known
    assert not OperatorCost.unknown().known
    assert OperatorCost.unknown(traffic_bytes=0) != OperatorCost()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"flops": -1}, "flops must be an int of at least 0, got -1"),
        ({"flops": 2.0}, "flops must be an int of at least 0, got 2.0"),
        ({"bandwidth_bytes": True}, "bandwidth_bytes must be an int of at least 0, got True"),
        ({"traffic_bytes": -4}, "traffic_bytes must be an int of at least 0, got -4"),
        ({"sent_bytes": None}, "sent_bytes must be an int of at least 0, got None"),
        ({"sent_bytes": 8, "sent_bytes_max": -1}, "sent_bytes_max must be an int of at least 0, got -1"),
        (
            {"sent_bytes": 8, "sent_bytes_max": 9},
            r"one device receives 9 bytes \(sent_bytes_max\) and all together 8 \(sent_bytes\)",
        ),
    ],
)
def test_bad_numbers(fields, text):
    with pytest.raises(OperatorError, match=text):
        OperatorCost(**fields)


@pytest.mark.parametrize(
    ("a", "b", "total"),
    [
        (OperatorCost.compute(2, traffic_bytes=1), OperatorCost.compute(3, traffic_bytes=4), (5, None, 5)),
        (OperatorCost.memory(2), OperatorCost.memory(3), (None, 5, 5)),
        (OperatorCost.compute(2, traffic_bytes=10), OperatorCost.memory(3), (2, 3, 13)),
        (OperatorCost.compute_and_memory(1, 2), OperatorCost.compute_and_memory(10, 20), (11, 22, 22)),
        (OperatorCost.compute(2), OperatorCost.memory(3), (2, 3, None)),
        (OperatorCost(), OperatorCost.memory(3), (None, 3, 3)),
        (OperatorCost(), OperatorCost(), (None, None, 0)),
    ],
)
def test_add(a, b, total):
    for cost in (a + b, b + a):
        assert (cost.flops, cost.bandwidth_bytes, cost.traffic_bytes) == total
        assert cost.known


def test_add_sent_bytes():
    a, b = OperatorCost(sent_bytes=8, sent_bytes_max=4), OperatorCost(sent_bytes=3, sent_bytes_max=3)
    assert ((a + b).sent_bytes, (a + b).sent_bytes_max) == (11, 7)


@pytest.mark.parametrize("other", [OperatorCost(), OperatorCost.compute(1), OperatorCost.unknown()])
def test_one_unknown_makes_the_sum_unknown(other):
    assert not (OperatorCost.unknown() + other).known
    assert not (other + OperatorCost.unknown()).known


def test_sum():
    costs = [OperatorCost.memory(2), OperatorCost(), OperatorCost.compute(5, traffic_bytes=1)]
    assert sum(costs, OperatorCost()) == OperatorCost(flops=5, bandwidth_bytes=2, traffic_bytes=3)


def test_adds_to_costs_only():
    with pytest.raises(TypeError):
        OperatorCost() + 1


def test_value():
    cost = OperatorCost.compute_and_memory(7, 9)
    assert cost == pickle.loads(pickle.dumps(cost))
    assert len({cost, OperatorCost.compute_and_memory(7, 9), OperatorCost.compute(7)}) == 2
    with pytest.raises(AttributeError):
        cost.flops = 8
