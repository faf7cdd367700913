"""A small Llama (4 layers, hidden 256): ours on one device against torch eager, and ours on 2 x 2 devices.

T = 1 token, as in decoding: the price of calls, not of arithmetic, is what differs.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness import Row, ran, timed


def rows() -> Iterator[Row]:
    import dtorch

    plain = _model()
    mesh = dtorch.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    model = dtorch.parallelize(copy.deepcopy(plain), mesh, {})
    ids = torch.zeros(1, 1, dtype=torch.long)
    x = dtorch.Tensor(ids, device_mesh=mesh)
    for mode, budget in ((torch.no_grad, 2.3), (torch.inference_mode, 1.9)):
        yield Row(
            name=f"small Llama forward, 1 device, {mode.__name__}",
            against="torch eager",
            budget=budget,
            ours=timed(_forward(model, x, mode), 3),
            theirs=timed(_forward(plain, ids, mode), 3),
        )
    text = torch.arange(64).view(2, 32)
    yield Row(
        name="small Llama training step (AdamW), 1 device",
        against="torch eager",
        budget=1.6,
        ours=timed(_step(model, dtorch.Tensor(text, device_mesh=mesh))),
        theirs=timed(_step(plain, text)),
    )
    yield from _replayed(plain, mesh, ids, text)
    yield from _cold()


def _replayed(plain: torch.nn.Module, mesh: Any, ids: torch.Tensor, text: torch.Tensor) -> Iterator[Row]:
    """Captured and replayed, against torch eager."""
    import dtorch

    model = dtorch.parallelize(copy.deepcopy(plain), mesh, {})
    optimizer = torch.optim.AdamW(model.parameters())

    @dtorch.capture
    def forward(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(ids, use_cache=False).logits

    @dtorch.capture
    def step(text: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(text, labels=text, use_cache=False).loss.backward()
        optimizer.step()

    x, y = dtorch.Tensor(ids, device_mesh=mesh), dtorch.Tensor(text, device_mesh=mesh)
    yield Row(
        name="small Llama forward, 1 device, replayed",
        against="torch eager",
        budget=0.7,
        ours=timed(lambda: forward(x), 3),
        theirs=timed(_forward(plain, ids, torch.no_grad), 3),
        warmups=5,
    )
    yield Row(
        name="small Llama training step (AdamW), 1 device, replayed",
        against="torch eager",
        budget=0.9,
        ours=timed(lambda: step(y)),
        theirs=timed(_step(plain, text)),
        warmups=8,
    )


def _cold() -> Iterator[Row]:
    """First step on 2 x 2 devices against a later one."""
    import dtorch
    from dtorch import Replicate, Shard
    from dtorch.graph.constructor import GraphConstructor

    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = dtorch.parallelize(_model(), mesh, "auto")
    text = torch.arange(64).view(2, 32)
    step = _step(model, dtorch.Tensor(text, device_mesh=mesh, placements=[Shard(0), Replicate()]))

    def cold() -> None:
        GraphConstructor.forget()
        step()

    def warm() -> float:
        step()
        return timed(step)()

    yield Row(
        name="training step on 2 x 2 devices, first",
        against="a later one",
        budget=30,
        ours=timed(cold),
        theirs=warm,
        repeats=5,
        warmups=1,
    )


def _model() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=256,
            max_position_embeddings=128,
        )
    )


def _forward(model: torch.nn.Module, ids: torch.Tensor, mode: Callable) -> Callable[[], object]:
    def run() -> object:
        with mode():
            logits = model(ids, use_cache=False).logits
        return ran(logits)

    return run


def _step(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        ran(next(model.parameters()))

    return run
