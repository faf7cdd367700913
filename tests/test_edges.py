"""Where dtorch meets what does not know of distributed tensors: it works, or an error says what to do.

docs/edges.md lists the same, in the same order.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import dtorch
from dtorch import Replicate, Shard, UnsupportedError
from tests.dist import place

MESH = dtorch.init_device_mesh("cpu", (2,))
FULL = torch.arange(12.0).view(4, 3)
PLACES = pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])


def spread(places: str = "S0", of: torch.Tensor = FULL) -> dtorch.Tensor:
    return place(of, (2,), (places,))


# -- numbers, values, text ----------------------------------------------------------------------------------


@PLACES
def test_a_tensor_of_numbers_that_are_tensors(places: str) -> None:
    total = spread(places).sum()
    for made in (torch.tensor([total, 1]), torch.as_tensor([total, 1]), FULL.new_tensor([total, 1])):
        assert type(made) is torch.Tensor
        assert made.tolist() == [66, 1]
    assert torch.tensor([total.long(), 2]).dtype == torch.int64
    assert torch.tensor([[total > 3]]).tolist() == [[True]]
    assert torch.tensor([total + 1j]).tolist() == [66 + 1j]
    with pytest.raises(ValueError, match="only one element tensors can be converted to Python scalars"):
        torch.tensor([spread(places)])


@PLACES
def test_python_numbers(places: str) -> None:
    one = spread(places)[1, 1]
    assert (int(one), float(one), bool(one), complex(one)) == (4, 4.0, True, 4 + 0j)
    assert list(range(9))[one.long()] == 4
    assert type(float(one)) is float
    with pytest.raises(TypeError, match="only integer tensors"):
        range(9)[one]
    for refused in (float, bool, int):
        with pytest.raises((RuntimeError, ValueError)):
            refused(spread(places))


def test_new_tensor_lives_on_the_same_mesh() -> None:
    made = spread("S1").new_tensor([1, 2], requires_grad=True)
    assert (made.dtype, made.device_mesh, made.placements) == (torch.float32, MESH, [Replicate()])
    assert made.requires_grad
    assert made.is_leaf
    assert type(spread().new_tensor([1], device="meta")) is torch.Tensor
    twin = spread("S1").new_tensor(spread("S0"), dtype=torch.int32)
    assert (twin.dtype, twin.placements, twin.tolist()) == (torch.int32, [Shard(0)], FULL.tolist())


def test_format_strings() -> None:
    total, matrix = spread().sum(), spread()
    assert f"{total:.2f} {total:>6} {total}" == "66.00   66.0 66.0"
    assert "%.1f %d" % (total, total) == "66.0 66"  # noqa: UP031
    assert f"{matrix}" == str(matrix)
    assert f"{spread()[0, :1].sum().long():04d}" == "0000"
    with pytest.raises(TypeError, match="unsupported format string passed to Tensor"):
        f"{matrix:.2f}"


def test_numpy_functions_get_the_value() -> None:
    assert np.allclose(np.sin(spread().numpy()), np.sin(FULL.numpy()))
    assert np.asarray(spread()).shape == (4, 3)


# -- memory -------------------------------------------------------------------------------------------------

STRIDED = {
    "column": torch.ones(1, 3).t(),
    "holes beside size 1": torch.empty_strided((3, 1, 2), (2, 7, 1)).fill_(1.0),
    "empty": torch.ones(2, 0, 3),
    "empty, transposed": torch.ones(2, 0, 3).transpose(0, 2),
    "channels last": torch.ones(2, 1, 3, 1).contiguous(memory_format=torch.channels_last),
    "every second": torch.ones(4, 6)[:, ::2],
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_are_those_of_a_copy(name: str) -> None:
    plain = STRIDED[name]
    copied = plain.clone()
    for places in ("R", "S0", "S1"):
        x = dtorch.Tensor(plain, device_mesh=MESH, placements=[places])
        assert x.stride() == x.clone().stride() == copied.stride()
    whole = dtorch.Tensor(plain, device_mesh=MESH, placements=["R"])
    assert whole.to_torch().stride() == copied.stride()
    for call in (
        torch.neg,
        torch.zeros_like,
        lambda t: t * 2,
        lambda t: t.sum(0),
        lambda t: t.transpose(0, 1),
    ):
        assert call(whole).stride() == call(copied).stride()


OF_CUT: dict[str, tuple[Callable[[Any], Any], torch.Tensor]] = {
    "abs of nothing": (torch.abs, torch.ones(0, 5, 5).transpose(1, 2)),
    "times a number of nothing": (lambda t: t * -0.5, torch.ones(2, 1, 0).permute(2, 0, 1)),
    "compared, of nothing": (lambda t: t == 0, torch.ones(0, 1, 3)),
    "sum of nothing": (lambda t: t.sum(0, keepdim=True), torch.ones(5, 0, 5)),
    "fold of nothing": (lambda t: torch.nn.functional.fold(t, (5, 5), 2, 1, 1, 2), torch.ones(0, 4, 9)),
    "svd": (lambda t: torch.linalg.svd(t).Vh, torch.randn(4, 5, 3)),
    "eig": (lambda t: torch.linalg.eig(t).eigenvectors, torch.randn(4, 3, 3)),
}


@pytest.mark.parametrize("name", OF_CUT)
def test_strides_of_what_a_cut_tensor_gives_are_its_kernels(name: str) -> None:
    call, plain = OF_CUT[name]
    cut = call(dtorch.Tensor(plain, device_mesh=MESH, placements=["S0"]))
    wanted = call(plain.clone())
    assert (cut.stride(), cut.is_contiguous()) == (wanted.stride(), wanted.is_contiguous())


MEMORY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "data_ptr": (lambda x: x.data_ptr(), r"data_ptr\(\): a distributed tensor has no memory of its own"),
    "untyped_storage": (lambda x: x.untyped_storage().data_ptr(), r"untyped_storage\(\): .* x.to_torch\(\)"),
    "storage": (lambda x: x.storage(), r"storage\(\): a distributed tensor has no memory of its own"),
    "to_dlpack": (torch.utils.dlpack.to_dlpack, "Cannot access data pointer of Tensor"),
    "set_ of a plain tensor": (lambda x: x.set_(FULL), "memory with distributed tensors of its dtype"),
    "set_ of a storage": (lambda x: x.set_(FULL.untyped_storage()), "x.data = values replaces its value"),
    "set_ into a plain tensor": (lambda x: FULL.clone().set_(x), "shares memory with distributed tensors"),
    "resize_ of what has views": (lambda x: (x[1:], x.resize_(5, 3)), r"resize_ of \[4, 3\] to \[5, 3\]: "),
    "resize_ of a leaf": (lambda x: x.requires_grad_().resize_(2), "cannot resize variables"),
    "to meta": (lambda x: x.to("meta"), "cannot go to 'meta'"),
    "to sparse": (lambda x: x.to_sparse(), "a torch.sparse_coo tensor; dtorch holds strided ones"),
    "with sparse": (lambda x: x * FULL.to_sparse(), r"torch.sparse_coo tensors do not mix .* x.to_dense\(\)"),
    "with meta": (lambda x: x + FULL.to("meta"), "a meta tensor has no value to mix"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "gives a quantized tensor"),
}  # fmt: skip


@PLACES
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", MEMORY)
def test_there_is_no_one_memory(name: str, places: str) -> None:
    call, text = MEMORY[name]
    x = spread(places)
    for tensor in (x, x * 1, x.view(4, 3)):
        with pytest.raises((RuntimeError, dtorch.PlacementError), match=text):
            call(tensor.detach())
    assert torch.equal(x.to_torch(), FULL)


@PLACES
def test_dlpack_gives_a_copy(places: str) -> None:
    x = spread(places)
    twin = torch.from_dlpack(x)
    assert torch.equal(twin, FULL)
    twin.zero_()
    assert torch.equal(x.to_torch(), FULL)
    assert np.from_dlpack(x).tolist() == FULL.tolist()


@PLACES
def test_resize_in_place(places: str) -> None:
    x, y = spread(places), FULL.clone()
    seen_x, seen_y = x.view(12), y.view(12)
    for size in ((2, 6), (3, 2)):
        for tensor in (x, y):
            assert tensor.resize_(size) is tensor
            tensor.mul_(2)
        assert x.shape == size
        assert torch.equal(x.to_torch(), y)
        assert torch.equal(seen_x.to_torch(), seen_y)
    grown = spread(places).resize_(5, 3)
    assert grown.shape == (5, 3)
    assert torch.equal(grown[:4].to_torch(), FULL)
    assert spread(places).resize_as_(torch.zeros(3, 4)).tolist() == FULL.view(3, 4).tolist()
    assert dtorch.empty(0, device_mesh=MESH).resize_(2, 2).shape == (2, 2)


@PLACES
def test_set_shares_with_another_distributed_tensor(places: str) -> None:
    x, other = spread(), spread(places, FULL * 2)
    assert x.set_(other) is x
    other.add_(1)
    assert x.tolist() == (FULL * 2 + 1).tolist()
    assert x.placements == other.placements


@PLACES
def test_share_memory(places: str) -> None:
    x = spread(places)
    assert not x.is_shared()
    assert x.share_memory_() is x
    assert x.is_shared()
    assert torch.equal(x.to_torch(), FULL)
    module = dtorch.parallelize(torch.nn.Linear(3, 4), MESH, {"weight": [Shard(0)]})
    assert all(p.is_shared() for p in module.share_memory().parameters())


def test_safetensors() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    module = torch.nn.Linear(3, 4)
    weight = module.weight.detach().clone()
    dtorch.parallelize(module, MESH, {"weight": [Shard(0)]})
    with pytest.raises(UnsupportedError, match=r"plain tensors \(safetensors\), give it x.to_torch"):
        safetensors.save({"w": dtorch.Tensor(weight, device_mesh=MESH)})
    saved = safetensors.save(module.state_dict())  # of full, plain tensors
    loaded = safetensors.load(saved)
    assert torch.equal(loaded["weight"], weight)
    module.load_state_dict(loaded)
    assert module.weight.placements == [Shard(0)]


def test_recurrent_modules_may_ask_whether_weights_share_memory() -> None:
    module = torch.nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    want = module(x)[0]
    dtorch.parallelize(module, MESH, {"*": [Replicate()]})
    module.flatten_parameters()
    torch.testing.assert_close(module(x)[0].detach().to_torch(), want.detach())


# -- processes ----------------------------------------------------------------------------------------------


class Samples(Dataset):
    """Rows of a matrix, distributed or plain."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def batch_over_the_mesh(rows: list[torch.Tensor]) -> dtorch.Tensor:
    return dtorch.Tensor(torch.stack(rows), device_mesh=MESH, placements=[Shard(0)])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("made", ["by the dataset", "by collate_fn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_of_a_data_loader(workers: int, made: str) -> None:
    samples = Samples(spread("S1") if made == "by the dataset" else FULL)
    collate = batch_over_the_mesh if made == "by collate_fn" else None
    batches = list(DataLoader(samples, batch_size=2, num_workers=workers, collate_fn=collate))
    assert all(isinstance(batch, dtorch.Tensor) for batch in batches)
    assert torch.equal(torch.cat([batch.to_torch() for batch in batches]), FULL)
    assert batches[0].device_mesh == MESH
    batches[0].add_(1)


# -- settings of torch --------------------------------------------------------------------------------------


@pytest.fixture
def meta_by_default() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@PLACES
@pytest.mark.usefixtures("meta_by_default")
def test_default_device_meta(places: str) -> None:
    x = spread(places)
    assert (x @ x.t()).exp().sum().to_torch().device.type == "cpu"
    assert dtorch.ones(2, 3, device_mesh=MESH).sum().item() == 6
    assert dtorch.Tensor([1.0, 2.0], device_mesh=MESH).tolist() == [1, 2]
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file, weights_only=True).tolist() == FULL.tolist()
    assert torch.zeros(3).device.type == "meta"
    assert "66" in repr(x.sum())


def test_swapping_parameters_on_conversion_is_refused_by_torch() -> None:
    """A leaf is watched for its gradient; torch swaps nothing that somebody refers to weakly."""
    module = dtorch.parallelize(torch.nn.Linear(3, 4), MESH, {"weight": [Shard(0)]})
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(RuntimeError, match=r"Couldn't swap Linear\.weight") as caught:
            module.to(torch.bfloat16)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert "weakref" in str(caught.value.__cause__)
    assert module.weight.dtype == torch.float32
    module.to(torch.bfloat16)
    assert (module.weight.dtype, module.weight.placements) == (torch.bfloat16, [Shard(0)])


# -- functorch ----------------------------------------------------------------------------------------------


def cube(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: torch.vmap(lambda r: r.softmax(0) * r.sum())(x),
    "vmap of a product": lambda x: torch.vmap(lambda r, w: w @ r, in_dims=(0, None))(x, torch.ones(2, 3)),
    "vmap over another dim": lambda x: torch.vmap(torch.sort, in_dims=1, out_dims=1)(x).values,
    "grad": torch.func.grad(cube),
    "grad and value": lambda x: torch.func.grad_and_value(cube)(x)[1],
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(cube)(x).sum()),
    "per-sample gradients": lambda x: torch.vmap(torch.func.grad(cube))(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "hessian": lambda x: torch.func.hessian(cube)(x[0]),
    "functionalize": lambda x: torch.func.functionalize(lambda y: y.clone().add_(1).view(12))(x),
    "functional_call": lambda x: torch.func.functional_call(
        torch.nn.Linear(3, 2, bias=False), {"weight": x[:2]}, (x,)
    ),
}  # fmt: skip


@PLACES
@pytest.mark.filterwarnings(
    "ignore:.*vmap.*:UserWarning", "ignore:.torch.jit.script:DeprecationWarning", "ignore:Attempted to insert"
)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, places: str) -> None:
    found, want = TRANSFORMS[name](spread(places)), TRANSFORMS[name](FULL)
    assert isinstance(found, dtorch.Tensor)
    torch.testing.assert_close(found.to_torch(), want)


@PLACES
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_linearize_is_refused(places: str) -> None:
    x = spread(places)
    for _ in range(2):
        torch.sin(x)
        with pytest.raises(UnsupportedError, match=r"make_fx would make a constant of aten\.\w+"):
            torch.func.linearize(torch.sin, x)
    assert torch.equal(x.sin().to_torch(), FULL.sin())


def test_values_made_in_a_transform_outlive_it() -> None:
    """Recorded before or in a transform, run by it or later: no part is a tensor of the transform's own."""
    x, before = spread(), spread() * 3

    def loss(y: torch.Tensor) -> torch.Tensor:
        product = y.sin() * before
        before.redistribute(placements=[Replicate()]).to_torch()
        return product.sum()

    gradient = torch.func.grad(loss)(x)
    for tensor in (gradient, before, x):
        parts = tensor._graph.parts(tensor._operand)
        assert not any(torch._C._functorch.is_functorch_wrapped_tensor(part) for part in parts)
    torch.testing.assert_close(gradient.to_torch(), FULL.cos() * FULL * 3)
