"""Fusion by arithmetic: the published ledgers, exactly, and the limits of each formula."""

from __future__ import annotations

import pytest
import torch

from dtorch.errors import ModelError
from dtorch.perf import fusion
from dtorch.perf.measure import rho

MIB = 1024**2
GIB = 1024**3
ATTENTION = fusion.Attention(batch=8, heads=16, tokens=2048, width=4096)


def test_chain_ledger() -> None:
    book = fusion.chain(8, 4_000_000)
    assert (round(book.unfused / MIB, 1), round(book.fused / MIB, 1), book.ratio) == (244.1, 30.5, 8)


def test_rms_norm_ledger() -> None:
    book = fusion.rms_norm(4_000_000)
    assert (round(book.unfused / MIB, 1), round(book.fused / MIB, 1), book.ratio) == (122.1, 30.5, 4)


def test_attention_ledger() -> None:
    assert (ATTENTION.input_bytes, ATTENTION.scores_bytes) == (128 * MIB, GIB)
    assert ATTENTION.softmax() == fusion.Ledger("softmax, 5 steps", 8 * GIB, 2 * GIB)


@pytest.mark.parametrize(("tokens", "times"), {1024: 4, 2048: 8, 4096: 16, 8192: 32}.items())
def test_scores_outgrow_their_input(tokens: int, times: int) -> None:
    assert fusion.Attention(8, 16, tokens, 4096).blow_up == times


def test_epilogue_ledger() -> None:
    book = fusion.epilogue(3, 5)
    assert (book.unfused, book.fused) == (20 * 15, 4 * 15)


@pytest.mark.parametrize(("block", "kept"), {1: 50.0, 64: 51.6, 128: 53.1, 256: 56.2}.items())
def test_causal_share(block: int, kept: float) -> None:
    # 56.25 % is printed as 56.2 by the rule of halves to even.
    assert round(100 * fusion.causal_share(2048, block), 1) == kept


def test_causal_share_is_counted_in_blocks() -> None:
    blocks = torch.ones(8, 8).tril()
    assert fusion.causal_share(2048, 256) == blocks.sum().item() / 64
    with pytest.raises(ModelError, match="no whole number"):
        fusion.causal_share(100, 64)


def test_chain_speedup_runs_from_one_to_the_ratio_of_bytes() -> None:
    assert fusion.chain_speedup(8, 1.0) == 1
    assert fusion.chain_speedup(8, 1e12) == pytest.approx(8)
    assert round(fusion.chain_speedup(8, 1.124), 2) == 1.11
    with pytest.raises(ModelError):
        fusion.chain_speedup(8, 0.0)


@pytest.mark.parametrize("scale", [1.01, 1.0])
def test_merged_step_is_the_chain(scale: float) -> None:
    h = torch.linspace(-1, 1, 9, dtype=torch.float64)
    whole, shift = fusion.merged_step(8, scale, 0.01)
    expected = h.clone()
    for _ in range(8):
        expected = scale * expected + 0.01
    torch.testing.assert_close(whole * h + shift, expected)


def test_call_cost_is_fitted() -> None:
    cost = fusion.fit_call_cost([(n, 2e-6 + 1e-10 * n) for n in (1, 100, 10_000)])
    assert cost.fixed_s == pytest.approx(2e-6)
    assert cost.half_n == pytest.approx(20_000)
    assert cost.fixed_share(20_000) == pytest.approx(0.5)


def test_call_cost_that_cannot_be_is_refused() -> None:
    with pytest.raises(ModelError, match="two sizes"):
        fusion.fit_call_cost([(5, 1.0)])
    with pytest.raises(ModelError, match="quieter"):
        fusion.fit_call_cost([(1, 2.0), (2, 1.0)])


def test_rho_is_of_medians() -> None:
    points = [(2 * MIB, 90.0), (8 * MIB, 100.0), (MIB, 80.0), (32 * MIB, 45.0), (128 * MIB, 45.0)]
    assert rho(points) == 2
    with pytest.raises(ModelError, match="32 MiB"):
        rho(points[:3])
