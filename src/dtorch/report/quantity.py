"""Numbers with units, as tables, pages and figures write them: three digits, decimal prefixes.

Halves are rounded up, as browsers do: a page and a table say the same number.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

_THREE_DIGITS = Context(prec=3, rounding=ROUND_HALF_UP)

_UNITS = (
    (1e18, "E"),
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
)


def quantity(value: float | None, unit: str = "") -> str:
    """12.3 MB, with decimal prefixes, below one only for seconds; a dash for None."""
    if value is None:
        return "-"
    for scale, prefix in _UNITS if unit == "s" else _UNITS[:7]:
        # What rounds to 1000 of a unit is 1 of the next.
        if abs(value) >= scale * 0.9995:
            return f"{_digits(value / scale)} {prefix}{unit}".strip()
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three digits, without an exponent where the number is of everyday size: 999.6 is 1000 and not 1e+03."""
    rounded = float(_THREE_DIGITS.create_decimal(value))
    return f"{rounded:.3g}" if abs(rounded) < 1000 else f"{rounded:.0f}"


def share(part: float, whole: float) -> str:
    """12.3 %; a dash where there is no whole."""
    if not whole:
        return "-"
    return f"{Decimal(100 * part / whole).quantize(Decimal('0.1'), ROUND_HALF_UP)} %"
