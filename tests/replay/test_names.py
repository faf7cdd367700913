"""Capture: the names that code looks up tell what it reaches."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.replay import capture
from dtorch.replay.roots import MAX_REACHED

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
FACTOR = 2.0

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


def test_an_attribute_is_not_the_global_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    state, x = types.SimpleNamespace(epoch=2.0), sharded(torch.ones(4, 2))
    captured = capture(lambda x: x * state.epoch)
    for epoch in range(5):
        monkeypatch.setitem(globals(), "epoch", epoch)
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 2.0))
    assert captured.stats().replays == 2


def test_a_global_that_inner_code_uses_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, x = capture(lambda x: x * sum(FACTOR for _ in range(1))), sharded(torch.ones(4, 2))
    captured.capture(x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 3.0))


@pytest.mark.parametrize("reached", ["imported inside", "from", "a variable", "within a package"])
def test_a_module_is_watched_however_it_is_reached(reached: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, package = types.ModuleType("own_settings"), types.ModuleType("own_package")
    settings.factor, package.settings = 2.0, settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_settings", settings)
    monkeypatch.setitem(globals(), "own_package", package)

    def imported(x: torch.Tensor) -> torch.Tensor:
        import own_settings  # type: ignore[import-not-found]

        return x * own_settings.factor

    def imported_from(x: torch.Tensor) -> torch.Tensor:
        from own_settings import factor

        return x * factor

    functions = {
        "imported inside": imported,
        "from": imported_from,
        "a variable": lambda x: x * settings.factor,
        "within a package": lambda x: x * own_package.settings.factor,  # type: ignore[name-defined]  # noqa: F821
    }
    captured, x = capture(functions[reached]), sharded(torch.ones(4, 2))
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0):
        settings.factor = factor  # type: ignore[attr-defined]
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), factor))
    assert captured.stats().replays == 1


def test_attributes_of_a_function_are_watched() -> None:
    def config() -> None:
        pass

    captured, x = capture(lambda x: x * config.factor), sharded(torch.ones(4, 2))  # type: ignore[attr-defined]
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0):
        config.factor = factor  # type: ignore[attr-defined]
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), factor))
    assert captured.stats().replays == 1


@pytest.mark.parametrize("use", [
    lambda x: x * globals()["FACTOR"],
    lambda x: x * eval("FACTOR"),
    lambda x: x * globals()["FAC" + "TOR"],
])  # fmt: skip
def test_globals_that_no_code_spells_are_watched(use: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__loader__", [object() for _ in range(MAX_REACHED + 1)])
    captured, x = capture(use), sharded(torch.ones(4, 2))
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), factor))
    assert captured.stats().replays == 1


def test_what_a_captured_function_within_another_reaches_is_watched() -> None:
    factor = 2.0
    inner = capture(lambda x: x * factor)
    outer, x = capture(lambda x: inner(x) + 1), sharded(torch.ones(4, 2))
    inner.capture(x)
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0):
        assert torch.equal(outer(x).to_torch(), torch.full((4, 2), factor + 1))
    assert outer.stats().replays == 2
    assert torch.equal(inner(x).to_torch(), torch.full((4, 2), 3.0))
