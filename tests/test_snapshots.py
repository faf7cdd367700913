"""Listings of recorded graphs as text: operators, placements and prices of one step of the demo.

Where one differs on purpose, `make snapshots` writes the files anew; the difference is to be read.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
from pathlib import Path

import pytest
import torch

import dtorch
from dtorch import Shard

FOLDER = Path(__file__).parent / "snapshots"
WRITE = os.environ.get("DTORCH_WRITE_SNAPSHOTS") == "1"


def portable(text: str) -> str:
    """A listing without folders and line numbers, which differ between machines and versions."""
    return re.sub(r"\S*[/\\]([^/\\\s]+\.py):\d+$", r"\1", text, flags=re.MULTILINE)


def compare(name: str, listings: dict[str, str], versions: str) -> None:
    """Hold listings against a file, or write it."""
    sections = [f"# {title}\n{portable(text)}\n" for title, text in listings.items()]
    text = f"# {versions}\n" + "\n".join(sections)
    path = FOLDER / name
    if WRITE:
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    if kept.splitlines()[0] != text.splitlines()[0]:
        pytest.skip(f"{name} is of {kept.splitlines()[0][2:]}, here is {versions}")
    difference = difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=1)
    assert kept == text, "\n".join([f"{name} differs; `make snapshots` if it should", *difference][:80])


@pytest.mark.models
def test_a_training_step_of_the_demo() -> None:
    """Forward, backward and AdamW of the Llama on 2 x 2 devices; the second step, the first makes state."""
    transformers = importlib.import_module("transformers")
    demo = importlib.import_module("examples.main_job")
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = dtorch.parallelize(transformers.LlamaForCausalLM(demo.config()), mesh, demo.PLAN).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    ids = demo.on_dp(torch.arange(demo.BATCH * demo.LENGTH).view(demo.BATCH, demo.LENGTH) % 256, mesh)
    listings = {}
    for _ in range(2):
        optimizer.zero_grad()
        with dtorch.record() as graph:
            loss = model(ids, labels=ids).loss
        listings["forward"] = graph.listing()
        with dtorch.record() as graph:
            loss.backward()
        listings["backward"] = graph.listing()
        with dtorch.record() as graph:
            optimizer.step()
        listings["AdamW"] = graph.listing()
    version = torch.__version__.partition("+")[0]
    compare("demo_step.txt", listings, f"torch {version}, transformers {transformers.__version__}")


def recorded(placement: dtorch.placement.Placement, size: int) -> str:
    """A listing of a product and a sum."""
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    x = dtorch.Tensor(torch.ones(4, size), mesh, [placement])
    with dtorch.record() as graph:
        (x @ torch.ones(size, 2)).relu()
    return graph.listing()


def test_a_line_tells_operator_placements_price_and_source() -> None:
    assert portable(recorded(Shard(0), 6)).splitlines() == [
        "   0  Matmul([4, 6] x [6, 2] -> [4, 2])  [Shard(0)], [Replicate()] -> [Shard(0)]  "
        "OperatorCost[flops=96]  test_snapshots.py",
        "   1  ReLU([4, 2] -> [4, 2], inplace=False)  [Shard(0)] -> [Shard(0)]  "
        "OperatorCost[bandwidthBytes=64]  test_snapshots.py",
    ]
    assert re.search(rf"  {re.escape(__file__)}:\d+\n.*  {re.escape(__file__)}:\d+$", recorded(Shard(0), 6))


@pytest.mark.parametrize(("placement", "size"), [(Shard(1), 6), (Shard(0), 5)])
def test_another_placement_or_price_differs(
    placement: dtorch.placement.Placement, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    monkeypatch.setitem(globals(), "WRITE", True)
    compare("one.txt", {"graph": recorded(Shard(0), 6)}, "now")
    monkeypatch.setitem(globals(), "WRITE", False)
    compare("one.txt", {"graph": recorded(Shard(0), 6)}, "now")
    with pytest.raises(AssertionError, match=r"one.txt differs; `make snapshots` if it should"):
        compare("one.txt", {"graph": recorded(placement, size)}, "now")


def test_public_names() -> None:
    """What users build on: a name or a parameter that goes, or changes, is a change for CHANGELOG.md."""
    shown = (f"{name}{_signature(getattr(dtorch, name))}" for name in sorted(dtorch.__all__))
    compare("public_names.txt", {"dtorch.__all__": "\n".join(shown)}, "names and parameters")


def _signature(value: object) -> str:
    """Parameters, without annotations and defaults, which Python's versions print in different ways."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return ""
    parameters = inspect.signature(value).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"({', '.join(stars.get(p.kind, '') + p.name for p in parameters)})"
