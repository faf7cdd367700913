"""What an experiment gives: tables whose columns say where their numbers come from, and sentences."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Tag = Literal["given", "measured", "published", "modelled"]
"""Where a number comes from: the settings, this machine, a source, or arithmetic on the others."""


class Column(msgspec.Struct, frozen=True):
    """A column: the key of its values in a row, its heading, their unit and where they come from."""

    key: str
    heading: str
    unit: str = ""
    tag: Tag = "measured"


class Table(msgspec.Struct, frozen=True):
    """A titled table; each row has a value, or None, for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]

    def column(self, key: str) -> list[Any]:
        """The values of one column, row by row."""
        return [row[key] for row in self.rows]


class Result(msgspec.Struct, frozen=True):
    """The outcome of one experiment.

    Args:
        letter: A to E, F1 to F4.
        title: what it is about.
        tables: its numbers.
        conclusions: sentences made from these numbers.
        values: single numbers that other experiments and the figures read, by name.
    """

    letter: str
    title: str
    tables: tuple[Table, ...]
    conclusions: tuple[str, ...]
    values: dict[str, Any] = {}
