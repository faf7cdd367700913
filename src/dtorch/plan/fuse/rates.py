"""How fast this machine makes calls, moves bytes and works, as whole numbers: what regions are priced by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rates:
    """What fusing is priced by, for one thread of a processor.

    Attributes:
        call_ns: a, what one call of torch costs beside its bytes.
        chip, memory: bytes per microsecond of a working set in the caches, and beyond them; rho is their
            ratio.
        cache_bytes: the working set up to which it is in the caches.
        region_ns: what a call of compiled code costs beside its bytes.
        input_ns: the same for each input that it takes.
        number_ns: for the numbers that a call gives anew, which are handed over in one input.
        flops: floating-point operations of a float32 product in a microsecond.
        fresh: bytes per microsecond of memory that the operating system gives anew when it is first touched.
        step_ps: picoseconds that an element takes in a compiled loop for each call, in registers.
        element_ps: picoseconds that an element takes in the caches, by operator; of others its bytes alone.
        compiled_ps: the same of compiled code, where it is slower or much faster than torch's.
    """

    call_ns: int
    chip: int
    memory: int
    cache_bytes: int
    region_ns: int = 2000
    input_ns: int = 500
    number_ns: int = 1000
    flops: int = 90_000
    fresh: int = 3000
    step_ps: int = 15
    element_ps: dict[str, int] = field(default_factory=dict)
    compiled_ps: dict[str, int] = field(default_factory=dict)

    @property
    def rho(self) -> float:
        """On-chip over off-chip bandwidth."""
        return self.chip / self.memory

    def moved_ns(self, nbytes: int, held: int | None = None) -> int:
        """What it takes to read and write bytes.

        Args:
            nbytes: read and written.
            held: bytes that they lie in; the same, if None.
        """
        rate = self.chip if (nbytes if held is None else held) <= self.cache_bytes else self.memory
        return nbytes * 1000 // rate


ASSUMED = Rates(
    call_ns=1500,
    chip=70_000,
    memory=15_000,
    cache_bytes=24 * 2**20,
    element_ps={
        "aten.exp": 825, "aten.tanh": 2500, "aten.gelu": 650, "aten.sigmoid": 440, "aten.silu": 560,
        "aten.log": 1010, "aten.pow": 2540, "aten.sin": 1230, "aten.cos": 1310, "aten.erf": 1270,
        "aten.div": 140, "aten.sqrt": 430, "aten.rsqrt": 290,
    },
    compiled_ps={
        "aten.gelu": 1500, "aten.exp": 390, "aten.tanh": 1590, "aten.log": 640, "aten.sin": 390,
        "aten.cos": 390, "aten.erf": 635, "aten.sqrt": 235,
    },
)  # fmt: skip
"""Where nothing was measured: a server's core, about."""

measured: Callable[[], Rates | None] = lambda: None  # noqa: E731  (set by what measures)


def present() -> Rates:
    """What was measured on this machine, else what is assumed."""
    return measured() or ASSUMED
