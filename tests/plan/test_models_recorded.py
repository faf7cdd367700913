"""Models recorded ahead: bit for bit what they give run at once, and how many plans they make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from dtorch.graph.constructor import GraphConstructor
from dtorch.plan import cache
from dtorch.plan.pieces import MIN_NODES
from tests.models.test_models import MESHES, MODELS, VOCABULARY, batch_for, built, on

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.models


def graph_of(eager: bool) -> dtorch.Graph:
    """This thread's graph, made anew."""
    graph = dtorch.Graph()
    graph.constructor.eager = eager
    return graph


def trained(
    monkeypatch: pytest.MonkeyPatch, name: str, mesh_name: str, eager: bool, steps: int = 4
) -> list[torch.Tensor]:
    """Losses, logits, parameters and gradients of some steps of training with dropout."""
    graph = graph_of(eager)
    monkeypatch.setattr(dtorch.Graph, "default_graph", staticmethod(lambda: graph))
    _, model, mesh = built(name, mesh_name)
    model.train()
    ids, labels, mask = batch_for(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(7)
    found: list[Any] = []
    for _ in range(steps):
        out = model(on(mesh, ids), labels=on(mesh, labels), attention_mask=on(mesh, mask))
        out.loss.backward()
        optimizer.step()
        found += [out.loss.detach(), out.logits.detach()]
        found += [p.grad for p in model.parameters() if p.grad is not None]
        optimizer.zero_grad()
    found += [p.detach() for p in model.parameters()]
    assert model.device.type == "cpu"
    assert next(model.parameters()).graph is graph
    return [tensor.to_torch() for tensor in found]


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch, name: str, mesh_name: str) -> None:
    expected = trained(monkeypatch, name, mesh_name, eager=True)
    found = trained(monkeypatch, name, mesh_name, eager=False)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mesh_name", ["one", "dp x tp"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generated_tokens_are_the_same(monkeypatch: pytest.MonkeyPatch, name: str, mesh_name: str) -> None:
    tokens = []
    for eager in (True, False):
        graph = graph_of(eager)
        monkeypatch.setattr(dtorch.Graph, "default_graph", staticmethod(lambda graph=graph: graph))
        _, model, mesh = built(name, mesh_name)
        ids, _, _ = batch_for(name)
        torch.manual_seed(3)
        got = model.eval().generate(on(mesh, ids), max_new_tokens=12, do_sample=True)
        tokens.append(got.to_torch())
    assert torch.equal(*tokens)


def test_training_makes_no_plan_after_the_third_step() -> None:
    _, model, mesh = built("llama", "dp x tp")
    ids, labels, mask = batch_for("llama")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    counts = []
    for _ in range(7):
        out = model(on(mesh, ids), labels=on(mesh, labels), attention_mask=on(mesh, mask))
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.loss.item()
        counts.append((dtorch.plan_stats().made, dtorch.plan_stats().interpreted))
    assert counts[2:] == [counts[2]] * 5, counts


@pytest.mark.recorded
@pytest.mark.parametrize("kind", ["static", "static on the mesh", "growing"])
def test_generating_makes_no_plan_after_the_second_token(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nor after the third, where the cache grows. What is interpreted then grows, or is short."""
    GraphConstructor.forget()
    cache.forget()
    _, model, mesh = built("llama", "dp x tp")
    ids = torch.randint(1, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(1))
    made: list[int] = []
    lengths: list[list[int]] = []
    interpret = cache.interpret

    def counting(running: Any, nodes: Any, *args: Any) -> None:
        lengths[-1].append(len(nodes))
        interpret(running, nodes, *args)

    class Counting(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            """As often as there are tokens, before each."""
            made.append(dtorch.plan_stats().made)
            lengths.append([])
            return scores

    lengths.append([])
    monkeypatch.setattr(cache, "interpret", counting)
    options = {"disable_compile": True, "do_sample": False, "logits_processor": [Counting()]}
    if kind == "static":
        options["cache_implementation"] = "static"
    elif kind == "static on the mesh":
        options["cache"] = transformers.StaticCache(config=model.config, max_cache_len=5 + 64)
        with dtorch.device_mesh(mesh):
            options["cache"].early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
    model.eval().generate(on(mesh, ids), max_new_tokens=64, **options)
    assert len(made) == 64
    settled = 2 if kind == "growing" else 1
    assert made[settled:] == [made[settled]] * (64 - settled), made
    assert max(max(found) for found in lengths[3:64]) < MIN_NODES, lengths
    assert max(sum(found) for found in lengths[3:64]) <= 12, lengths
