"""Specs: one object per value, sizes in bytes, and what does not fit together."""

import copy
import pickle

import pytest
import torch

from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.spec import Spec

MESH = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))


def spec_of(shape, *placements, dtype=torch.float32, mesh=MESH):
    layout = Layout.from_placements(mesh.shape, shape, placements)
    return Spec(shape, torch.empty(shape, device="meta").stride(), dtype, layout, mesh)


def test_equal_specs_are_one_object_also_copied_and_unpickled():
    spec = spec_of((5, 6), "S0", "P")
    same_mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    assert spec_of((5, 6), "S0", "P", mesh=same_mesh) is spec
    assert pickle.loads(pickle.dumps(spec)) is spec
    assert copy.copy(spec) is copy.deepcopy(spec) is spec
    assert spec != spec_of((5, 6), "S0", "P", dtype=torch.int32)
    assert spec != Spec((5, 6), (1, 5), torch.float32, spec.layout, MESH)


def test_sizes():
    spec = spec_of((5, 6), "S0", "P", dtype=torch.bfloat16)
    assert (spec.ndim, spec.numel, spec.itemsize, spec.nbytes) == (2, 30, 2, 60)
    assert spec.local_shape((1, 0)) == (2, 6)
    assert spec.local_nbytes((1, 0)) == 24
    assert spec_of((), "R", "R").nbytes == 4


def test_placements_print_with_the_names_of_the_mesh():
    spec = spec_of((7, 12, 8), "S0", "R")
    flat = Spec((84, 8), (8, 1), torch.float32, spec.layout.view((84, 8)), MESH)
    assert repr(list(flat.placements)) == "[Shard(0: 7@dp * 12), Replicate()]"
    assert repr(flat).startswith("Spec([84, 8], float32, [Shard(0: 7@dp * 12), Replicate()], DeviceMesh(")


def test_a_spec_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot be changed"):
        spec_of((3,), "R", "R").shape = (4,)


def test_what_does_not_fit():
    layout = Layout.replicate((2, 2), (3, 4))
    with pytest.raises(ShapeError, match=r"shape \[4, 3\] and stride \[3, 1\]"):
        Spec((4, 3), (3, 1), torch.float32, layout, MESH)
    with pytest.raises(ShapeError, match=r"stride \[1\]"):
        Spec((3, 4), (1,), torch.float32, layout, MESH)
    with pytest.raises(MeshMismatchError, match="on 2x2"):
        Spec((3, 4), (4, 1), torch.float32, layout, DeviceMesh("cpu", [0, 1]))


@pytest.mark.parametrize(
    ("shape", "stride", "dense"),
    [
        ((4, 3), (3, 1), True),
        ((4, 3), (1, 4), True),
        ((4, 1), (1, 7), True),
        ((4, 3), (4, 1), False),
        ((4, 3), (0, 1), False),
        ((0, 3), (3, 1), False),
        ((), (), True),
    ],
)
def test_dense(shape: tuple[int, ...], stride: tuple[int, ...], dense: bool) -> None:
    mesh = DeviceMesh("cpu", [0, 1])
    assert Spec(shape, stride, torch.float32, Layout.replicate(mesh.shape, shape), mesh).is_dense is dense
