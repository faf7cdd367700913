"""[A] Byte ledgers: what fusing saves before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.perf import fusion

MIB = 1024**2


def ledgers(settings: Settings, before: Mapping[str, Result]) -> Result:
    """The chain, RMSNorm, attention's softmax; how scores outgrow their input; what a causal mask skips."""
    sizes = settings.attention
    attention = fusion.Attention(sizes.batch, sizes.heads, sizes.tokens, sizes.width, sizes.itemsize)
    books = (
        fusion.chain(settings.steps, settings.elements),
        fusion.rms_norm(settings.elements),
        attention.softmax(),
    )
    largest = max(books, key=lambda book: book.unfused - book.fused)
    return Result(
        "A",
        "Byte ledgers",
        (
            _traffic(books),
            _scores(settings),
            _causal(settings),
        ),
        (
            f"Fusing saves most in {largest.name}: {(largest.unfused - largest.fused) / MIB:,.1f} MiB of "
            f"{largest.unfused / MIB:,.1f} MiB.",
            f"The scores are {attention.scores_bytes / MIB:,.1f} MiB, {attention.blow_up:g} times the input "
            f"of {attention.input_bytes / MIB:,.1f} MiB; a mask of the same size disappears when it is "
            "fused.",
        ),
    )


def _traffic(books: tuple[fusion.Ledger, ...]) -> Table:
    return Table(
        "Bytes moved",
        (
            Column("name", "pattern", tag="given"),
            Column("unfused", "unfused", "MiB", "modelled"),
            Column("fused", "fused", "MiB", "modelled"),
            Column("ratio", "ratio", "x", "modelled"),
        ),
        tuple(
            {"name": book.name, "unfused": book.unfused / MIB, "fused": book.fused / MIB, "ratio": book.ratio}
            for book in books
        ),
    )


def _scores(settings: Settings) -> Table:
    sizes = settings.attention
    rows = []
    for tokens in settings.score_tokens:
        attention = fusion.Attention(sizes.batch, sizes.heads, tokens, sizes.width, sizes.itemsize)
        rows.append(
            {
                "tokens": tokens,
                "input": attention.input_bytes / MIB,
                "scores": attention.scores_bytes / MIB,
                "blow_up": attention.blow_up,
            }
        )
    return Table(
        "Attention scores against their input",
        (
            Column("tokens", "tokens", tag="given"),
            Column("input", "input", "MiB", "modelled"),
            Column("scores", "scores", "MiB", "modelled"),
            Column("blow_up", "scores / input", "x", "modelled"),
        ),
        tuple(rows),
    )


def _causal(settings: Settings) -> Table:
    tokens = settings.attention.tokens
    fitting = [block for block in (1, *settings.blocks) if tokens % block == 0]
    return Table(
        f"Work left under a causal mask, {tokens} tokens",
        (
            Column("block", "block", "tokens", "given"),
            Column("kept", "kept", "%", "modelled"),
        ),
        tuple({"block": block, "kept": 100 * fusion.causal_share(tokens, block)} for block in fitting),
    )
