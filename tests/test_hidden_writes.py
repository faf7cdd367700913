"""Operators that write arguments which their schema does not declare: found by running them all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dtorch
from dtorch import Replicate, Shard
from dtorch.hidden import HIDDEN_WRITES
from dtorch.op.schema import schema_of
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import PLACES, S0_2, Place, randn
from tests.support import sample

CHUNKS = 4
SAMPLES = 2
"""First samples of each entry of the database; all entries take about six seconds."""


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(value)
    return [
        t
        for t in leaves
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.device.type == "cpu"
    ]


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor._is_zerotensor():
        return b""  # has no memory that could be written
    with torch._C._DisableTorchDispatch():
        whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return whole.view(-1).view(torch.uint8).numpy().tobytes()


def _memory(tensor: torch.Tensor) -> int:
    return 0 if tensor._is_zerotensor() else tensor.untyped_storage().data_ptr()


class Undeclared(TorchDispatchMode):
    """Runs every operator and notes which argument changed though its schema does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, set[str]] = {}
        self.ran = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        declared = {
            a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
        }
        bound = schema_of(func).bind(args, kwargs)
        written = {_memory(t) for name in declared for t in _tensors(bound[name])}
        watched = [
            (name, tensor, _bits(tensor))
            for name, value in bound.items()
            for tensor in _tensors(value)
            if name not in declared and _memory(tensor) not in written
        ]
        result = func(*args, **kwargs)
        self.ran += 1
        for name, tensor, before in watched:
            if _bits(tensor) != before:
                self.found.setdefault(func._schema.name, set()).add(name)
        return result


def _database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def _samples(op: Any) -> Iterator[Any]:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    for dtype in (torch.float32, torch.int64, torch.complex64):
        if dtype in op.dtypes:
            wanted = op.supports_autograd and dtype in op.backward_dtypes
            count = 1 if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)) else SAMPLES
            yield from islice(op.sample_inputs("cpu", dtype, requires_grad=wanted), count)
            return


def _run(op: Any) -> None:
    for example in _samples(op):
        result = op(example.input, *example.args, **example.kwargs)
        if example.output_process_fn_grad is not None:
            result = example.output_process_fn_grad(result)
        outputs = [y for y in tree_leaves(result) if isinstance(y, torch.Tensor) and y.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])


def _chosen() -> list[Any]:
    """A seeded sample of the database, and all batch norms; DTORCH_CASES=5 takes all."""
    known = [op for op in _database() if "batch_norm" in op.name]
    return known + sample([op for op in _database() if op not in known], 160)


@pytest.mark.filterwarnings("ignore")  # torch's own samples warn of all sorts
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_table_names_every_operator_that_writes_undeclared_arguments(chunk: int) -> None:
    mode = Undeclared()
    failed = set()
    chosen = _chosen()[chunk::CHUNKS]
    for op in chosen:
        try:
            with mode:
                _run(op)
        except (RuntimeError, ValueError, AssertionError):
            failed.add(op.name)  # what needs a GPU, and samples that torch itself refuses
    assert mode.ran > len(chosen)
    assert len(failed) < 10, failed
    known = {"aten::native_batch_norm": HIDDEN_WRITES["aten::native_batch_norm"]}
    found = {name: tuple(sorted(names)) for name, names in mode.found.items()}
    assert found in ({}, known)
    assert found or not any(op.name == "native_batch_norm" for op in chosen)


@pytest.mark.parametrize("name", HIDDEN_WRITES)
def test_every_entry_is_an_operator_with_these_arguments(name: str) -> None:
    overload = getattr(torch.ops.aten, name.removeprefix("aten::")).default
    assert set(HIDDEN_WRITES[name]) <= set(schema_of(overload).names)
    assert set(HIDDEN_WRITES[name]) <= set(schema_of(overload).written)


class Norm(nn.Module):
    """A plain model with running statistics, cumulative or exponential."""

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu()


def _trained(
    place: Place | None, momentum: float | None, buffers: str
) -> tuple[nn.BatchNorm1d, list[torch.Tensor]]:
    """Three steps of training on uneven batches, then one prediction; what came out, and gradients."""
    model = Norm(momentum)
    if place is not None and buffers == "distributed":
        model = dtorch.parallelize(model, place.mesh, {})
    if place is not None and buffers == "sharded":
        model = dtorch.parallelize(model, place.mesh, {"norm.weight": [Shard(0)] * len(place.mesh_shape)})
        for name in ("running_mean", "running_var"):
            there = getattr(model.norm, name)
            setattr(model.norm, name, there.redistribute(placements=[Shard(0)] * len(place.mesh_shape)))
    results = []
    for rows in (5, 7, 2):
        x = randn(rows, 3, seed=rows) * 3 + 1
        leaf = x.requires_grad_() if place is None else place.put(x, requires_grad=True)
        y = model(leaf)
        y.pow(2).sum().backward()
        results += [y.detach(), leaf.grad]
    model.eval()
    x = randn(5, 3, seed=9)
    results.append(model(x if place is None else place.put(x)).detach())
    return model.norm, results


@PLACES
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("buffers", ["distributed", "sharded", "plain"])
def test_running_statistics_are_those_of_the_whole_batch(
    place: Place, momentum: float | None, buffers: str
) -> None:
    plain, wanted = _trained(None, momentum, buffers)
    spread, found = _trained(place, momentum, buffers)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        close(getattr(spread, name), getattr(plain, name))
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


def test_replicas_of_running_statistics_agree() -> None:
    norm, _ = _trained(S0_2, 0.1, "distributed")
    assert norm.running_mean.placements == [Replicate()]
    equal(norm.running_mean.to_local(0), norm.running_mean.to_local(1))


def test_a_view_of_running_statistics_sees_the_write() -> None:
    mean, var = S0_2.put(torch.zeros(3)), S0_2.put(torch.ones(3))
    part, cast = mean[1:], mean.redistribute(placements=[Replicate()])
    before = cast.to_torch()
    x = randn(5, 3)
    nn.functional.batch_norm(S0_2.put(x), mean, var, training=True, momentum=1.0)
    close(mean, x.mean(0))
    close(part, x.mean(0)[1:])
    close(cast, before)
    close(mean + 0, x.mean(0))
    mean, var = S0_2.put(torch.zeros(3)), S0_2.put(torch.ones(3))
    nn.functional.batch_norm(S0_2.put(x), mean, var, training=False)
    equal(mean, torch.zeros(3))
    equal(var, torch.ones(3))
