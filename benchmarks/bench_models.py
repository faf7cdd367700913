"""Models against torch eager and torch.compile: a step of GPT-2's smallest, the demo's Llama.

Ours is captured, compiled under "fast" as far as that goes, and replayed, on one device and on two virtual
ones; the plain side has one. A side is made at its first measure, once for all rows that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.bench_llama import _model
from benchmarks.harness import Row, ran
from benchmarks.sides import captured, compiled, lazily

EAGER, COMPILE = "torch eager", "torch.compile"
BOTH = ((COMPILE, 1.1), (EAGER, 1.0))
TOKENS = 32
"""Decoded in one measure, after the cache has been emptied."""
TEXT = torch.arange(64).view(2, 32)
HEADS, HEAD = 4, 32
"""Of the small Llama's keys and values."""


class Cut(NamedTuple):
    """How a model lies on a mesh.

    Attributes:
        name: in a row.
        axis: of the mesh.
        size: devices.
    """

    name: str
    axis: str
    size: int


ONE, DATA, TENSOR = Cut("1 device", "tp", 1), Cut("2 devices, dp", "dp", 2), Cut("2 devices, tp", "tp", 2)


def rows() -> Iterator[Row]:
    yield from _steps()
    yield from _forwards()
    yield from _decoding()
    yield from _generating()


def _mesh(cut: Cut) -> Any:
    import dtorch

    return dtorch.init_device_mesh("cpu", (cut.size,), mesh_dim_names=(cut.axis,))


def _batch(ids: torch.Tensor, cut: Cut) -> torch.Tensor:
    import dtorch
    from dtorch import Replicate, Shard

    return dtorch.Tensor(ids, device_mesh=_mesh(cut), placements=[Shard(0) if cut is DATA else Replicate()])


# -- training -----------------------------------------------------------------------------------------------


def _steps() -> Iterator[Row]:
    """forward, backward and AdamW of 124 million parameters."""
    theirs = {
        against: lazily(lambda against=against: _step_of_theirs(against)) for against in (EAGER, COMPILE)
    }
    for cut in (ONE, DATA, TENSOR):
        ours = lazily(lambda cut=cut: _step_of_ours(cut))
        for against, budget in ((EAGER, 1.1), (COMPILE, 1.25)):
            yield Row(
                name=f"GPT-2-small training step, 2 x 32 tokens, {cut.name}, replayed",
                against=against,
                budget=budget,
                ours=ours,
                theirs=theirs[against],
                repeats=5,
                warmups=1,
            )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=64, use_cache=False)
    return GPT2LMHeadModel(config)


def _gpt2_plan(cut: Cut, hidden: int) -> dict[str, Any]:
    """Megatron's; the fused qkv projection holds three matrices side by side, and each is cut."""
    from dtorch import Layout, Shard

    if cut is not TENSOR:
        return {}
    whole, qkv = Layout.replicate, ((3, ()), (hidden, (0,)))
    return {
        "*.attn.c_attn.weight": whole((2,), (hidden, 3 * hidden)).with_dim(1, qkv),
        "*.attn.c_attn.bias": whole((2,), (3 * hidden,)).with_dim(0, qkv),
        "*.attn.c_proj.weight": {"tp": Shard(0)},
        "*.mlp.c_fc.weight": {"tp": Shard(1)},
        "*.mlp.c_fc.bias": {"tp": Shard(0)},
        "*.mlp.c_proj.weight": {"tp": Shard(0)},
        "*.wte.weight": {"tp": Shard(0)},
    }


