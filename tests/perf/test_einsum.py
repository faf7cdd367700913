"""einsum of any arity: torch's own order, worked out by letters.

torch takes two operands at a time. Letters that one of them alone still has, and the output lacks, are summed
first; those of both that nothing later needs are contracted: 2 times the sizes of all letters that the two
have. Where nothing is contracted the product is element-wise, and not counted.
"""

from math import prod
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.perf.counting import flops
from tests.support import cases

SIZES = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))


def by_letters(operands: list[str], output: str) -> int:
    """FLOPs, two operands at a time from the left."""
    total, first, *rest = 0, set(operands[0]), *map(set, operands[1:])
    while rest:
        second, *rest = rest
        later = set(output).union(*rest)
        contracted = (first & second) - later
        alone = (first ^ second) - later
        letters = (first | second) - alone
        total += 2 * prod(SIZES[letter] for letter in letters) if contracted else 0
        first = letters - contracted
    return total


@st.composite
def equations(draw: Any) -> tuple[list[str], str]:
    operands = draw(
        st.lists(st.sets(st.sampled_from("abcde"), min_size=1, max_size=4), min_size=1, max_size=5)
    )
    present = sorted(set().union(*operands))
    output = draw(st.sets(st.sampled_from(present), max_size=3))
    return ["".join(sorted(letters)) for letters in operands], "".join(sorted(output))


@settings(max_examples=cases(60), deadline=None, derandomize=True, database=None)
@given(equations(), st.sampled_from(["no_grad", "inference"]))
def test_einsum(equation: tuple[list[str], str], way: str) -> None:
    operands, output = equation
    text = ",".join(operands) + "->" + output
    tensors = [torch.ones([SIZES[letter] for letter in letters]) for letters in operands]
    assert (flops(way, lambda *x: torch.einsum(text, *x), tensors) or 0) == by_letters(operands, output)
