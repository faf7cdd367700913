"""Which conversions are chosen: as the spec words it, one case a sentence."""

from typing import Any

import pytest

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.op.choice import Choice, choose
from dtorch.op.dims import Rule, concretize
from dtorch.op.signature import PlacementSignature, Role, placement_of

ITEMSIZE = 4


def lay(shape: tuple[int, ...], *roles: Role, mesh: tuple[int, ...] | None = None) -> Layout:
    mesh = mesh or {1: (4,), 2: (2, 2)}[len(roles)]
    return Layout.from_placements(mesh, shape, [placement_of(role) for role in roles])


def cheapest(
    signature: PlacementSignature,
    layouts: list[Layout | None],
    outputs: list[tuple[int, ...]],
    held: dict[int, list[Layout]] | None = None,
    pinned: frozenset[int] = frozenset(),
) -> Choice | None:
    def cost(i: int, target: Layout) -> int:
        have = layouts[i]
        assert have is not None
        return min(redistribute.cost(h, target, ITEMSIZE) for h in (have, *(held or {}).get(i, ())))

    def owed(_: int, layout: Layout) -> int:
        return redistribute.cost(layout, layout.without_partial(), ITEMSIZE)

    return choose(signature, layouts, outputs, cost, owed, pinned)


def roles(layout: Layout | None) -> Any:
    return None if layout is None else tuple(layout.role(axis) for axis in range(len(layout.mesh_shape)))


def chosen(rule: Rule, *layouts: Layout | None, **options: Any) -> tuple[list[Any], list[Any]]:
    """Roles of the inputs chosen, and of the outputs."""
    outputs = [tuple(rule.sizes[name] for name in names) for names in rule.outputs]
    choice = cheapest(rule.signature(), list(layouts), outputs, **options)
    assert choice is not None
    return [roles(x) for x in choice.inputs], [roles(y) for y in choice.outputs]


def mm(m: int = 8, k: int = 12, n: int = 16) -> Rule:
    return concretize("x[m k], w[k n] -> y[m n]", [(m, k), (k, n)], ("x", "w"))


def add(*shape: int) -> Rule:
    return concretize("x[...], w[...] -> y[...]", [shape, shape], ("x w",))


def relu(*shape: int) -> Rule:
    return concretize("x[...] -> y[...]", [shape])


# -- an axis whose roles fit a rule is left alone


@pytest.mark.parametrize(
    ("x", "w", "y"),
    [("R", "R", "R"), (0, "R", 0), ("R", 1, 1), (1, 0, "P")],
)
def test_what_fits_is_left_alone(x: Role, w: Role, y: Role) -> None:
    assert chosen(mm(), lay((8, 12), x), lay((12, 16), w)) == ([(x,), (w,)], [(y,)])


def test_what_fits_is_left_alone_on_each_axis() -> None:
    found = chosen(mm(), lay((8, 12), 0, "R"), lay((12, 16), "R", 1))
    assert found == ([(0, "R"), ("R", 1)], [(0, 1)])


def test_all_whole_stays_whole() -> None:
    """With several rules that cost nothing, nothing is cut."""
    assert chosen(mm(), lay((8, 12), "R", "R"), lay((12, 16), "R", "R")) == (
        [("R", "R"), ("R", "R")],
        [("R", "R")],
    )


# -- roles that some operand holds


def test_a_whole_operand_is_cut_for_nothing() -> None:
    """S(k) x R: w is cut to fit, which sends nothing; or x is gathered."""
    inputs, outputs = chosen(mm(8, 12, 1), lay((8, 12), 1), lay((12, 1), "R"))
    assert (inputs, outputs) == ([(1,), (0,)], [("P",)])


def test_what_pending_outputs_owe_counts() -> None:
    """S(k) x R with a large result: gathering x is cheaper than reducing y."""
    inputs, outputs = chosen(mm(4, 4, 1000), lay((4, 4), 1), lay((4, 1000), "R"))
    assert inputs[0] == ("R",)
    assert outputs == [("R",)]


def test_the_operand_that_is_cheaper_moves() -> None:
    small, large = lay((8, 100), 1), lay((8, 100), 0)
    assert chosen(add(8, 100), small, large)[0] in ([(0,), (0,)], [(1,), (1,)])
    # One operand already held as the other has it: that one moves.
    held = {1: [lay((8, 100), 1)]}
    assert chosen(add(8, 100), small, large, held=held)[0] == [(1,), (1,)]


def test_it_moves_to_another_dim_only_where_every_cut_must_go() -> None:
    rule = concretize("x[m k!] -> y[m k]", [(8, 12)])
    assert chosen(rule, lay((8, 12), 1)) == ([(0,)], [(0,)])
    assert chosen(rule, lay((8, 12), 0)) == ([(0,)], [(0,)])
    # Nothing left to cut.
    assert chosen(concretize("x[m! k!] -> y[m k]", [(8, 12)]), lay((8, 12), 1)) == ([("R",)], [("R",)])
    # The dim may be cut: no move.
    assert chosen(relu(8, 12), lay((8, 12), 1)) == ([(1,)], [(1,)])


# -- pending sums


