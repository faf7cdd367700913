"""Calls spelt to the compiler: the bits are those of torch's own call, numbers as tensors too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtorch.inductor import admission, spelt
from dtorch.inductor.listing import Meta, list_calls
from dtorch.inductor.worker import compile_listing

LIKE, NUMBER = Meta((4096,), (1,), "float32"), Meta((), (), "float64")
A, B, C = (torch.randn(4096, generator=torch.Generator().manual_seed(i)) for i in range(3))


@pytest.mark.parametrize("value", [0.0, 1.0, -0.003, 1e-30])
@pytest.mark.parametrize("name", sorted(spelt.NUMBERS))
def test_with_a_number_as_a_tensor_it_is_the_call_of_torch(name: str, value: float) -> None:
    tensors = (A, B, C) if spelt.NUMBERS[name] == "value" else (A, B)
    function = getattr(torch, name.removeprefix("aten."))
    found = spelt.numbered(name)(*tensors, torch.tensor(value, dtype=torch.float64))
    assert torch.equal(found, function(*tensors, **{spelt.NUMBERS[name]: value}))


@pytest.mark.compiler
def test_compiled_they_keep_every_bit() -> None:
    def calls(x: list[Any]) -> list[Any]:
        a, b, c, number = x
        made = [torch.lerp(a, b, weight) for weight in (0.1, 0.5, 0.9)]
        for alpha in (1, -0.003, 2.5):
            made += [torch.add(a, b, alpha=alpha), torch.sub(a, b, alpha=alpha)]
            made += [torch.addcmul(a, b, c, value=alpha), torch.addcdiv(a, b, c, value=alpha)]
        for name, argument in spelt.NUMBERS.items():
            made.append(spelt.numbered(name)(*([a, b, c] if argument == "value" else [a, b]), number))
        return made

    listing = list_calls(calls, [LIKE, LIKE, LIKE, NUMBER])
    code, key = compile_listing(listing, 1)
    assert key
    assert admission.region_differs(listing, code) == ""


@pytest.mark.compiler
def test_spelt_another_way_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtorch.inductor.worker.table", dict)
    listing = list_calls(lambda x: [torch.lerp(x[0], x[1], 0.1)], [LIKE, LIKE])
    code, _ = compile_listing(listing, 1)
    assert admission.region_differs(listing, code)


@pytest.mark.compiler
def test_what_has_no_words_here_is_compiled_as_the_compiler_has_it() -> None:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        x, row = inputs
        return [torch.lerp(x, row, 0.3), torch.addcmul(x, row, row, value=0.5), torch.addcdiv(x, row, row)]

    inputs = [torch.rand(4, 8) + 0.5, torch.rand(8) + 0.5]  # the first has to be repeated
    code, _ = compile_listing(list_calls(run, [Meta.of(x) for x in inputs]), 1)
    for found, expected in zip(code(list(inputs)), run(inputs), strict=True):
        torch.testing.assert_close(found, expected)
