"""Models captured and compiled: under "exact" bit for bit as uncompiled, under "fast" within its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from tests.models.test_models import MODELS, batch_for, built, on

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.models, pytest.mark.recorded, pytest.mark.compiler]
MESH_OF = {"llama": "dp x tp", "gpt2": "one", "bert": "tp"}


def step_of(name: str, trains: bool) -> tuple[Callable[[], list[torch.Tensor]], Any]:
    """A model's captured step of AdamW, or its captured logits; a call gives all that it makes and writes."""
    _, model, mesh = built(name, MESH_OF[name])
    model.eval().config.pad_token_id = None  # or GPT-2 looks for it among the tokens
    ids, labels = (on(mesh, tensor) for tensor in batch_for(name)[:2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not trains:
            with torch.no_grad():
                return model(ids).logits
        optimizer.zero_grad()
        out = model(ids, labels=labels)
        out.loss.backward()
        optimizer.step()
        return out.loss.detach()

    captured = dtorch.capture(step)

    def run() -> list[torch.Tensor]:
        made = captured(ids, labels)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found = [made, *gradients, *(p.detach() for p in model.parameters())]
        return [tensor.to_torch().clone() for tensor in found]

    return run, captured


def compiled(name: str, trains: bool, mode: str) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
    """The values of the sixth call, uncompiled and compiled, and what became of the compiled one."""
    found, why = [], ""
    for now in ("off", mode):
        with dtorch.optimize(now):
            run, captured = step_of(name, trains)
            for _ in range(5):
                run()
            captured.instantiate()
            found.append(run())
            why = captured.why()
            (course,) = captured._courses.values()
            fused = course.programs[0].plan.rewritten.fused
    return found[0], found[1], f"{why}, {len(fused)} fused regions"


@pytest.mark.parametrize("name", MODELS)
def test_exact_keeps_every_bit_of_a_training_step(name: str) -> None:
    uncompiled, made, why = compiled(name, True, "exact")
    assert why.startswith("replayed"), why
    assert ", 0 fused regions" not in why
    for a, b in zip(uncompiled, made, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_fast_logits_are_within_its_bound(name: str) -> None:
    uncompiled, made, why = compiled(name, False, "fast")
    assert "compiled (fast)" in why, why
    for a, b in zip(uncompiled, made, strict=True):
        assert (a - b).abs().max() <= 2e-5 * a.abs().max()
