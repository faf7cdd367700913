"""Prices: the ring formulas where parts are even, no detour that pays, and the names of the steps."""

import math
import random

import pytest

from dtorch.mesh import DeviceMesh
from dtorch.redistribute import cost, plan
from tests.redistribute.oracle import plain, random_factors, random_plain
from tests.support import sample

SEEDS = range(20_000)


@pytest.mark.parametrize("seed", sample(SEEDS, 300))
def test_no_detour_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    mesh_shape = rng.choice([(2, 2, 2, 2), (2, 3, 2, 2), (3, 2), (4,)])
    shape = rng.choice([(16,), (24, 6), (7, 5), (5, 4, 3), (36,)])
    make = rng.choice([random_plain, random_factors])
    a, b, c = (make(rng, mesh_shape, shape, partial=False).layout for _ in range(3))
    assert cost(a, c, 4) <= cost(a, b, 4) + cost(b, c, 4)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    ("before", "after", "kind", "share"),
    [
        ("P", "R", "all_reduce", 2),
        ("P", 0, "reduce_scatter", 1),
        (0, "R", "all_gather", 1),
        (0, 1, "all_to_all", None),
        ("R", 0, "local", 0),
        ("R", "P", "local", 0),
        (0, "P", "local", 0),
    ],
)
def test_even_parts_cost_what_rings_do(
    n: int, before: object, after: object, kind: str, share: int | None
) -> None:
    src, dst = (plain((n,), (12, 24), [role]) for role in (before, after))
    found = plan(src.layout, dst.layout, 4)
    nbytes = 4 * 12 * 24
    per_device = (n - 1) * nbytes // n**2 if share is None else share * (n - 1) * nbytes // n
    assert [(step.kind, step.axes) for step in found.steps] == [(kind, (0,))]
    assert (found.bytes_total, found.bytes_max) == (n * per_device, per_device)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5), (2, 3, 5)])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_an_all_reduce_is_twice_n_less_one_however_uneven(n: int, shape: tuple[int, ...]) -> None:
    src, dst = plain((n,), shape, "P"), plain((n,), shape, "R")
    assert cost(src.layout, dst.layout, 1) == 2 * (n - 1) * math.prod(shape)


def test_several_axes_are_reduced_in_one_go() -> None:
    found = plan(plain((2, 4), (5, 3), "PP").layout, plain((2, 4), (5, 3), "RR").layout, 2)
    assert [(step.kind, step.axes, step.bytes_total) for step in found.steps] == [
        ("all_reduce", (0, 1), 2 * 2 * 7 * 15)
    ]


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ("PR", "RR", [("all_reduce", (0,))]),
        ("PR", ["R", 0], [("local", (1,)), ("all_reduce", (0,))]),
        ("PR", [0, 1], [("local", (1,)), ("reduce_scatter", (0,))]),
        (["P", 0], "RR", [("reduce_scatter", (0,)), ("all_gather", (0, 1))]),
        (["P", 0], ["P", "R"], [("all_gather", (1,))]),
        (["P", 0], ["R", 0], [("all_reduce", (0,))]),
        ("PP", [0, "R"], [("reduce_scatter", (0, 1)), ("all_gather", (1,))]),
        ("PR", "RP", [("all_reduce", (0,)), ("local", (1,))]),
        ([1, "P"], [0, "R"], [("exchange", (0, 1)), ("all_gather", (1,))]),
        ([0, 0], [0, "R"], [("all_gather", (1,))]),
        ([0, 0], ["R", 0], [("exchange", (0,))]),
        ([0, 0], ["P", "R"], [("all_gather", (1,)), ("local", (0,))]),
        ([0, 1], [1, 0], [("all_to_all", (0, 1))]),
        (["R", 0], [1, 1], [("local", (0,)), ("all_to_all", (1,))]),
        ([0, "R"], ["R", 0], [("exchange", (0, 1))]),
        ([0, "R"], ["P", 0], [("local", (0, 1))]),
        ([0, "R"], [0, "R"], []),
    ],
)
def test_steps(before: list, after: list, steps: list[tuple[str, tuple[int, ...]]]) -> None:
    src, dst = plain((2, 2), (8, 12), before), plain((2, 2), (8, 12), after)
    assert [(step.kind, step.axes) for step in plan(src.layout, dst.layout, 4).steps] == steps


def test_steps_to_another_mesh() -> None:
    mesh, other = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 2])
    found = plan(plain((2,), (6,), [0]).layout, plain((2,), (6,), "R").layout, 4, mesh, other)
    assert [(step.kind, step.axes) for step in found.steps] == [("transfer", ())]
    assert (found.bytes_total, found.bytes_max) == (4 * (3 + 6), 4 * 6)
    same = plan(
        plain((2,), (6,), [0]).layout,
        plain((2,), (6,), "R").layout,
        4,
        mesh,
        DeviceMesh("cpu", [0, 1], ["x"]),
    )
    assert [(step.kind, step.axes) for step in same.steps] == [("all_gather", (0,))]


def test_a_sum_is_made_whole_where_it_is_before_it_is_spread() -> None:
    mesh, wider = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 1, 2, 3])
    found = plan(plain((2,), (8,), "P").layout, plain((4,), (8,), "R").layout, 1, mesh, wider)
    assert [(step.kind, step.axes, step.bytes_total, step.bytes_max) for step in found.steps] == [
        ("reduce_scatter", (0,), 8, 4),
        ("transfer", (), 4 + 4 + 8 + 8, 8),
    ]
    assert (found.bytes_total, found.bytes_max) == (32, 8)


def test_a_pending_sum_moves_addend_by_addend() -> None:
    pending = plain((2,), (8,), "P").layout
    for ids, nbytes in [([0, 1], 0), ([0, 5], 8), ([1, 0], 16), ([1, 2], 16)]:
        found = plan(pending, pending, 1, DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", ids))
        assert found.bytes_total == nbytes


def test_nothing_is_held_on_another_kind_of_device() -> None:
    layout = plain((2,), (6,), "R").layout
    assert (
        plan(layout, layout, 4, DeviceMesh("cpu", [0, 1]), DeviceMesh("cuda", [0, 1])).bytes_total == 4 * 12
    )


def test_a_plan_is_made_once() -> None:
    src, dst = plain((2,), (6,), "P").layout, plain((2,), (6,), "R").layout
    assert plan(src, dst, 4) is plan(src, dst, 4)
    assert plan(src, dst, 8).bytes_total == 2 * plan(src, dst, 4).bytes_total
