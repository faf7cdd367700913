"""Placements: beside torch's, as values, from what users write, and made ready for a tensor."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed.tensor as torch_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from dtorch.errors import PlacementError
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.placement import Partial, Placement, Replicate, Shard, as_placement, normalize_placements

MESH = init_device_mesh("cpu", (2, 3), ("dp", "tp"))

OURS = (Shard(0), Shard(1), Shard(-1), Replicate(), Partial())
TORCH = (
    torch_tensor.Shard(0),
    torch_tensor.Shard(1),
    torch_tensor.Shard(-1),
    torch_tensor.Replicate(),
    torch_tensor.Partial(),
)

PAIRS = list(zip(OURS, TORCH, strict=True))


class ShardOfPairs(Shard):
    """A kind of Shard that knows more than its dim."""


# -- beside torch's


@pytest.mark.parametrize(("ours", "torchs"), PAIRS, ids=repr)
def test_equals_torchs(ours, torchs):
    assert ours == torchs
    assert torchs == ours
    assert hash(ours) == hash(torchs)
    assert {torchs: "found"}[ours] == "found"


@pytest.mark.parametrize("i", range(len(OURS)))
@pytest.mark.parametrize("j", range(len(OURS)))
def test_unequal_wherever_torchs_are(i, j):
    assert (OURS[i] == OURS[j]) == (i == j)
    assert (OURS[i] == TORCH[j]) == (i == j)
    assert (TORCH[i] == OURS[j]) == (i == j)


def test_sequences_compare():
    assert tuple(OURS) == tuple(TORCH)
    assert list(TORCH) == list(OURS)


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (Partial(), torch_tensor.Partial("max")),
        (Partial(), torch_tensor.Partial("avg")),
        (Shard(0), _StridedShard(0, split_factor=2)),
        (ShardOfPairs(0), torch_tensor.Shard(0)),
    ],
    ids=repr,
)
def test_unequal_to_what_torch_means_otherwise(ours, torchs):
    assert ours != torchs
    assert torchs != ours


@pytest.mark.parametrize(("ours", "torchs"), PAIRS, ids=repr)
def test_to_torch(ours, torchs):
    assert type(ours.to_torch()) is type(torchs)
    assert ours.to_torch() == torchs


def test_to_torch_of_another_kind_of_shard():
    with pytest.raises(PlacementError, match="has no equal among torch's placements"):
        ShardOfPairs(0).to_torch()


def test_torchs_package_stays_unloaded():
    program = """
import sys
from dtorch.mesh import init_device_mesh
from dtorch.placement import Partial, Replicate, Shard, normalize_placements
assert Shard(0) != Replicate() and Shard(0) == Shard(0) and Partial() != 3
normalize_placements(["S(-1)", Replicate()], init_device_mesh("cpu", (2, 2)), 2)
assert "torch.distributed.tensor" not in sys.modules
before = Shard(0), Replicate(), Partial()
import torch.distributed.tensor as t
assert before == (t.Shard(0), t.Replicate(), t.Partial())
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )


# -- as values


@pytest.mark.parametrize("other", [None, 0, "Shard(0)", "S0", (0,)])
def test_unequal_to_anything_else(other):
    assert all(placement != other for placement in OURS)


def test_a_kind_of_shard_is_not_the_plain_one():
    assert ShardOfPairs(0) != Shard(0)
    assert Shard(0) != ShardOfPairs(0)


@pytest.mark.parametrize("placement", OURS, ids=repr)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))],
    ids=["copy", "deep", "pickle"],
)
def test_copies_are_equal(placement, again):
    assert again(placement) == placement
    assert type(again(placement)) is type(placement)


@pytest.mark.parametrize("placement", OURS, ids=repr)
@pytest.mark.parametrize("name", ["dim", "reduce_op", "new"])
def test_frozen(placement, name):
    with pytest.raises(AttributeError, match="cannot be changed; make a new placement"):
        setattr(placement, name, 1)


def test_nothing_can_be_deleted():
    placement = Shard(2)
    with pytest.raises(AttributeError, match=r"Shard\(2\) cannot be changed"):
        del placement.dim