def _step(model: Any, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(text: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(text, labels=text, use_cache=False).loss.backward()
        optimizer.step()

    return step


def _step_of_ours(cut: Cut) -> Callable[[], object]:
    import dtorch

    plain = _gpt2()
    model = dtorch.parallelize(plain, _mesh(cut), _gpt2_plan(cut, plain.config.n_embd))
    step, text = _step(model, torch.optim.AdamW(model.parameters())), _batch(TEXT, cut)
    run = captured(step, "fast", text)
    return lambda: run(text)


def recorded_step() -> Callable[[], object]:
    """Ours on one device as it is called, without a capture."""
    import dtorch

    model = dtorch.parallelize(_gpt2(), _mesh(ONE), {})
    step, text = _step(model, torch.optim.AdamW(model.parameters())), _batch(TEXT, ONE)

    def run() -> None:
        step(text)
        text.graph.sync()  # type: ignore[attr-defined]

    return run


def _step_of_theirs(against: str) -> Callable[[], object]:
    plain = _gpt2()
    model = compiled(plain) if against is COMPILE else plain
    step = _step(model, torch.optim.AdamW(plain.parameters()))
    return lambda: step(TEXT)


# -- the demo's Llama ---------------------------------------------------------------------------------------


def _forwards() -> Iterator[Row]:
    """Logits of one token, as in decoding without a cache, and of the demo's batch."""
    one, many = torch.zeros(1, 1, dtype=torch.long), torch.arange(512).remainder(256).view(8, 64)
    sizes = {"": (one, 5, (ONE, TENSOR)), ", 8 x 64 tokens": (many, 1, (ONE, DATA, TENSOR))}
    for what, (ids, calls, cuts) in sizes.items():
        theirs = {
            against: lazily(lambda against=against, ids=ids: _forward_of_theirs(against, ids), calls)
            for against in (EAGER, COMPILE)
        }
        for cut in cuts:
            ours = lazily(lambda cut=cut, ids=ids: _forward_of_ours(cut, ids), calls)
            for against, budget in ((COMPILE, 0.65), (EAGER, 0.35)) if ids is one else BOTH:
                yield Row(
                    name=f"small Llama forward{what}, {cut.name}, compiled and replayed",
                    against=against,
                    budget=budget * cut.size if ids is one else budget,
                    ours=ours,
                    theirs=theirs[against],
                )


def _llama(cut: Cut) -> Any:
    import dtorch

    return dtorch.parallelize(_model().eval(), _mesh(cut), "auto" if cut is TENSOR else {})


def _forward(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.no_grad()
    def forward(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, use_cache=False).logits

    return forward


def _forward_of_ours(cut: Cut, ids: torch.Tensor) -> Callable[[], object]:
    x = _batch(ids, cut)
    run = captured(_forward(_llama(cut)), "fast", x)
    return lambda: run(x)


def recorded_forward(batch: int, length: int) -> Callable[[], object]:
    """Ours on one device as it is called, without a capture."""
    forward, x = _forward(_llama(ONE)), _batch(torch.zeros(batch, length, dtype=torch.long), ONE)

    def run() -> object:
        return ran(forward(x))

    return run


def _forward_of_theirs(against: str, ids: torch.Tensor) -> Callable[[], object]:
    plain = _model().eval()
    forward = _forward(compiled(plain) if against is COMPILE else plain)
    return lambda: forward(ids)


def _decoding() -> Iterator[Row]:
    """Greedily, with a static cache, as docs/capture.md shows; on two devices it is cut by heads."""
    theirs = {against: lazily(lambda against=against: _decoding_of_theirs(against)) for against, _ in BOTH}
    for cut in (ONE, TENSOR):
        ours = lazily(lambda cut=cut: _decoding_of_ours(cut))
        for against, budget in BOTH:
            yield Row(
                name=f"small Llama decoding {TOKENS} tokens, static cache, {cut.name}, compiled and replayed",
                against=against,
                budget=budget,
                ours=ours,
                theirs=theirs[against],
                warmups=3,
            )


def _cache() -> Any:
    from transformers import StaticCache

    cache = StaticCache(_model().config, max_cache_len=2 * TOKENS)
    cache.early_initialization(1, HEADS, HEAD, torch.float32, "cpu")
    return cache


def _next_token(model: Any, cache: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.no_grad()
    def next_token(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, cache=cache).logits[:, -1:].argmax(-1)

    return next_token


def _loop(step: Callable[..., torch.Tensor], cache: Any, first: torch.Tensor) -> Callable[[], object]:
    """A text from the cache's start; its last token is read."""

    def run() -> int:
        cache.reset()
        token = first
        for _ in range(TOKENS):
            token = step(token)
        return int(token.item())

    return run


def _decoding_of_ours(cut: Cut) -> Callable[[], object]:
    import dtorch
    from dtorch import Replicate, Shard

    mesh, first = _mesh(cut), _batch(torch.zeros(1, 1, dtype=torch.long), cut)
    with dtorch.device_mesh(mesh):
        cache = _cache()
    placement = Shard(1) if cut is TENSOR else Replicate()
    for layer in cache.layers:
        layer.keys = layer.keys.redistribute(mesh, [placement])
        layer.values = layer.values.redistribute(mesh, [placement])
    return _loop(captured(_next_token(_llama(cut), cache), "fast", first), cache, first)


def _decoding_of_theirs(against: str) -> Callable[[], object]:
    cache = _cache()
    step = _next_token(_model().eval(), cache)
    step = compiled(step) if against is COMPILE else step
    return _loop(step, cache, torch.zeros(1, 1, dtype=torch.long))


def _generating() -> Iterator[Row]:
    """The same by `generate` with its growing cache, recorded at each token."""
    yield Row(
        name="small Llama decoding 16 tokens by generate, 1 device",
        against=EAGER,
        budget=2.3,
        ours=lazily(lambda: _generate(_llama(ONE), _batch(torch.zeros(1, 4, dtype=torch.long), ONE))),
        theirs=lazily(lambda: _generate(_model().eval(), torch.zeros(1, 4, dtype=torch.long))),
        repeats=5,
        warmups=3,
    )


def _generate(model: Any, ids: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return model.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False)

    return run
