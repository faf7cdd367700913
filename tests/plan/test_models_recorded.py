"""Models recorded ahead: bit for bit what they give run at once, and how many plans they make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from dtorch.graph.constructor import GraphConstructor
from dtorch.plan import cache
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


@pytest.mark.parametrize("kind", ["static", "growing"])
def test_generating_makes_no_plan_after_the_second_token(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Only calls on what grows are interpreted then: `input_ids` and its mask, and the cache if it does."""
    GraphConstructor.forget()
    _, model, mesh = built("llama", "dp x tp")
    ids = torch.randint(1, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(1))
    counts: list[tuple[int, int]] = []
    interpreted: list[int] = []
    interpret = cache.interpret

    def counting(running: Any, nodes: Any, *args: Any) -> None:
        interpreted.append(len(nodes))
        interpret(running, nodes, *args)

    class Counting(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            """As often as there are tokens, before each."""
            counts.append((dtorch.plan_stats().made, sum(interpreted)))
            interpreted.clear()
            return scores

    monkeypatch.setattr(cache, "interpret", counting)
    options = {"disable_compile": True, "do_sample": False, "logits_processor": [Counting()]}
    if kind == "static":
        options["cache_implementation"] = "static"
    model.eval().generate(on(mesh, ids), max_new_tokens=64, **options)
    assert len(counts) == 64
    assert {made for made, _ in counts[2:]} == {counts[2][0]}, counts
    assert max(nodes for _, nodes in counts[3:]) <= 8, counts
