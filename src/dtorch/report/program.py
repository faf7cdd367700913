"""Pricing a program that is a file: what `dtorch price FILE` does.

The file has a function `build(mesh) -> (model, arguments)`, arguments being a tuple or a dict. It is called
inside a dry run on the described mesh, so it may build a model of any size and lay it out:

    def build(mesh):
        model = MyModel()
        dtorch.parallelize(model, mesh, {"*.weight": {"tp": Shard(0)}})
        return model, (torch.zeros(1, 4096, dtype=torch.int64),)
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtorch.errors import MeshError, UnsupportedError
from dtorch.perf.device import described_mesh
from dtorch.perf.dry_run import dry_run
from dtorch.report.price import price
from dtorch.report.report import Report


def parse_mesh(text: str) -> dict[str, int]:
    """Axis names and sizes of "dp=2,tp=8".

    Raises:
        MeshError: the text is none such.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if (
            not equals
            or not name
            or name in found
            or not size.isascii()
            or not size.isdigit()
            or int(size) < 1
        ):
            raise MeshError(f"mesh {text!r}: write axes as name=size, each name once, such as dp=2,tp=8")
        found[name] = int(size)
    return found


def price_program(
    path: str | os.PathLike[str],
    *,
    device: Any,
    mesh: Mapping[str, int] | None = None,
    axis_links: Any = None,
    **options: Any,
) -> Report:
    """The price of a program file.

    Args:
        path: the file; see above for what it has.
        device: as of `dtorch.described_mesh`.
        mesh: axis name -> size; one device by default.
        axis_links: as of `dtorch.described_mesh`.
        options: backward, optimizer, strict, roof, title, as of `dtorch.price`.

    Raises:
        UnsupportedError: the file is not there, or has no such `build`.
        DeviceError, MeshError: as `dtorch.described_mesh`.
    """
    file = Path(path)
    if not file.is_file():
        raise UnsupportedError(f"{file}: no such file")
    axes = dict(mesh or {"device": 1})
    there = described_mesh(device, tuple(axes.values()), axis_links=axis_links, mesh_dim_names=tuple(axes))
    build = runpy.run_path(str(file), run_name=file.stem).get("build")
    if not callable(build):
        raise UnsupportedError(
            f"{file} has no function build(mesh) -> (model, arguments); give it one that ends in, "
            "for example, `return model, (x,)`"
        )
    with dry_run(there):
        built = build(there)
    if not isinstance(built, tuple) or len(built) != 2 or not isinstance(built[1], (tuple, dict)):
        raise UnsupportedError(
            f"{file}: build(mesh) gives (model, arguments), arguments a tuple or a dict; for one tensor, "
            "`return model, (x,)`"
        )
    model, arguments = built
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    return price(model, *args, **{"mesh": there, "title": file.stem, **options}, **kwargs)
