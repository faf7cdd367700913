"""[F3] Kernels of a decode step of a Llama: counted by hand, unfused and fused, and in a recorded model."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.lab.timelines import model
from dtorch.perf.device import described_mesh
from dtorch.perf.dry_run import dry_run
from dtorch.perf.kernels import WEIGHT_GEMM, kernel_counts
from dtorch.perf.recording import Recording


def decode(settings: Settings, before: Mapping[str, Result]) -> Result:
    """The list of the settings, what launches alone cost of it, and the same counted in a model that runs."""
    unfused, fused = settings.unfused.spelling, settings.fused.spelling
    many, few = unfused.total(settings.layers), fused.total(settings.layers)
    floor_us = many * model(settings).launch
    tables, said = [_by_hand(settings)], []
    said.append(
        f"By hand a step of {settings.layers} layers launches {many} kernels, and {few} when what is "
        f"element-wise is fused, {many / few:.2f}x fewer. At {settings.launch.launch_us:g} us a launch, "
        f"launching the {many} takes {floor_us:,.0f} us, however short they are."
    )
    if not settings.record or importlib.util.find_spec("transformers") is None:
        return Result("F3", "Kernels of a decode step", tuple(tables), tuple(said))
    counts = kernel_counts(_recorded(settings.layers))
    total = sum(counts.values())
    tables.append(_counted(counts))
    said.append(
        f"Recorded, a Llama-3-8B of {settings.layers} layers launches {total}, of which "
        f"{counts[WEIGHT_GEMM]} multiply by a weight ({7 * settings.layers} and the output head)."
    )
    return Result("F3", "Kernels of a decode step", tuple(tables), tuple(said))


def _by_hand(settings: Settings) -> Table:
    rows: list[dict[str, Any]] = []
    for kernels, column in ((settings.unfused, "unfused"), (settings.fused, "fused")):
        times = ((kernels.layer, settings.layers), (kernels.once, 1))
        for what, count in (
            (what, count * repeat) for listed, repeat in times for what, count in listed.items()
        ):
            rows.append({"what": what, "unfused": None, "fused": None} | {column: count})
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("unfused", "fused")}
    return Table(
        "Counted by hand",
        (
            Column("what", "kernel", tag="published"),
            Column("unfused", "unfused", "", "published"),
            Column("fused", "fused", "", "published"),
        ),
        (*rows, {"what": "all", **totals}),
    )


def _counted(counts: Mapping[str, int]) -> Table:
    rows = [{"kind": kind, "kernels": count} for kind, count in counts.items()]
    return Table(
        "Counted in a recorded step of Llama-3-8B, one token",
        (Column("kind", "kind", tag="given"), Column("kernels", "kernels", "", "measured")),
        (*rows, {"kind": "all", "kernels": sum(counts.values())}),
    )


def _recorded(layers: int) -> Recording:
    """One token after a prompt of sixteen, at full width; nothing is computed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    mesh, step = described_mesh("h100-sxm"), Recording()
    with dry_run(mesh), torch.no_grad():
        llama = LlamaForCausalLM(config).eval()
        cache = llama(torch.zeros(1, 16, dtype=torch.int64), use_cache=True).past_key_values
    with dry_run(mesh, into=step), torch.no_grad():
        llama(torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    return step