def test_one_operand_keeps_a_pending_sum() -> None:
    rule = concretize("x[m n] -> y[n m]", [(8, 12)], ("x",))
    assert chosen(rule, lay((8, 12), "P")) == ([("P",)], [("P",)])


def test_a_pending_sum_that_does_not_fit_is_reduced() -> None:
    assert chosen(relu(8, 12), lay((8, 12), "P")) == ([("R",)], [("R",)])
    # To a shard, where another input is cut there.
    rule = concretize("x[...], w[...] -> y[...]", [(8, 12), (8, 12)])
    assert chosen(rule, lay((8, 12), "P"), lay((8, 12), 0)) == ([(0,), (0,)], [(0,)])


def test_several_operands_are_priced_and_ties_reduce_now() -> None:
    # P + P: kept, one reduction instead of two.
    assert chosen(add(8, 12), lay((8, 12), "P"), lay((8, 12), "P")) == ([("P",), ("P",)], [("P",)])
    # P @ R with a result as large as x: reducing now costs the same.
    assert chosen(mm(8, 12, 12), lay((8, 12), "P"), lay((12, 12), "R")) == ([("R",), ("R",)], [("R",)])
    # A smaller result is cheaper to reduce, a larger one dearer.
    assert chosen(mm(8, 12, 3), lay((8, 12), "P"), lay((12, 3), "R")) == ([("P",), ("R",)], [("P",)])
    assert chosen(mm(8, 12, 99), lay((8, 12), "P"), lay((12, 99), "R")) == ([("R",), ("R",)], [("R",)])


def test_a_whole_addend_joins_a_pending_sum_for_nothing() -> None:
    """R -> P is local: the first device keeps the value."""
    rule = concretize("x[m k], w[k n], b[n] -> y[m n]", [(8, 12), (12, 16), (16,)], ("x b", "w b"))
    found = chosen(rule, lay((8, 12), 1), lay((12, 16), 0), lay((16,), "R"))
    assert found == ([(1,), (0,), ("P",)], [("P",)])


# -- exact cuts, pins, absence


def test_a_shared_dim_is_cut_alike() -> None:
    """One operand is cut as a view left it, the other as torch.chunk would: one of them moves."""
    odd = Layout.of((4,), [((4, (0,)), (3, ()))])
    plain = lay((12,), 0)
    assert odd.shape == plain.shape
    inputs, outputs = (cheapest(add(12).signature(), [odd, plain], [(12,)]) or Choice((), ()))[:2]
    assert inputs[0] is inputs[1] is outputs[0]
    uneven = Layout.of((2,), [((3, (0,)), (5, ()))])
    chunk = Layout.from_placements((2,), (15,), [placement_of(0)])
    assert uneven is not chunk
    choice = cheapest(add(15).signature(), [uneven, chunk], [(15,)])
    assert choice is not None
    assert choice.inputs[0] is choice.inputs[1] is choice.outputs[0]
    assert choice.inputs[0] in (uneven, chunk)
    assert choice.price > 0


def test_a_cut_that_another_axis_cannot_refine_gives_way() -> None:
    rows = Layout.from_placements((2, 2), (7, 12), [placement_of(0), placement_of("R")])
    uneven = rows.view((84,))
    assert uneven is not None
    assert uneven.add_shard(1, 0) is None
    even = lay((84,), "R", 0)
    choice = cheapest(add(84).signature(), [uneven, even], [(84,)])
    assert choice is not None
    assert choice.inputs[0] is choice.inputs[1] is even.add_shard(0, 0)


def test_a_pinned_input_keeps_its_layout() -> None:
    pinned = frozenset((0,))
    assert chosen(add(8, 12), lay((8, 12), 0), lay((8, 12), 1), pinned=pinned)[0] == [(0,), (0,)]
    assert chosen(add(8, 12), lay((8, 12), "R"), lay((8, 12), 1), pinned=pinned)[0] == [("R",), ("R",)]
    whole = concretize("x[m! k!] -> y[m k]", [(8, 12)]).signature()
    assert cheapest(whole, [lay((8, 12), 0)], [(8, 12)], pinned=pinned) is None


def test_an_absent_input_stays_absent() -> None:
    rule = concretize("x[m k], w[n k], b[n]? -> y[m n]", [(8, 12), (16, 12), None], ("x b", "w b"))
    assert chosen(rule, lay((8, 12), 1), lay((16, 12), 1), None) == ([(1,), (1,), None], [("P",)])


def test_axes_of_size_one_do_not_count() -> None:
    mesh = (1, 4)
    x, w = lay((8, 12), "R", 0, mesh=mesh), lay((12, 16), "R", "R", mesh=mesh)
    assert chosen(mm(), x, w) == ([("R", 0), ("R", "R")], [("R", 0)])


def test_the_price_is_what_the_conversions_send() -> None:
    x, w = lay((8, 12), 0), lay((8, 12), 1)
    choice = cheapest(add(8, 12).signature(), [x, w], [(8, 12)])
    assert choice is not None
    sent = [
        redistribute.cost(a, b, ITEMSIZE) for a, b in zip((x, w), choice.inputs, strict=True) if b is not None
    ]
    assert choice.price == sum(sent) == 8 * 12 * ITEMSIZE * 3 // 4
