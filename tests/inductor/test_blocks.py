"""Functions made block by block: where blocks begin, as plain values, and that what differs is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dtorch.inductor import admission, worker
from dtorch.inductor.blocks import Blocks, Parts
from dtorch.inductor.cut import Cut
from dtorch.inductor.listing import Call, Meta, compute, list_calls

X, W, B = Meta((75, 20), (20, 1), "float32"), Meta((20, 64), (64, 1), "float32"), Meta((64,), (1,), "float32")
Y = Meta((75, 64), (64, 1), "float32")
CUT = Cut(75, 16, inputs=(0, -1, -1), outputs=(0,), first=(0, 1), behind=(2,))


def whole(x: list[Any]) -> list[Any]:
    return [(torch.mm(x[0], x[1]) + x[2]).relu()]


BLOCKS = Blocks(CUT, lambda x: [torch.mm(x[0], x[1])], lambda x: [(x[0] + x[1]).relu()], (Y,))


@pytest.mark.parametrize("extent", [16, 17, 31, 32, 33, 75])
def test_blocks_cover_all_rows_and_no_others(extent: int) -> None:
    starts = Cut(extent, 16, (), (), (), ()).starts
    covered = {row for start in starts for row in range(start, start + 16)}
    assert covered == set(range(extent))
    assert len(starts) == -(-extent // 16)


def test_to_plain_values_and_back() -> None:
    parts = BLOCKS.listed([X, W, B])
    back = Parts.from_dict(json.loads(json.dumps(parts.to_dict())))
    assert back == parts
    assert back.text == parts.text


def test_the_bits_are_those_of_the_whole() -> None:
    parts = BLOCKS.listed([X, W, B])
    listing = list_calls(whole, [X, W, B])
    assert admission.region_differs(listing, parts.around(compute(parts.rest))) == ""


def test_what_differs_is_found() -> None:
    """One call of the part that is compiled is another one."""
    parts = BLOCKS.listed([X, W, B])
    listing = list_calls(whole, [X, W, B])
    other = [
        Call("aten.abs.default", c.text, c.inputs, c.outputs, c.metas, True) if "relu" in c.name else c
        for c in parts.rest.calls
    ]
    wrong = Parts(parts.cut, parts.made, parts.product, type(parts.rest)(
        parts.rest.inputs, tuple(other), parts.rest.results, parts.rest.outputs, parts.rest.written
    ))  # fmt: skip
    made = wrong.around(compute(wrong.rest))
    assert "has other bits" in admission.region_differs(listing, made)
    assert "off by" in admission.region_error(listing, made)


def test_rows_that_no_block_makes_are_found() -> None:
    parts = BLOCKS.listed([X, W, B])
    listing = list_calls(whole, [X, W, B])

    def short(inputs: list[Any]) -> list[Any]:
        (y,) = parts.around(compute(parts.rest))(inputs)
        y[40] = 0.5
        return [y]

    assert admission.region_differs(listing, short)


@pytest.mark.compiler
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_compiling_process_answers_with_code(mode: str) -> None:
    request = {
        "listing": list_calls(whole, [X, W, B]).to_dict(),
        "parts": BLOCKS.listed([X, W, B]).to_dict(),
        "mode": mode,
        "num_threads": 1,
        "default_dtype": "float32",
    }
    assert worker.answer(request).get("key")
