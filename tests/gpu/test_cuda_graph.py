"""Captured plans as CUDA graphs on a GPU: values, fewer launches, the choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dtorch
from dtorch.replay import Capture, capture

pytestmark = pytest.mark.gpu


@pytest.fixture
def mesh() -> dtorch.DeviceMesh:
    return dtorch.DeviceMesh("cuda", [0])


def network(mesh: dtorch.DeviceMesh, width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    steps: list[nn.Module] = []
    for _ in range(layers):
        steps += [nn.Linear(width, width), nn.Tanh()]
    return dtorch.parallelize(nn.Sequential(*steps), mesh, {})


def forward_of(model: nn.Module) -> Capture:
    @capture
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return forward


def given(mesh: dtorch.DeviceMesh, rows: int, width: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return dtorch.Tensor(torch.randn(rows, width, generator=draw), device_mesh=mesh)


def programs(captured: Capture) -> list[Any]:
    return [program for course in captured._courses.values() for program in course.programs]


def test_short_kernels_run_as_a_graph_with_the_same_values(mesh: dtorch.DeviceMesh) -> None:
    model = network(mesh, 64, 40)
    forward = forward_of(model)
    for seed in range(8):
        x = given(mesh, 4, 64, seed)
        with torch.no_grad():
            assert torch.equal(forward(x).to_torch(), model(x).to_torch())
    assert ", a CUDA graph: by the launch model" in forward.why()
    assert programs(forward)[0].graphed is not None


def test_a_replay_is_one_launch_of_one_graph(
    mesh: dtorch.DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    replay = torch.cuda.CUDAGraph.replay

    def launch(graph: Any) -> None:
        launched.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", launch)
    forward = forward_of(network(mesh, 64, 100))
    x = given(mesh, 4, 64, 0)
    for _ in range(8):
        forward(x)
    graphed = programs(forward)[0].graphed
    assert graphed is not None
    assert forward.stats().replays == 5
    assert launched == 5 * [graphed._graph]


def test_long_kernels_run_one_by_one(mesh: dtorch.DeviceMesh) -> None:
    forward = forward_of(network(mesh, 8192, 4))
    x = given(mesh, 8192, 8192, 0)
    for _ in range(5):
        forward(x)
    assert "no CUDA graph" in forward.why()


def test_training_as_a_graph_is_training(mesh: dtorch.DeviceMesh) -> None:
    def trained(captured: bool) -> list[torch.Tensor]:
        model = network(mesh, 32, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = capture(step) if captured else step
        losses = [run(given(mesh, 4, 32, seed)).to_torch() for seed in range(12)]
        if captured:
            assert "a CUDA graph" in run.why()
        return [*losses, *(p.detach().to_torch() for p in model.parameters())]

    for ours, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(ours, expected)


def test_a_call_that_waits_for_the_device_is_left_to_the_plan(mesh: dtorch.DeviceMesh) -> None:
    @capture
    def inverse(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = x + 0
        return torch.linalg.inv(x)

    x = dtorch.Tensor(torch.eye(4) * 2, device_mesh=mesh)
    for _ in range(6):
        assert torch.equal(inverse(x).to_torch(), torch.eye(4, device="cuda") / 2)
    assert torch.equal((x + 1).to_torch(), torch.eye(4, device="cuda") * 2 + 1)  # the device goes on


@pytest.mark.models
def test_decoding_as_a_graph_gives_the_tokens_of_generate(mesh: dtorch.DeviceMesh) -> None:
    """The cache is state that a replay writes in place, the token what each call brings."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4)
    config.update({"initializer_range": 0.2, "eos_token_id": None, "pad_token_id": 0})
    plain = transformers.LlamaForCausalLM(config).cuda().eval()
    prompt = torch.tensor([[5, 7, 11]], device="cuda")
    expected = plain.generate(prompt, max_new_tokens=24, do_sample=False)[:, 3:]
    model = dtorch.parallelize(plain, mesh, {})
    cache = transformers.StaticCache(config, max_cache_len=32)
    with dtorch.device_mesh(mesh):
        cache.early_initialization(1, num_heads=4, head_dim=8, dtype=torch.float32, device="cuda")

    @torch.no_grad()
    def next_token(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, cache=cache).logits[:, -1:].argmax(-1)

    step = capture(next_token)
    tokens = [next_token(dtorch.Tensor(prompt, device_mesh=mesh))]
    while len(tokens) < 24:
        tokens.append(step(tokens[-1]))
    assert torch.equal(torch.cat(tokens, 1).to_torch(), expected)
    assert ", a CUDA graph: by the launch model" in step.why()


def test_replays_on_several_streams_wait_for_each_other(mesh: dtorch.DeviceMesh) -> None:
    """They share buffers and memory of one pool; the first stream is late."""
    model = network(mesh, 64, 40)
    forward = forward_of(model)
    inputs = [given(mesh, 4, 64, seed) for seed in range(12)]
    with torch.no_grad():
        expected = [model(x).to_torch() for x in inputs]
    for x in inputs[:4]:
        forward(x).to_torch()
    assert programs(forward)[0].graphed is not None
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for i, x in enumerate(inputs):
        with torch.cuda.stream(streams[i % 2]):
            if i % 2 == 0:
                torch.cuda._sleep(50_000_000)
            found.append(forward(x))
    torch.cuda.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.to_torch(), b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_each_device_captures_on_a_stream_of_its_own(mesh: dtorch.DeviceMesh) -> None:
    for place in (mesh, dtorch.DeviceMesh("cuda", [1])):
        model = network(place, 64, 40)
        forward = forward_of(model)
        for seed in range(6):
            x = given(place, 4, 64, seed)
            with torch.no_grad():
                assert torch.equal(forward(x).to_torch(), model(x).to_torch())
        assert ", a CUDA graph: by the launch model" in forward.why()
