"""`out=`: the given tensor is written where it lives, resized as torch resizes it, cast as torch casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch.testing import assert_tensor_allclose as close
from tests.places import PLACES, S0_2, Place, randn

X = randn(5, 4)

CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "add with alpha": lambda x, out: torch.add(x, x, alpha=3, out=out),
    "sin": lambda x, out: torch.sin(x, out=out),
    "matmul": lambda x, out: torch.mm(x, x.t(), out=out),
    "sum": lambda x, out: torch.sum(x, 1, keepdim=True, out=out),
    "cat": lambda x, out: torch.cat([x, x], 1, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "where": lambda x, out: torch.where(x > 0, x, -x, out=out),
    "clamp": lambda x, out: torch.clamp(x, -0.5, 0.5, out=out),
    "matmul of three dims": lambda x, out: torch.matmul(x.expand(3, 5, 4), x.t(), out=out),
    "kron": lambda x, out: torch.kron(x, x, out=out),
}


@PLACES
@pytest.mark.parametrize("name", CALLS)
def test_out_of_the_right_shape_is_written_where_it_lives(place: Place, name: str) -> None:
    call = CALLS[name]
    wanted = call(X, torch.empty(0))
    out = place.put(torch.zeros_like(wanted))
    view = out[1:3]
    assert call(place.put(X), out) is out
    close(out, wanted)
    close(view, wanted[1:3])
    assert out.placements == place.put(torch.zeros_like(wanted)).placements


@PLACES
@pytest.mark.parametrize("name", CALLS)
def test_an_empty_out_is_resized(place: Place, name: str) -> None:
    wanted = CALLS[name](X, torch.empty(0))
    out = place.put(torch.empty(0, 0))
    assert CALLS[name](place.put(X), out) is out
    close(out, wanted)
    close(out * 2, wanted * 2)


@PLACES
@pytest.mark.parametrize("name", CALLS)
def test_a_plain_out_gets_the_full_value(place: Place, name: str) -> None:
    wanted = CALLS[name](X, torch.empty(0))
    for out in (torch.empty(0), torch.zeros_like(wanted)):
        assert CALLS[name](place.put(X), out) is out
        assert type(out) is torch.Tensor
        close(out, wanted)


@PLACES
def test_several_outs(place: Place) -> None:
    wanted = torch.max(X, 1, keepdim=True)
    values, indices = place.put(torch.zeros(5, 1)), place.put(torch.zeros(5, 1, dtype=torch.int64))
    found = torch.max(place.put(X), 1, keepdim=True, out=(values, indices))
    assert found[0] is values
    close(values, wanted.values)
    close(indices, wanted.indices)


@PLACES
def test_out_is_cast_as_torch_casts(place: Place) -> None:
    out = place.put(torch.zeros(5, 4, dtype=torch.float64))
    torch.add(place.put(X), 1, out=out)
    close(out, torch.add(X, 1, out=torch.zeros(5, 4, dtype=torch.float64)))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(place.put(X), 1, out=place.put(torch.zeros(5, 4, dtype=torch.int64)))


def test_out_that_requires_grad_is_refused_as_in_torch() -> None:
    out = S0_2.put(torch.zeros(5, 4), requires_grad=True)
    with pytest.raises(RuntimeError, match=r"support automatic differentiation"):
        torch.add(S0_2.put(X), 1, out=out)
    assert isinstance(out, dtorch.Tensor)


@PLACES
def test_out_alone_is_distributed(place: Place) -> None:
    """An overload is chosen by the types of what is given, numbers or tensors."""
    out = place.put(torch.zeros(5, 4))[:, 0]
    for ends in ((0, 8), (torch.tensor(0.0), 8), (torch.tensor(0.0), torch.tensor(8.0))):
        close(torch.linspace(*ends, 5, out=out), torch.linspace(0, 8, 5))


@PLACES
def test_a_norm_of_complex_numbers_is_real(place: Place) -> None:
    z, out = torch.complex(X, X.flip(0)), place.put(torch.zeros(5, 1))
    torch.linalg.vector_norm(place.put(z), 2, 1, True, out=out)
    close(out, torch.linalg.vector_norm(z, 2, 1, True))


@PLACES
def test_a_list_of_targets(place: Place) -> None:
    out = [place.put(torch.zeros(n, 4)) for n in (2, 3)]
    torch.split_with_sizes_copy(place.put(X), [2, 3], out=out)
    for target, wanted in zip(out, X.split([2, 3]), strict=True):
        close(target, wanted)


@PLACES
def test_out_beside_running_statistics(place: Place) -> None:
    args = (X, None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5)
    given = [place.put(a) if isinstance(a, torch.Tensor) and a.ndim > 1 else a for a in args]
    given[3:5] = [place.whole(a) for a in args[3:5]]
    wanted = torch._native_batch_norm_legit(*args, out=tuple(torch.empty(0) for _ in range(3)))
    out = tuple(place.whole(torch.empty(0)) for _ in range(3))
    torch._native_batch_norm_legit(*given, out=out)
    for ours, theirs in zip((*out, *given[3:5]), (*wanted, *args[3:5]), strict=True):
        close(ours, theirs)
