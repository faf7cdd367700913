"""A report as one HTML page that needs no network: data, style, script and plotly's script are all inside."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

from dtorch.report import roofline, views
from dtorch.report.assets import asset
from dtorch.report.extra import need

_SCRIPTS = ("format.js", "figures.js", "table.js", "page.js")


def save_html(data: views.Data, path: str | Path) -> None:
    """Write the page of a report.

    Raises:
        DtorchError: plotly is not installed.
    """
    Path(path).write_text(page(data), encoding="utf-8")


def page(data: views.Data) -> str:
    """The page of a report; about 5 MB, nearly all of it plotly's script.

    Names from the user's code enter as JSON inside the page and are shown as text, never as markup; a
    policy in the page's head forbids every request.

    Raises:
        DtorchError: plotly is not installed.
    """
    # Markup inside a script element would end it, wherever in a string it stands.
    both = {"report": data, "views": _views(data)}
    embedded = json.dumps(both, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(asset("page.html")).substitute(
        title=html.escape(str(data["title"])),
        css=asset("page.css"),
        data=embedded,
        plotly=need("plotly.offline").get_plotlyjs(),
        script="\n".join(map(asset, _SCRIPTS)),
    )


def _views(data: views.Data) -> Mapping[str, Any]:
    """What the figures show, worked out where tables and other figures have it from."""
    bounds = views.by_bound(data)
    phases = [group for group in views.by_phase(data) if group.time]
    return {
        "roofline": _chart(roofline.roofs(data), roofline.points(data)),
        "moves": _chart(roofline.byte_roofs(data), roofline.moves(data)),
        "modules": views.module_tree(data, apart=False),
        "modules_apart": views.module_tree(data),
        "module_groups": [{"name": group.name, **views.sums(group)} for group in views.by_module(data)],
        "exchanges": [asdict(exchange) for exchange in views.exchanges(data)],
        "timeline": [asdict(segment) for segment in views.timeline(data)],
        "bounds": [{"name": name, "time": time} for name, time in bounds.items()],
        "phases": [{"name": group.name, "time": group.time} for group in phases],
        "busy": sum(bounds.values()),
        "measured": views.measured(data),
        "utilisation": roofline.utilisation(data),
    }


def _chart(roofs: list[roofline.Roof], points: list[roofline.Point]) -> dict[str, Any]:
    return {
        "roofs": [{**asdict(roof), "ridge": roof.ridge} for roof in roofs],
        "points": [asdict(point) for point in points],
    }
