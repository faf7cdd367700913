"""The price of a device: all devices together do the whole, each replica once more.

Which part of the work two devices share is read off the layouts: they do the same where they differ only on
axes that cut no operand. So the price of one device of each kind adds up to the whole.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dtorch import DeviceMesh, Graph, OperatorCost
from dtorch.layout import Layout, representative_positions
from dtorch.op.operator import Operator
from dtorch.op.priced import touched
from tests.dist import flat, place, ways
from tests.op_life import MESH, X, made, on, variant
from tests.support import cases

MESHES = ((2,), (3,), (2, 2), (2, 3))
Case = Callable[..., Any]


def sdpa(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


# name -> the function, shapes of its tensors over named sizes.
PROGRAMS: dict[str, tuple[Case, tuple[str, ...]]] = {
    "mm": (torch.mm, ("m k", "k n")),
    "bmm": (torch.bmm, ("b m k", "b k n")),
    "matmul of many": (torch.matmul, ("b m k", "k n")),
    "mv": (torch.mv, ("m k", "k")),
    "dot": (torch.dot, ("k", "k")),
    "addmm": (torch.addmm, ("n", "m k", "k n")),
    "addmv": (torch.addmv, ("m", "m k", "k")),
    "baddbmm": (torch.baddbmm, ("b m n", "b m k", "b k n")),
    "addbmm": (torch.addbmm, ("m n", "b m k", "b k n")),
    "addr": (torch.addr, ("m n", "m", "n")),
    "linear": (F.linear, ("b m k", "n k", "n")),
    "einsum": (lambda *x: torch.einsum("bmk,bkn,n->m", *x), ("b m k", "b k n", "n")),
    "bilinear": (F.bilinear, ("b m", "b k", "n m k")),
    "conv": (lambda *x: F.conv2d(*x, padding=1), ("b k m 4", "n k 3 3", "n")),
    "conv by groups": (lambda *x: F.conv1d(*x, padding=1, groups=4), ("b 8 m", "12 2 3")),
    "transposed conv": (F.conv_transpose1d, ("b k m", "k n 2", "n")),
    "attention": (sdpa, ("b 8 m k", "b 4 n k", "b 4 n k")),
    "fft": (lambda x: torch.fft.fft(x).abs(), ("b m k",)),
    "solve": (torch.linalg.solve, ("b 3 3", "b 3 k")),
    "cdist": (torch.cdist, ("m k", "n k")),
}


@st.composite
def placed(draw: Any, name: str) -> tuple[Case, list[Any]]:
    """A program and its tensors, each placed somehow; sizes are uneven, 1, or leave devices empty."""
    fn, shapes = PROGRAMS[name]
    sizes = {size: draw(st.integers(1, 7), label=size) for size in "bmnk"}
    mesh = draw(st.sampled_from(MESHES), label="mesh")
    tensors = []
    for shape in shapes:
        x = torch.randn([sizes.get(s) or int(s) for s in shape.split()], requires_grad=True)
        places = draw(st.sampled_from(ways(x.ndim, mesh)), label=shape)
        tensors.append(place(x, mesh, places))
    return fn, tensors


def distinct(operator: Operator) -> list[tuple[int, ...]]:
    """One device of each kind: those that hold another piece of some operand."""
    operands = [o for o in (*operator.inputs, *operator.outputs) if o is not None]
    axes = tuple(sorted({axis for o in operands for axis in o.layout.cut_axes}))
    mesh = operator.mesh
    return [mesh.coords[i] for i in sorted(set(representative_positions(mesh.shape, axes)))]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_devices_together_do_the_whole(name: str, backward: bool) -> None:
    @settings(max_examples=cases(8), deadline=None, derandomize=True, database=None)
    @given(placed(name))
    def check(program: tuple[Case, list[Any]]) -> None:
        fn, tensors = program
        with torch.set_grad_enabled(backward), Graph.default_graph().record() as graph:
            (y,) = flat(fn(*tensors))
            if backward:
                y.sum().backward()
        for node in graph:
            check_operator(node.operator)
        alone = [place(x.to_torch(), (1,), ["R"]).requires_grad_() for x in tensors]
        with torch.set_grad_enabled(backward), Graph.default_graph().record() as on_one:
            (y,) = flat(fn(*alone))
            if backward:
                y.sum().backward()
        assert graph.cost().flops == on_one.cost().flops

    check()


def replication(layout: Layout) -> int:
    """How many devices hold the same part of a tensor."""
    return prod(n for axis, n in enumerate(layout.mesh_shape) if axis not in layout.cut_axes)


REPEATED = {
    "aten._trilinear": "where the first two sum over a cut, every device multiplies its sum by the third",
    "aten._linalg_solve_ex": "where right sides are cut, every device factorises the matrix itself",
}
"""Operators whose devices may do more together than one does alone, and what."""


def check_operator(operator: Operator) -> None:
    whole, mesh = operator.price(), operator.priced_mesh
    local = {coord: operator.local_price(coord) for coord in mesh.coords}
    assert len({cost.flops is None for cost in (whole, *local.values())}) == 1, operator.describe()
    done = sum(local[coord].flops or 0 for coord in distinct(operator) if coord in local)
    if operator.name in REPEATED:
        assert done >= (whole.flops or 0)
    else:
        assert done == (whole.flops or 0), operator.describe()
    if whole.bandwidth_bytes is not None and mesh is operator.mesh:
        # Every operand once for each axis that does not cut it.
        held = [o for o in (*operator.inputs, *operator.results) if o is not None]
        copies = sum(o.nbytes * replication(o.layout) for o in held)
        assert sum(cost.bandwidth_bytes or 0 for cost in local.values()) == copies, operator.describe()
        assert whole.bandwidth_bytes == sum(o.nbytes for o in held)
    assert sum(cost.sent_bytes for cost in local.values()) == whole.sent_bytes
    largest = operator.price_max()
    for channel in ("flops", "bandwidth_bytes", "traffic_bytes", "sent_bytes"):
        found = [n for cost in local.values() if (n := getattr(cost, channel)) is not None]
        assert getattr(largest, channel) == max(found, default=None), channel
    assert largest.sent_bytes == whole.sent_bytes_max


@pytest.mark.parametrize(
    ("mesh", "places"), [((4,), (("S0",), ("R",))), ((2, 2), (("S0", "S1"), ("R", "S0")))]
)
def test_bytes_of_devices_are_those_of_what_they_hold(mesh: Any, places: Any) -> None:
    x, w = (place(torch.randn(shape), mesh, p) for shape, p in zip([(7, 6), (6, 5)], places, strict=True))
    with Graph.default_graph().record() as graph:
        torch.mm(x, w)
    operator = graph.operators[-1]
    for coord in operator.mesh.coords:
        held = [o.spec.local_nbytes(coord) for o in (*operator.inputs, *operator.outputs)]
        assert operator.local_price(coord).traffic_bytes == sum(held)


def test_a_device_with_another_size_has_another_price() -> None:
    x, w = place(torch.randn(7, 6), (3,), ["S0"]), place(torch.randn(6, 5), (3,), ["R"])
    with Graph.default_graph().record() as graph:
        torch.mm(x, w)
    (operator,) = graph.operators
    assert [operator.local_price((i,)).flops for i in range(3)] == [180, 180, 60]
    assert (operator.price_max().flops, operator.price().flops) == (180, 420)


def test_a_cost_of_the_users_own_is_that_of_each_device() -> None:
    def flops(self: Operator) -> OperatorCost:
        return OperatorCost.compute(10 * (self.shapes[0] or ())[0])

    cls, param = variant("PricedClip", get_operator_cost=flops)
    operator = made(on(MESH, "S0", of=X[:3]), cls=cls, param=param)
    operator.infer()
    assert [operator.local_price((i,)).flops for i in range(2)] == [20, 10]
    assert operator.price().flops == 30


def test_reading_a_value_is_priced_on_the_device_that_reads() -> None:
    with Graph.default_graph().record() as graph:
        place(torch.randn(4, 3), (2,), ["S0"]).to_torch()
    (operator,) = graph.operators
    assert operator.priced_mesh.size == 1
    assert operator.local_price(()).sent_bytes == operator.price().sent_bytes == 24


def test_moving_to_another_mesh_is_priced_on_the_devices_that_receive() -> None:
    x = place(torch.randn(4, 3), (2,), ["S0"])
    with Graph.default_graph().record() as graph:
        x.redistribute(DeviceMesh("cpu", [1, 2, 3, 4]), ["S0"])
    (operator,) = graph.operators
    # Device 1 has rows 2 and 3 and is to have row 0: it holds nothing of what it is given.
    assert [operator.local_price((i,)).sent_bytes for i in range(4)] == [12, 12, 12, 12]
    assert [operator.local_price((i,)).bandwidth_bytes for i in range(4)] == [24 + 12, 12, 12, 12]


def test_an_operator_without_operands_has_one_price() -> None:
    with Graph.default_graph().record() as graph:
        Graph.default_graph().sync()
    (operator,) = graph.operators
    assert operator.price() == operator.local_price(()) == operator.price_max() == OperatorCost()
    assert operator.price().state == "free"


@pytest.mark.parametrize(
    ("shape", "stride", "places"),
    [
        ((3, 4), (4, 1), 12),
        ((3, 4), (0, 1), 4),
        ((3, 4), (0, 0), 1),
        ((3, 0), (0, 1), 0),
        ((), (), 1),
        ((3, 4), (8, 2), 12),
        # Windows of 4, each one further: 6 places under 12 elements.
        ((3, 4), (1, 1), 6),
    ],
)
def test_memory_that_elements_share_is_touched_once(shape: Any, stride: Any, places: int) -> None:
    base = torch.arange(64.0).as_strided(shape, stride)
    assert touched(made(on(MESH)).inputs[0]) == X.numel() * 4
    x = on(DeviceMesh("cpu", [0]), of=torch.zeros(shape))._operand
    spec = x.spec
    x.spec = type(spec)(shape, base.stride(), spec.dtype, spec.layout, spec.mesh)
    assert touched(x) == places * 4


def test_an_operator_that_learns_its_outputs_from_a_run_is_priced_with_them() -> None:
    x = on(MESH, "S0", of=torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    with Graph.default_graph().record() as graph:
        x.nonzero()
    price = graph.operators[-1].price()
    assert price.known
    assert price.traffic_bytes == price.bandwidth_bytes == 4 * 4 + 3 * 2 * 8
