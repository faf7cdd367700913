"""One HTML page with everything in it: pictures, tables, sentences; nothing is fetched."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import torch

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
th small { display: block; font-weight: 400; opacity: .65; }
img { max-width: 100%; background: white; border-radius: 6px; }
li { margin: .2rem 0; } section { border-top: 1px solid var(--line); margin-top: 1.5rem; }
.scroll { overflow-x: auto; }
"""


def save_page(
    results: Mapping[str, Result], settings: Settings, figures: Mapping[str, Path], folder: Path
) -> Path:
    """Writes index.html into `folder` and returns its path."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>dtorch lab</title><style>{_STYLE}</style><h1>Fusing and replaying, on this machine</h1>",
        f"<p>torch {escape(torch.__version__)}, one thread. Under each heading: where its numbers come "
        "from.</p>",
        *(_picture(title, path) for title, path in figures.items()),
        *(_section(results[letter]) for letter in sorted(results)),
    ]
    path = folder / "index.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _picture(title: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<p><img alt='{escape(title, quote=True)}' src='data:image/png;base64,{data}'></p>"


def _section(result: Result) -> str:
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in result.conclusions)
    tables = "".join(_table(table) for table in result.tables)
    return f"<section><h2>[{result.letter}] {escape(result.title)}</h2><ul>{said}</ul>{tables}</section>"


def _table(table: Table) -> str:
    head = "".join(_heading(column) for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(row[column.key]))}</td>" for column in table.columns) + "</tr>"
        for row in table.rows
    )
    title = escape(table.title)
    return f"<div class=scroll><table><caption>{title}</caption><tr>{head}</tr>{body}</table></div>"


def _heading(column: Column) -> str:
    unit = f", {escape(column.unit)}" if column.unit else ""
    return f"<th scope=col>{escape(column.heading)}{unit}<small>{column.tag}</small></th>"


def shown(value: Any) -> str:
    """A value as a reader wants it: four digits, thousands marked, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