@pytest.mark.parametrize(
    ("placement", "text"), list(zip(OURS, ["Shard(0)", "Shard(1)", "Shard(-1)", "Replicate()", "Partial()"]))
)
def test_repr(placement, text):
    assert repr(placement) == str(placement) == text


@pytest.mark.parametrize(
    ("placement", "kinds"),
    [
        (Shard(1), (True, False, False)),
        (ShardOfPairs(1), (True, False, False)),
        (Replicate(), (False, True, False)),
        (Partial(), (False, False, True)),
    ],
    ids=repr,
)
def test_kinds(placement, kinds):
    assert (placement.is_shard(), placement.is_replicate(), placement.is_partial()) == kinds


def test_kind_with_its_detail():
    assert [Shard(1).is_shard(dim) for dim in (0, 1)] == [False, True]
    assert [Shard(0).is_shard(dim) for dim in (0, 1)] == [True, False]
    assert not Replicate().is_shard(0)
    assert [Partial().is_partial(op) for op in ("sum", "max")] == [True, False]
    assert not Replicate().is_partial("sum")


@pytest.mark.parametrize("shard", [Shard(3), ShardOfPairs(3)], ids=repr)
def test_shard_index(shard):
    assert shard.get_shard_index() == shard.dim == 3


@pytest.mark.parametrize("placement", [Replicate(), Partial()], ids=repr)
def test_no_shard_index(placement):
    with pytest.raises(PlacementError, match="cuts no dim, so it has no shard index"):
        placement.get_shard_index()


# -- what users write


def test_int_likes_are_ints():
    dim = Shard(torch.tensor(1)).dim
    assert type(dim) is int
    assert dim == 1


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ("0", r"Shard\('0'\): the dim must be an int, not str"),
        (1.0, r"Shard\(1.0\): the dim must be an int, not float"),
        (None, r"Shard\(None\): the dim must be an int, not NoneType"),
        (True, r"Shard\(True\): the dim must be an int, not bool"),
        ((0,), r"Shard\(\(0,\)\): the dim must be an int, not tuple"),
        (torch.tensor(1.0), "the dim must be an int, not Tensor"),
    ],
)
def test_bad_dim(dim, text):
    with pytest.raises(PlacementError, match=text):
        Shard(dim)


def test_partial_is_a_sum():
    assert Partial("sum") == Partial(reduce_op="sum") == Partial()
    assert Partial().reduce_op == "sum"


@pytest.mark.parametrize("reduce_op", ["max", "avg", "", None])
def test_partial_of_another_reduction(reduce_op):
    with pytest.raises(PlacementError) as caught:
        Partial(reduce_op)
    assert str(caught.value).startswith(
        f"Partial({reduce_op!r}): a Partial is a pending sum and nothing else"
    )


@pytest.mark.parametrize(
    ("written", "placement"),
    [
        ("R", Replicate()),
        ("P", Partial()),
        ("S0", Shard(0)),
        ("S12", Shard(12)),
        ("S(3)", Shard(3)),
        ("S-1", Shard(-1)),
        ("S(-2)", Shard(-2)),
        *zip(TORCH, OURS, strict=True),
        *zip(OURS, OURS, strict=True),
    ],
    ids=repr,
)
def test_as_placement(written, placement):
    assert as_placement(written) == placement
    assert type(as_placement(written)) is type(placement)


def test_as_placement_keeps_a_kind_of_shard():
    shard = ShardOfPairs(0)
    assert as_placement(shard) is shard


@pytest.mark.parametrize(
    "text", ["", "r", "S", "S()", "S(0", "S0)", "S1.5", "Sx", "RR", " R", "S0\n", "Shard(0)"]
)
def test_unknown_string(text):
    with pytest.raises(PlacementError) as caught:
        as_placement(text)
    assert str(caught.value) == f'{text!r} is no placement; the strings are "R", "P", "S0" or "S(0)"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, r"0 \(int\) is no placement; use Shard\(dim\), Replicate\(\) or Partial\(\), or the strings"),
        (None, r"None \(NoneType\) is no placement"),
        ([Shard(0)], r"\[Shard\(0\)\] \(list\) is no placement"),
        (Replicate, r"Replicate is a class; write Replicate\(\.\.\.\) with parentheses"),
        (Placement(), r"\(Placement\) is no placement"),
        (torch_tensor.Partial("max"), r"Partial\('max'\): a Partial is a pending sum"),
        (_StridedShard(0, split_factor=2), r"\(_StridedShard\) is no placement"),
    ],
)
def test_no_placement(value, text):
    with pytest.raises(PlacementError, match=text):
        as_placement(value)


