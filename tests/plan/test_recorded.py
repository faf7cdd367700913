"""Between a call and its run: what may change meanwhile, who may look, and threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard
from dtorch.testing import assert_tensor_equal as equal

MESH = DeviceMesh("cpu", [0, 1])
VALUES = torch.arange(12.0).reshape(4, 3) - 5.5


# -- what may change between the call and the run --------------------------------------------------------


@pytest.mark.parametrize("size", [3, 2**19], ids=["copied", "too large to copy"])
@pytest.mark.parametrize(
    "change", [lambda t: t.zero_(), lambda t: t.data.fill_(7.0), lambda t: t.numpy().fill(9)]
)
def test_a_plain_operand_has_the_value_of_the_call(graph: dtorch.Graph, size: int, change: Any) -> None:
    x = dtorch.Tensor(torch.ones(2, size), MESH, [Shard(0)], graph=graph)
    for _ in range(3):
        plain = torch.full((size,), 2.0)
        y = x * plain
        change(plain)
        equal(y.to_torch(), torch.full((2, size), 2.0))


def test_the_default_dtype_of_the_call(graph: dtorch.Graph) -> None:
    x = dtorch.Tensor(torch.arange(4), MESH, [Shard(0)], graph=graph)
    before = torch.get_default_dtype()
    for _ in range(3):
        try:
            y = x / 2 + 1
            torch.set_default_dtype(torch.float64)
            z = x / 2 + 1
            torch.set_default_dtype(torch.float32)
            equal(y.to_torch(), torch.arange(4) / 2 + 1)
            assert graph.parts(y._operand)[0].dtype == torch.float32
            assert graph.parts(z._operand)[0].dtype == z.dtype == torch.float64
        finally:
            torch.set_default_dtype(before)


def test_deterministic_algorithms_as_at_the_call(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = dtorch.Tensor(VALUES, MESH, [Shard(0)], graph=graph)
    (x.redistribute(placements=[Replicate()])).to_torch()
    seen: list[bool] = []
    execute = dtorch.redistribute.execute

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return execute(*args, **kwargs)

    monkeypatch.setattr(dtorch.redistribute, "execute", noting)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        one = (x + 1.0).redistribute(placements=[Replicate()])
        torch.use_deterministic_algorithms(False)
        other = (x + 2.0).redistribute(placements=[Replicate()])
        graph.sync()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [True, False]
    equal(one.to_torch(), VALUES + 1)
    equal(other.to_torch(), VALUES + 2)


def test_modes_around_the_reading_change_nothing(x: dtorch.Tensor) -> None:
    def step() -> dtorch.Tensor:
        return (x @ x.t()) * 2.0

    expected = step().to_torch()
    for _ in range(3):
        y = step()
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.inference_mode():
            found = y.to_torch()
        equal(found, expected)
        z = step()
        with torch.inference_mode():
            x.graph.sync()
        z.add_(1.0)  # made in inference mode or not, it is an ordinary tensor
        equal(z.to_torch(), expected + 1)


def test_values_made_in_inference_mode(x: dtorch.Tensor) -> None:
    for _ in range(3):
        with torch.inference_mode():
            y = x * 2.0
            view = x.view(-1)
            y.add_(1.0)
        assert y.is_inference()
        equal(y.to_torch(), VALUES * 2 + 1)
        equal(view.to_torch(), VALUES.view(-1))


# -- pending tensors in torch's hands --------------------------------------------------------------------


@pytest.mark.parametrize("use", ["deepcopy", "copy", "pickle", "repr", "data", "set data", "torch.save"])
def test_a_pending_tensor_is_copied_and_printed_like_another(x: dtorch.Tensor, use: str) -> None:
    for _ in range(3):
        y = (x * 2.0).detach()
        y.add_(1.0)
        if use == "deepcopy":
            y = copy.deepcopy(y)
        elif use == "copy":
            y = copy.copy(y)
        elif use == "pickle":
            y = pickle.loads(pickle.dumps(y))
        elif use == "torch.save":
            file = io.BytesIO()
            torch.save(y, file)
            file.seek(0)
            y = torch.load(file)
        elif use == "repr":
            assert "-10." in repr(y)
        elif use == "data":
            y = y.data
        else:
            z = x + 5.0
            old = z.view(-1)
            z.data = y
            equal(old.to_torch(), VALUES.view(-1) + 5)
            y = z
        equal(y.to_torch(), VALUES * 2 + 1)


def test_sums_reduced_in_place_while_views_are_pending(graph: dtorch.Graph) -> None:
    for _ in range(4):
        source = dtorch.Tensor(VALUES, MESH, [Partial()], graph=graph)
        x = source + source
        view, before = x.t(), x * 2.0
        row = view[1]
        x.relu_()  # cannot be done on pending sums: they are reduced where they are, for every alias
        expected = (VALUES * 2).relu()
        equal(x.to_torch(), expected)
        equal(view.to_torch(), expected.t())
        equal(row.to_torch(), expected[:, 1])
        equal(before.to_torch(), VALUES * 4)
        assert x.placements == view.placements == [Replicate()]


def test_views_share_the_storage_of_a_tensor_that_is_gone(graph: dtorch.Graph) -> None:
    for _ in range(4):
        source = dtorch.Tensor(VALUES, MESH, [Partial()], graph=graph)
        x = source + source
        one, other = x.t(), x.view(-1)
        del x
        graph.sync()
        one.relu_()
        equal(one.to_torch(), (VALUES * 2).relu().t())
        equal(other.to_torch(), (VALUES * 2).relu().view(-1))
        y = dtorch.Tensor(VALUES, MESH, graph=graph) + 1.0
        view = y.t()[1:]
        del y
        graph.sync()
        flat = view.as_strided((12,), (1,), 0)
        flat.add_(1.0)
        equal(flat.to_torch(), VALUES.view(-1) + 2)
        equal(view.to_torch(), (VALUES + 2).t()[1:])


# -- threads and graphs ----------------------------------------------------------------------------------


def test_tensors_of_two_graphs_in_one_call() -> None:
    graphs = [dtorch.Graph(), dtorch.Graph()]
    for graph in graphs:
        graph.constructor.eager = False
    for _ in range(4):
        a, b = (dtorch.Tensor(VALUES, MESH, [Shard(0)], graph=graph) for graph in graphs)
        x, y = a * 2.0, b + 1.0
        z = x * y
        y.mul_(0.0)  # in its own graph, after the call
        w = y + x
        x.add_(1.0)
        equal(z.to_torch(), VALUES * 2 * (VALUES + 1))
        equal(w.to_torch(), VALUES * 2)
        equal(x.to_torch(), VALUES * 2 + 1)


def test_a_leaf_of_another_graph_gets_its_gradient() -> None:
    one, other = dtorch.Graph(), dtorch.Graph()
    leaf = dtorch.Tensor(VALUES, MESH, [Shard(0)], graph=one, requires_grad=True)
    x = dtorch.Tensor(VALUES, MESH, [Shard(1)], graph=other)
    for times in range(1, 4):
        (x * leaf).sum().backward()
        assert leaf.grad is not None
        equal(leaf.grad.to_torch(), VALUES * times)


def test_threads_with_a_graph_each_and_one_that_all_share(x: dtorch.Tensor) -> None:
    failures: list[BaseException] = []
    shared = x + 0.0

    def work(number: int) -> None:
        try:
            mine = dtorch.Tensor(VALUES, MESH, [Shard(0)], requires_grad=True)
            for i in range(40):
                y = (mine * float(number) + shared.detach()).tanh()
                y.sum().backward()
                w = shared * float(i)
                v = w.view(-1)
                v.add_(float(number))
                expected = VALUES * i + number
                equal(w.to_torch(), expected)
                equal((w - mine).detach().to_torch(), expected - VALUES)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_backward_from_another_thread(x: dtorch.Tensor) -> None:
    leaf = dtorch.Tensor(VALUES, MESH, [Shard(1)], graph=x.graph, requires_grad=True)
    for times in range(1, 5):
        loss = (leaf * x).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        assert leaf.grad is not None
        equal(leaf.grad.to_torch(), VALUES * times)
