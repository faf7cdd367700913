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

    def runs(self, name: str, modes: tuple[str, ...]) -> bool:
        """Whether a pass of a name runs that runs under these modes."""
        return name not in self.off and self.mode in modes

    @property
    def exact(self) -> State:
        """The same without what rounds otherwise: for a plan that outlives the choice."""
        return self._replace(mode="exact") if self.mode == "fast" else self


_off: frozenset[str] = frozenset()


def present() -> State:
    """What plans are written under from now on; asked at each run, so that the option counts as it is then.

    Raises:
        OptionError: `DTORCH_OPTIMIZE` is none of the modes, and `dtorch.optimize` has chosen nothing.
    """
    return State(_off, mode.mode())


def switched_off() -> frozenset[str]:
    """Names of the passes that are switched off."""
    return _off


def switch_off(names: frozenset[str]) -> None:
    """Switch off these passes and no others; plans that were written under another choice are kept for it."""
    global _off
    _off = names