def test_placement_error_is_a_value_error():
    with pytest.raises(ValueError, match="is no placement"):
        as_placement("X")


# -- ready for a tensor


@pytest.mark.parametrize(
    ("written", "ndim", "stored"),
    [
        ([Shard(0), Replicate()], 2, (Shard(0), Replicate())),
        (("S(-1)", "P"), 3, (Shard(2), Partial())),
        ([Shard(-3), Shard(2)], 3, (Shard(0), Shard(2))),
        ([torch_tensor.Shard(-2), torch_tensor.Partial()], 2, (Shard(0), Partial())),
        (["R", "P"], 0, (Replicate(), Partial())),
    ],
)
def test_normalize(written, ndim, stored):
    placements = normalize_placements(written, MESH, ndim)
    assert placements == stored
    assert type(placements) is tuple
    assert all(isinstance(placement, Placement) for placement in placements)


def test_normalize_keeps_a_kind_of_shard():
    shard = ShardOfPairs(1)
    assert normalize_placements([shard, "R"], MESH, 2)[0] is shard


@pytest.mark.parametrize("written", ["R", "P", "S0", "S(-1)"])
def test_axis_of_size_one_stores_replicate(written):
    mesh = init_device_mesh("cpu", (1, 2, 1))
    assert normalize_placements([written, "P", written], mesh, 1) == (Replicate(), Partial(), Replicate())


def test_one_device_has_no_placements():
    assert normalize_placements([], DeviceMesh("cpu"), 2) == ()


@pytest.mark.parametrize(
    ("written", "ndim", "text"),
    [
        (
            [Shard(0)],
            2,
            r"^1 placements \[Shard\(0\)\] for DeviceMesh\(\(dp=2, tp=3\), 'cpu', stride=\(3, 1\)\), "
            r"which has 2 axes; give one per axis, Replicate\(\) where nothing is cut$",
        ),
        ([], 2, "0 placements .* which has 2 axes"),
        (["R"] * 3, 2, r"3 placements \['R', 'R', 'R'\] for .* which has 2 axes"),
        (["R", "S2"], 2, r"^Shard\(2\) on mesh axis 1 \('tp'\): the tensor has 2 dims, dims -2 to 1 exist$"),
        ([Shard(-3), "R"], 2, r"Shard\(-3\) on mesh axis 0 \('dp'\): the tensor has 2 dims"),
        (
            ["S0", "R"],
            0,
            r"Shard\(0\) on mesh axis 0 \('dp'\): the tensor has 0 dims, a scalar has none to cut",
        ),
        ([ShardOfPairs(2), "R"], 2, "on mesh axis 0"),
        (["R", 0], 2, r"0 \(int\) is no placement"),
        (["R", "X"], 2, "'X' is no placement"),
        (Shard(0), 2, r"placements must be a list or tuple with one entry per mesh axis, got Shard\(0\)"),
        ("RR", 2, "must be a list or tuple with one entry per mesh axis, got 'RR'"),
        (None, 2, "must be a list or tuple with one entry per mesh axis, got None"),
        ({0: "R"}, 2, "must be a list or tuple"),
    ],
)
def test_bad_placements(written, ndim, text):
    with pytest.raises(PlacementError, match=text):
        normalize_placements(written, MESH, ndim)


def test_bad_placement_on_an_unnamed_axis_of_size_one():
    with pytest.raises(PlacementError, match=r"^Shard\(1\) on mesh axis 0: the tensor has 1 dims"):
        normalize_placements([Shard(1)], init_device_mesh("cpu", 1), 1)
