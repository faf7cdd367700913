"""What collectives send, against the formulas of a ring of n devices.

all-reduce                  2 (n - 1) / n of the tensor, received by each device
all-gather, reduce-scatter  (n - 1) / n of it
all-to-all                  (n - 1) / n of the local shard
"""

from fractions import Fraction

import pytest
import torch

import dtorch
from dtorch import Graph
from tests.dist import place

ROWS, COLUMNS, ITEM = 24, 48, 4
NBYTES = ROWS * COLUMNS * ITEM

RINGS = {
    "all_reduce": ("P", "R", lambda n: 2 * Fraction(n - 1, n)),
    "all_gather": ("S0", "R", lambda n: Fraction(n - 1, n)),
    "reduce_scatter": ("P", "S0", lambda n: Fraction(n - 1, n)),
    "all_to_all": ("S0", "S1", lambda n: Fraction(n - 1, n) / n),
    "local": ("R", "S0", lambda n: Fraction(0)),
}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", RINGS)
def test_a_ring(kind: str, n: int) -> None:
    source, target, share = RINGS[kind]
    x = place(torch.randn(ROWS, COLUMNS), (n,), [source])
    with Graph.default_graph().record() as graph:
        x.redistribute(placements=dtorch.tensor_layout.layout_of([target], x.device_mesh, x.shape))
    (operator,) = graph.operators
    wanted = share(n) * NBYTES
    assert operator.kind == kind
    assert [operator.local_price((i,)).sent_bytes for i in range(n)] == [wanted] * n
    assert operator.price().sent_bytes_max == operator.price_max().sent_bytes == wanted
    assert operator.price().sent_bytes == n * wanted
    assert sum(sent.bytes for sent in graph.communications()) == n * wanted


@pytest.mark.parametrize(("dp", "tp"), [(2, 4), (4, 2)])
def test_a_ring_along_one_axis_of_two(dp: int, tp: int) -> None:
    """Every row of devices has a ring of its own, over what the other axis leaves it."""
    x = place(torch.randn(ROWS, COLUMNS), (dp, tp), ["S0", "P"])
    with Graph.default_graph().record() as graph:
        x.redistribute(placements=dtorch.tensor_layout.layout_of(["S0", "R"], x.device_mesh, x.shape))
    (operator,) = graph.operators
    each = 2 * Fraction(tp - 1, tp) * NBYTES / dp
    assert operator.price().sent_bytes_max == each
    assert operator.price().sent_bytes == dp * tp * each


def test_uneven_parts_add_up() -> None:
    x = place(torch.randn(7, 5), (3,), ["S0"])
    with Graph.default_graph().record() as graph:
        x.full_tensor()
    (operator,) = [op for op in graph.operators if op.type in ("Convert", "GetTensor")]
    local = [operator.local_price(coord).sent_bytes for coord in operator.priced_mesh.coords]
    # Rows 3, 3, 1: the first device lacks 4, where it alone reads.
    assert local[0] == 4 * 5 * ITEM
    assert sum(local) == operator.price().sent_bytes


def test_what_each_device_receives_by_kind() -> None:
    x, w = place(torch.randn(6, 9), (3,), ["S1"]), place(torch.randn(9, 4), (3,), ["S0"])
    with Graph.default_graph().record() as graph:
        (x @ w).relu()
        torch.softmax(x, dim=1)
    statistics = 2 * (3 - 1) * 2 * 6 * ITEM // 3
    reduced = 2 * Fraction(2, 3) * 6 * 4 * ITEM
    assert graph.received() == {i: {"all_reduce": reduced, "statistics": statistics} for i in range(3)}


def test_moving_to_another_mesh_is_received_there() -> None:
    x = place(torch.randn(4, 3), (2,), ["S0"])
    with Graph.default_graph().record() as graph:
        x.redistribute(dtorch.DeviceMesh("cpu", [1, 2]), [dtorch.Replicate()])
    # Device 1 holds the second half already.
    assert {device: sum(kinds.values()) for device, kinds in graph.received().items()} == {0: 0, 1: 24, 2: 48}


def test_statistics_are_shared_out() -> None:
    x = place(torch.randn(6, 9), (3,), ["S1"])
    with Graph.default_graph().record() as graph:
        torch.softmax(x, dim=1)
    (operator,) = [op for op in graph.operators if op.type == "Softmax"]
    # The largest value and the sum of every row, all-reduced.
    assert operator.price().sent_bytes == 2 * (3 - 1) * 2 * 6 * ITEM
    assert sum(operator.local_price((i,)).sent_bytes for i in range(3)) == operator.price().sent_bytes


@pytest.mark.parametrize(
    ("source", "target", "touched"),
    [
        ("R", "S0", 2 * NBYTES // 4),  # a piece is read and written
        ("S0", "R", NBYTES // 4 + NBYTES),
        ("S0", "S1", 2 * NBYTES // 4),
        ("P", "R", 2 * NBYTES),
        ("P", "S0", NBYTES + NBYTES // 4),  # a sum reads all addends
    ],
)
def test_memory_that_a_device_touches(source: str, target: str, touched: int) -> None:
    x = place(torch.randn(ROWS, COLUMNS), (4,), [source])
    with Graph.default_graph().record() as graph:
        x.redistribute(placements=dtorch.tensor_layout.layout_of([target], x.device_mesh, x.shape))
    (operator,) = graph.operators
    assert operator.local_price((1,)).traffic_bytes == touched
    assert operator.price().traffic_bytes == 2 * NBYTES
