"""Placement signatures: the builder, what matches, how they print, which dims are cut together."""

from typing import Any

import pytest
import torch.distributed.tensor as dt

from dtorch.errors import PlacementError
from dtorch.op.signature import PlacementSignature, Row, placement_of, role_of, role_text
from dtorch.placement import Partial, Replicate, Shard

R, P = Replicate(), Partial()


def S(dim: int) -> Shard:
    return Shard(dim)


def linear() -> PlacementSignature:
    """x [m, k], w [n, k], bias [n]."""
    return (
        PlacementSignature.builder(3, 1)
        .add_input("S0")
        .add_input("R")
        .add_optional_input("R")
        .add_output("S0")
        .build()
        .add_input(S(1))
        .add_input(S(1))
        .add_optional_input(P)
        .add_output(P)
        .build()
        .add_input(R)
        .add_input("S(0)")
        .add_optional_input("S0")
        .add_output("S1")
        .build()
        .finish()
    )


def test_it_lists_all_rules() -> None:
    assert str(linear()) == (
        "R, R, R -> R\n"
        "S(0), R, R -> S(0)\nS(0), R, - -> S(0)\n"
        "S(1), S(1), P -> P\nS(1), S(1), - -> P\n"
        "R, S(0), S(0) -> S(1)\nR, S(0), - -> S(1)"
    )


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([[R], [R], [R]], ((R,),)),
        ([[R], [R], None], ((R,),)),
        ([[S(0)], [R], [R]], ((S(0),),)),
        ([[S(0)], [R], None], ((S(0),),)),
        ([[S(1)], [S(1)], [P]], ((P,),)),
        ([[S(1)], [S(1)], [R]], None),
        ([[S(1)], [R], None], None),
        ([[P], [R], [R]], None),
        # Mesh axis by mesh axis.
        ([[S(0), R], [R, S(0)], [R, S(0)]], ((S(0), S(1)),)),
        ([[S(0), S(1)], [R, S(1)], None], ((S(0), P),)),
        ([[S(0), S(0)], [R, R], [R, R]], ((S(0), S(0)),)),
        ([[S(0), R], [R, S(1)], None], None),
        ([["S0"], ["R"], ["R"]], ((S(0),),)),
        ([[dt.Shard(0)], [dt.Replicate()], [dt.Replicate()]], ((S(0),),)),
    ],
)
def test_match(inputs: Any, outputs: Any) -> None:
    assert linear().match(inputs) == outputs


def test_no_output() -> None:
    signature = PlacementSignature.builder(1, 0).add_input("S0").build().finish()
    assert signature.match([[S(0)]]) == ()
    assert str(signature) == "R -> \nS(0) -> "


def test_a_row_is_listed_once_and_the_first_one_counts() -> None:
    whole = Row(("R",), ("R",))
    signature = PlacementSignature(1, 1, [whole, whole, Row((0,), (0,)), Row((0,), ("P",))])
    assert len(signature.rows) == 3
    assert signature.find((0,)) == Row((0,), (0,))
    assert signature.find((1,)) is None


@pytest.mark.parametrize(
    ("n_inputs", "n_outputs", "message"),
    [
        (2, 1, "a rule of this signature has 2 inputs and 1 outputs, got 1 and 1"),
        (1, 2, "a rule of this signature has 1 inputs and 2 outputs, got 1 and 1"),
        (0, 1, "a rule of this signature has 0 inputs and 1 outputs, got 1 and 1"),
    ],
)
def test_a_rule_of_the_wrong_size_is_refused(n_inputs: int, n_outputs: int, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        PlacementSignature.builder(n_inputs, n_outputs).add_input("R").add_output("R").build()


@pytest.mark.parametrize("placement", ["Q", "S", "Sx", 3, None])
def test_what_is_no_placement_is_refused(placement: Any) -> None:
    with pytest.raises(PlacementError):
        PlacementSignature.builder(1, 1).add_input(placement)


@pytest.mark.parametrize(("placement", "role", "text"), [(R, "R", "R"), (P, "P", "P"), (S(2), 2, "S(2)")])
def test_roles(placement: Any, role: Any, text: str) -> None:
    assert role_of(placement) == role
    assert placement_of(role) == placement
    assert role_text(role) == text
    assert role_text(None) == "-"


def test_dims_of_one_row_are_cut_together() -> None:
    groups = linear().groups
    assert groups["in", 0, 0] == groups["out", 0, 0]
    assert groups["in", 0, 1] == groups["in", 1, 1]
    assert groups["in", 1, 0] == groups["in", 2, 0] == groups["out", 0, 1]
    assert len(set(groups.values())) == 3
