"""Printing never raises and shows global values, of large tensors the corners alone."""

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.graph.graph import Graph
from tests.places import TWO, spread

GRID = dtorch.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))


def values(text):
    """What stands between `Tensor(` and the facts, as torch prints it after `tensor(`."""
    body = text.removeprefix("Parameter containing:\n").removeprefix("Tensor(")
    return body[: body.index("shape=")].rstrip().removesuffix(",")


def theirs(full):
    text = repr(full).removeprefix("tensor(").removesuffix(")")
    return text.partition(", dtype=")[0].partition(",\n")[0] if "dtype" in text else text


WAYS = [
    (["R"], TWO),
    (["S0"], TWO),
    (["P"], TWO),
    (["S0", "S0"], GRID),
    (["S1", "P"], GRID),
    (["S1", "S0"], GRID),
]
SIZES = [(3, 2), (1, 1), (7, 5), (40, 30), (2, 700), (1001, 2), (11, 3, 41)]


@pytest.mark.parametrize(("placements", "mesh"), WAYS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_are_printed_as_torch_prints_them(placements, mesh, size):
    full = torch.randn(size)
    lines = [line.strip() for line in values(repr(spread(placements, mesh, full))).splitlines()]
    expected = [line.strip() for line in theirs(full).splitlines()]
    assert lines == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64])
def test_every_dtype(dtype):
    full = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    text = repr(spread(["S0"], TWO, full))
    assert values(text) == theirs(full)
    assert f"dtype={str(dtype).removeprefix('torch.')}" in text


def test_the_whole_line():
    x = spread(["S0"], TWO, torch.tensor([1, 2, 3]))
    assert repr(x) == (
        "Tensor([1, 2, 3], shape=[3], dtype=int64, device_mesh=DeviceMesh((2,), 'cpu', stride=(1,)), "
        "placements=[Shard(0)])"
    )
    assert str(x) == repr(x) == f"{x}"
    y = spread(["S0"], TWO, torch.ones(2), requires_grad=True)
    assert repr(y).endswith("placements=[Shard(0)], requires_grad=True)")
    assert "grad_fn=<MulBackward0>" in repr(y * 2)
    assert repr(torch.nn.Parameter(y)).startswith("Parameter containing:\nTensor([1., 1.],")


def test_matrices_are_indented():
    lines = repr(spread(["S0"], TWO, torch.eye(2))).splitlines()
    assert lines[1].startswith("        [0., 1.]]")
    assert lines[2].startswith("       shape=[2, 2], dtype=float32")


@pytest.mark.parametrize("size", [(0,), (0, 3), (2, 0)], ids=str)
def test_empty(size):
    text = repr(spread(["S0"], TWO, torch.zeros(size)))
    assert text.startswith(f"Tensor([], shape={list(size)}")


def test_scalars_format_as_numbers():
    one = spread(["P"], TWO, torch.tensor(2.5))
    assert f"{one:.3f}" == "2.500"
    assert f"{one}" == "2.5"
    assert repr(one).startswith("Tensor(2.5000, shape=[]")
    whole = spread(["R"], TWO, torch.tensor(7))
    assert f"{whole:04d}" == "0007"
    assert format(one, ".1f") == "2.5"


def test_uneven_factors_are_named():
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    x = spread([Shard(0)], mesh, torch.zeros(7, 12)).view(84)
    assert "placements=[Shard(0: 7@dp * 12)]" in repr(x)


def test_large_tensors_are_not_gathered():
    x = spread(["S0"], TWO, torch.zeros(1000, 100))
    with dtorch.record() as seen:
        assert "..." in repr(x)
    assert len(seen) == 0


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta"), torch.no_grad])
def test_printing_works_everywhere(mode):
    x = spread(["S0"], TWO, torch.ones(2))
    with mode():
        assert repr(x).startswith("Tensor([1., 1.]")
    with dtorch.device_mesh(GRID):
        assert repr(x).startswith("Tensor([1., 1.]")


def test_printing_never_raises(monkeypatch):
    x = spread(["S0"], TWO, torch.ones(2))

    def broken(self, operand):
        raise OSError("device lost")

    monkeypatch.setattr(Graph, "parts", broken)
    assert repr(x).startswith("Tensor(<values not to be had: OSError: device lost>, shape=[2]")


def test_print_options_are_torchs():
    x = spread(["S0"], TWO, torch.ones(20))
    with torch._tensor_str.printoptions(threshold=10, edgeitems=1, precision=2):
        assert "[1.,  ..., 1.]" in repr(x)
    assert "..." not in repr(x)
