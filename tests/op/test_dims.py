"""The dims notation: what a line means for given ranks, which rules follow, how mistakes are answered."""

from typing import Any

import pytest

from dtorch.errors import PlacementError, ShapeError
from dtorch.op.dims import UNCUT, Rule, broadcast_names, concretize, evaluate, local_sizes, parse


def table(line: str, shapes: list[Any], linear: tuple[str, ...] = ()) -> set[str]:
    return set(str(concretize(line, shapes, linear).signature()).splitlines())


# -- rules that follow from a line


@pytest.mark.parametrize(
    ("line", "shapes", "linear", "rules"),
    [
        (
            "x[m k], w[k n] -> y[m n]",
            [(4, 5), (5, 7)],
            ("x", "w"),
            {"R, R -> R", "S(0), R -> S(0)", "S(1), S(0) -> P", "R, S(1) -> S(1)", "P, R -> P", "R, P -> P"},
        ),
        ("x[m k] -> y[k m]", [(4, 5)], (), {"R -> R", "S(0) -> S(1)", "S(1) -> S(0)"}),
        ("x[m k] -> y[m]", [(4, 5)], ("x",), {"R -> R", "S(0) -> S(0)", "S(1) -> P", "P -> P"}),
        ("x[m k!] -> y[m k]", [(4, 5)], (), {"R -> R", "S(0) -> S(0)"}),
        ("x[m k~] -> y[m k]", [(4, 5)], (), {"R -> R", "S(0) -> S(0)", "S(1) -> S(1)"}),
        # Statistics are combined by the kernel: what has lost the dim is whole, not pending.
        ("x[m k~] -> y[m]", [(4, 5)], (), {"R -> R", "S(0) -> S(0)", "S(1) -> R"}),
        ("x[m k~] -> y[m k], s[m]", [(4, 5)], (), {"R -> R, R", "S(0) -> S(0), S(0)", "S(1) -> S(1), R"}),
        (
            "x[b m k], w[k n], b[n] -> y[b m n]",
            [(2, 4, 5), (5, 7), (7,)],
            ("x b", "w b"),
            {
                "R, R, R -> R",
                "S(0), R, R -> S(0)",
                "S(1), R, R -> S(1)",
                "S(2), S(0), P -> P",
                "R, S(1), S(0) -> S(2)",
                "P, R, P -> P",
                "R, P, P -> P",
            },
        ),
        # An input that the result is not linear in blocks pending sums.
        ("x[n], i[n] -> y[n]", [(5,), (5,)], ("x",), {"R, R -> R", "S(0), S(0) -> S(0)", "P, R -> P"}),
        # A dim held twice by one tensor cannot be cut: each device would have a square of it.
        ("x[n n] -> y[n]", [(5, 5)], (), {"R -> R"}),
    ],
)
def test_rules(line: str, shapes: list[Any], linear: tuple[str, ...], rules: set[str]) -> None:
    assert table(line, shapes, linear) == rules


def test_leading_dims_are_right_aligned_and_broadcast() -> None:
    rules = table("x[... m k], w[... k n] -> y[... m n]", [(3, 2, 4, 5), (1, 5, 7)], ("x", "w"))
    assert rules == {
        "R, R -> R",
        "S(0), R -> S(0)",
        "S(1), R -> S(1)",
        "S(2), R -> S(2)",
        "S(3), S(1) -> P",
        "R, S(2) -> S(3)",
        "P, R -> P",
        "R, P -> P",
    }
    assert "S(1), S(0) -> S(1)" in table("x[... m], w[... m] -> y[... m]", [(3, 2, 4), (2, 4)])


def test_an_absent_input_has_no_role() -> None:
    line = "x[m k], w[n k], b[n]? -> y[m n]"
    assert table(line, [(4, 5), (7, 5), None], ("x b", "w b")) == {
        "R, R, - -> R",
        "S(0), R, - -> S(0)",
        "S(1), S(1), - -> P",
        "R, S(0), - -> S(1)",
        "P, R, - -> P",
        "R, P, - -> P",
    }
    assert table(line, [(4, 5), (7, 5)], ("x b", "w b")) == table(
        line, [(4, 5), (7, 5), None], ("x b", "w b")
    )


