"""What fusing saves, by arithmetic: bytes, calls, and the time that follows from both.

A chain of K element-wise operators on N elements of b bytes moves `2 K N b` bytes, one read and one write
each; fused it moves `2 N b`. The ratio of bytes is K. The ratio of times is less, since the steps between
still pass through on-chip memory, `rho` times as fast as the memory off the chip:

    S = K / (1 + (K - 1) / rho)                 1 at rho = 1, K as rho grows

A call costs `t(n) = a + b_el n` on n elements: a fixed part and a part per element. Half is fixed at
`n* = a / b_el`, and of a whole chain the fixed part is `1 / (1 + n / n*)`.

Fusing changes no FLOPs, as long as it uses no algebra: merging a chain of affine steps into one step, or
skipping the masked half of attention, does change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtorch.errors import ModelError


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes moved before and after fusing.

    Args:
        name: what is fused.
        unfused: bytes of all reads and writes, operator by operator.
        fused: bytes that still cross the border of the fused region.
    """

    name: str
    unfused: int
    fused: int

    @property
    def ratio(self) -> float:
        """How many times fewer bytes."""
        return self.unfused / self.fused


@dataclass(frozen=True, slots=True)
class CallCost:
    """`t(n) = fixed_s + element_s n`: what one call on n elements costs, in seconds."""

    fixed_s: float
    element_s: float

    def __call__(self, n: int) -> float:
        return self.fixed_s + self.element_s * n

    @property
    def half_n(self) -> float:
        """n*, the number of elements at which half of a call is its fixed part."""
        return self.fixed_s / self.element_s

    def fixed_share(self, n: int) -> float:
        """The fixed part of a call, or of a chain of calls, on n elements, from 0 to 1."""
        return 1 / (1 + n / self.half_n)


def chain(steps: int, elements: int, itemsize: int = 4, name: str = "") -> Ledger:
    """A chain of element-wise steps: `2 K N b` against `2 N b` bytes.

    Raises:
        ModelError: no step.
    """
    if steps < 1:
        raise ModelError(f"a chain has at least 1 step, got {steps}")
    once = 2 * elements * itemsize
    return Ledger(name or f"chain of {steps} steps", steps * once, once)


def rms_norm(elements: int, itemsize: int = 4) -> Ledger:
    """RMSNorm as four passes (square, mean and rsqrt, scale, weight) against one."""
    once = 2 * elements * itemsize
    return Ledger("RMSNorm, 4 passes", 4 * once, once)


def softmax(elements: int, itemsize: int) -> Ledger:
    """Softmax in five steps, max R, subtract RW, exp RW, sum R, divide RW: 8 passes; fused: RW."""
    return Ledger("softmax, 5 steps", 8 * elements * itemsize, 2 * elements * itemsize)


def epilogue(rows: int, columns: int, itemsize: int = 4) -> Ledger:
    """Bias and activation after a product [rows, columns]: one write and two times RW; or one write."""
    once = rows * columns * itemsize
    return Ledger("bias and activation after a matrix product", 5 * once, once)


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of unfused attention: B sequences of S tokens, H heads, model width d, b bytes per element."""

    batch: int
    heads: int
    tokens: int
    width: int
    itemsize: int = 2

    @property
    def input_bytes(self) -> int:
        """The activations [B, S, d]."""
        return self.batch * self.tokens * self.width * self.itemsize

    @property
    def scores_bytes(self) -> int:
        """The scores [B, H, S, S]."""
        return self.batch * self.heads * self.tokens**2 * self.itemsize

    @property
    def blow_up(self) -> float:
        """Scores over input: H S / d."""
        return self.heads * self.tokens / self.width

    def softmax(self) -> Ledger:
        """The softmax over the scores."""
        return softmax(self.batch * self.heads * self.tokens**2, self.itemsize)


def causal_share(tokens: int, block: int = 1) -> float:
    """The share of attention scores that a causal mask keeps when blocks of `block` tokens are skipped whole.

    `(n + 1) / (2 n)` for n blocks a side: `(S + 1) / (2 S)` by single scores.

    Raises:
        ModelError: the tokens are no whole number of blocks.
    """
    if block < 1 or tokens < 1 or tokens % block:
        raise ModelError(f"{tokens} tokens are no whole number of blocks of {block}")
    blocks = tokens // block
    return (blocks + 1) / (2 * blocks)


def chain_speedup(steps: int, rho: float) -> float:
    """`K / (1 + (K - 1) / rho)`: a fused chain against an unfused one where memory bounds both.

    Raises:
        ModelError: `rho` is not positive, or no step.
    """
    if not rho > 0 or steps < 1:
        raise ModelError(f"a chain of {steps} steps at rho = {rho}: at least 1 step, rho above 0")
    return steps / (1 + (steps - 1) / rho)


def merged_step(steps: int, scale: float, shift: float) -> tuple[float, float]:
    """(scale, shift) of the one affine step that equals `steps` times `h <- scale h + shift`."""
    whole = scale**steps
    return whole, shift * (steps if scale == 1 else (whole - 1) / (scale - 1))


def fit_call_cost(points: Sequence[tuple[int, float]]) -> CallCost:
    """The least-squares line through (elements, seconds).

    Raises:
        ModelError: fewer than two sizes, or times that do not grow with size.
    """
    count = len(points)
    mean_n = sum(n for n, _ in points) / max(count, 1)
    mean_t = sum(t for _, t in points) / max(count, 1)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    if not spread:
        raise ModelError("a line needs times at two sizes or more")
    slope = sum((n - mean_n) * (t - mean_t) for n, t in points) / spread
    fixed = mean_t - slope * mean_n
    if slope <= 0 or fixed <= 0:
        raise ModelError(
            f"the times fit {fixed:.3g} s + {slope:.3g} s per element; both have to be positive. Measure "
            "again "
            "on a quieter machine"
        )
    return CallCost(fixed, slope)
