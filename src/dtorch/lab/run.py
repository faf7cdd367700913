"""Runs experiments in an order in which each finds what it stands on, and saves what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dtorch.errors import OptionError
from dtorch.lab.chains import chains, shares
from dtorch.lab.decode import decode
from dtorch.lab.ledgers import ledgers
from dtorch.lab.machine import bandwidths, calls
from dtorch.lab.result import Result
from dtorch.lab.settings import Settings
from dtorch.lab.softmaxes import softmaxes
from dtorch.lab.timelines import sweep, timeline


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment: its function, the letters of those it stands on, and what it does in a few words."""

    function: Callable[[Settings, Mapping[str, Result]], Result]
    needs: tuple[str, ...]
    about: str


EXPERIMENTS = {
    "A": Experiment(ledgers, (), "byte ledgers"),
    "B": Experiment(bandwidths, (), "bandwidth and working set"),
    "C": Experiment(chains, ("B", "D"), "a chain in four forms"),
    "D": Experiment(calls, (), "the floor of a call"),
    "E": Experiment(softmaxes, ("B",), "what bounds a softmax"),
    "F1": Experiment(timeline, (), "timeline of launches"),
    "F2": Experiment(sweep, (), "where replaying stops paying"),
    "F3": Experiment(decode, (), "kernels of a decode step"),
    "F4": Experiment(shares, ("C", "D"), "fewer calls or fewer bytes"),
}


def chosen(names: Iterable[str]) -> list[str]:
    """The letters to run for these names and what they stand on, in order; "all" is every one.

    Raises:
        OptionError: a name that is no experiment.
    """
    order: list[str] = []

    def add(letter: str) -> None:
        for needed in EXPERIMENTS[letter].needs:
            add(needed)
        if letter not in order:
            order.append(letter)

    for name in names:
        if name.lower() != "all" and name.upper() not in EXPERIMENTS:
            raise OptionError(f"no experiment {name!r}: there are all, {', '.join(EXPERIMENTS)}")
        for letter in EXPERIMENTS if name.lower() == "all" else [name.upper()]:
            add(letter)
    return order


def run(
    names: Iterable[str] = ("all",),
    settings: Settings | None = None,
    tick: Callable[[str], None] = lambda about: None,
) -> dict[str, Result]:
    """The results by letter.

    Args:
        names: letters, or "all".
        settings: sizes and times; the defaults are those of `Settings`.
        tick: called with what is about to run, before each experiment.
    """
    settings = settings or Settings()
    results: dict[str, Result] = {}
    for letter in chosen(names):
        experiment = EXPERIMENTS[letter]
        tick(f"[{letter}] {experiment.about}")
        results[letter] = experiment.function(settings, results)
    return results


def save(results: Mapping[str, Result], settings: Settings, out: str | Path) -> list[Path]:
    """Writes lab.json, the figures and the page into the folder `out`, and returns their paths.

    Figures and page need matplotlib; without it only the JSON is written.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"settings": settings, "results": dict(sorted(results.items()))}
    written = [folder / "lab.json"]
    written[0].write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    try:
        from dtorch.lab.figures import save_figures
    except ImportError:
        return written
    from dtorch.lab.page import save_page

    figures = save_figures(results, settings, folder)
    return written + list(figures.values()) + [save_page(results, settings, figures, folder)]