def test_broadcast_names() -> None:
    names, output = broadcast_names([(4, 1), None, (5,), ()])
    assert names == ((".2", UNCUT), None, (".1",), ())
    assert output == (".2", ".1")


# -- sizes and FLOPs


@pytest.mark.parametrize(
    ("formula", "value"),
    [("2 m k n", 280), ("m n + n", 35), ("7", 7), ("2 ... m", 48), ("m  k", 20)],
)
def test_flops(formula: str, value: int) -> None:
    assert evaluate(formula, {"m": 4, "k": 5, "n": 7, ".2": 2, ".1": 3}) == value


def test_flops_name_known_dims() -> None:
    with pytest.raises(ShapeError, match=r"the formula `2 m q` names dim q, known are \['k', 'm'\]"):
        evaluate("2 m q", {"m": 4, "k": 5})


def test_flops_of_a_rule() -> None:
    rule = concretize("x[... m k], w[k n] -> y[... m n]", [(2, 3, 4, 5), (5, 7)], flops="2 ... m k n")
    assert rule.evaluate_flops() == 2 * 6 * 4 * 5 * 7
    assert rule.evaluate_flops({**rule.sizes, "m": 2}) == 6 * 4 * 5 * 7
    assert concretize("x[m] -> y[m]", [(4,)]).evaluate_flops() is None


def test_local_sizes() -> None:
    rule = concretize("x[m k], w[k n] -> y[m n]", [(4, 5), (5, 7)])
    assert local_sizes(rule, [(2, 5), (5, 7)]) == {"m": 2, "k": 5, "n": 7}
    assert local_sizes(rule, [None, (3, 7)]) == {"m": 4, "k": 3, "n": 7}


# -- reading


def test_a_line_is_read_once() -> None:
    line = parse("x[... m k!], w[k n~]? -> y[... m n]")
    assert [t.name for t in line.inputs] == ["x", "w"]
    assert [t.optional for t in line.inputs] == [False, True]
    assert (line.whole, line.stats) == (frozenset("k"), frozenset("n"))
    assert parse("x[... m k!], w[k n~]? -> y[... m n]") is line


def test_no_outputs_and_no_dims() -> None:
    assert parse("x[] -> ").outputs == ()
    assert concretize("x[] -> y[]", [()]).inputs == ((),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x[m k]", "a dims line needs an arrow, such as `x\\[m k\\] -> y\\[m\\]`: `x\\[m k\\]`"),
        ("x[m k -> y[m]", "cannot read `x\\[m k` in the dims line `x\\[m k -> y\\[m\\]`"),
        ("x[m] y[m] -> z[m]", "cannot read `x\\[m\\] y\\[m\\]` in the dims line"),
    ],
)
def test_unreadable(line: str, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        parse(line)


@pytest.mark.parametrize(
    ("line", "shapes", "error", "message"),
    [
        ("x[m k], w[k n] -> y[m n]", [(4, 5), (6, 7)], ShapeError, "dim k of w is 6, elsewhere it is 5"),
        ("x[m k] -> y[m k]", [(4,)], ShapeError, r"x has 1 dims, `x\[m k\] -> y\[m k\]` says \[m k\]"),
        ("x[m k] -> y[m k]", [(4, 5, 6)], ShapeError, r"x has 3 dims, `x\[m k\] -> y\[m k\]` says \[m k\]"),
        (
            "x[... m], w[... m] -> y[... m]",
            [(2, 4), (3, 4)],
            ShapeError,
            "leading dim -1 of w is 3, elsewhere 2",
        ),
        (
            "x[m], w[m] -> y[m]",
            [(4,), None],
            PlacementError,
            r"input w of `x\[m\], w\[m\] -> y\[m\]` is absent",
        ),
    ],
)
def test_sizes_that_do_not_fit(line: str, shapes: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        concretize(line, shapes)


def test_rules_without_a_line() -> None:
    """Operators whose dims depend on parameters build a Rule themselves."""
    rule = Rule((("a", UNCUT), None), (("a",),), (frozenset((0,)),), sizes={"a": 4})
    assert str(rule.signature()) == "R, - -> R\nS(0), - -> S(0)\nP, - -> P"
