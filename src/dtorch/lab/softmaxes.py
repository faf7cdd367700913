"""[E] A softmax in five steps: what bounds it here, memory or arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.perf import measure
from dtorch.perf.fusion import softmax

MIB = 1024**2


def softmaxes(settings: Settings, before: Mapping[str, Result]) -> Result:
    """Five steps over the whole, over blocks of rows, and torch's own kernel, beside their memory floors."""
    x = torch.linspace(-4, 4, _numel(settings)).view(settings.softmax_shape)
    y = torch.empty_like(x)
    blocks = list(zip(x.split(settings.softmax_rows, 1), y.split(settings.softmax_rows, 1)))
    off_chip = before["B"].values["off_chip"]
    ledger = softmax(x.numel(), x.element_size())

    def blocked() -> None:
        for source, target in blocks:
            _five_steps(source, target)

    each = settings.seconds_each
    forms = {
        "five steps": (measure.seconds(lambda: _five_steps(x, y), each), ledger.unfused),
        f"five steps, {settings.softmax_rows} rows at a time": (measure.seconds(blocked, each), ledger.fused),
        "torch.softmax": (measure.seconds(lambda: torch.softmax(x, -1, out=y), each), ledger.fused),
    }
    rows = tuple(
        {
            "form": name,
            "time": 1e3 * time,
            "bytes": nbytes / MIB,
            "floor": 1e3 * nbytes / off_chip,
            "over": time * off_chip / nbytes,
        }
        for name, (time, nbytes) in forms.items()
    )
    whole, cut = rows[0], rows[1]
    exp_ms = 1e3 * measure.seconds(lambda: torch.exp(x, out=y), each)
    bound = "memory" if whole["over"] < 2 else "arithmetic"
    return Result(
        "E",
        "Softmax: bound by memory or by arithmetic",
        (
            Table(
                f"Softmax of {list(settings.softmax_shape)}, float32",
                (
                    Column("form", "form", tag="given"),
                    Column("time", "time", "ms"),
                    Column("bytes", "bytes", "MiB", "modelled"),
                    Column("floor", "memory floor", "ms", "modelled"),
                    Column("over", "time / floor", "x", "modelled"),
                ),
                rows,
            ),
        ),
        (
            f"The five steps take {whole['over']:.2f}x what their bytes take from memory: here {bound} "
            f"bounds them. The exponential alone takes {exp_ms:.2f} ms of {whole['time']:.2f} ms.",
            f"By blocks of {settings.softmax_rows} rows they run {whole['time'] / cut['time']:.2f}x as "
            f"fast; the bytes alone would allow {ledger.ratio:g}x.",
        ),
        {"exp_ms": exp_ms},
    )


def _numel(settings: Settings) -> int:
    batch, rows, columns = settings.softmax_shape
    return batch * rows * columns


def _five_steps(x: torch.Tensor, y: torch.Tensor) -> None:
    top = x.amax(-1, keepdim=True)
    torch.sub(x, top, out=y)
    torch.exp(y, out=y)
    total = y.sum(-1, keepdim=True)
    torch.div(y, total, out=y)
