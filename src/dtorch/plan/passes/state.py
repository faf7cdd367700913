"""What plans are written under: which passes are switched off, and what `dtorch.optimize` allows."""

from __future__ import annotations

from typing import NamedTuple

from dtorch.inductor import mode


class State(NamedTuple):
    """What plans are written under.

    Attributes:
        off: names of the passes that are switched off.
        mode: "exact", "fast" or "off", as `dtorch.optimize` chooses.
    """

    off: frozenset[str]
    mode: str

    def runs(self, name: str, exact: bool) -> bool:
        """Whether a pass of a name runs; one that changes rounding does under "fast" alone."""
        return name not in self.off and (exact or self.mode == "fast")


_off: frozenset[str] = frozenset()
_STATES: dict[tuple[frozenset[str], str | None], State] = {}


def present() -> State:
    """What plans are written under from now on; asked at each run, so the same object for the same choice."""
    key = _off, mode.chosen()
    found = _STATES.get(key)
    if found is None:
        found = _STATES[key] = State(_off, mode.mode())
    return found


def switched_off() -> frozenset[str]:
    """Names of the passes that are switched off."""
    return _off


def switch_off(names: frozenset[str]) -> None:
    """Switch off these passes and no others; plans that were written under another choice are kept for it."""
    global _off
    _off = names
