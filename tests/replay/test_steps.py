"""Capture: training steps of all kinds, bit for bit as they are recorded, or refused in words that help."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations
from torch.optim import lr_scheduler as schedule
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
STEPS = 9

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


class Lion(optim.Optimizer):
    """A user's optimizer, in plain Python."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["mean"] = torch.zeros_like(p)
                mean = self.state[p]["mean"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(mean.mul(first).add(p.grad, alpha=1 - first).sign(), alpha=-group["lr"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)


@dataclass
class Step:
    """A training step and what goes with it.

    Attributes:
        optimizer: of parameters.
        model: a fresh one; takes [6, 8], gives [6, 4].
        forward: how the model is called.
        clip: what is done to the gradients.
        beside: what is made of the model, and updated behind each step.
        update: how.
        between: what happens outside, behind each call.
        replays: how many of the calls are replayed at least, where some operators are new.
    """

    optimizer: Callable[[Any], Any] = lambda p: optim.AdamW(p, lr=1e-2)
    model: Callable[[], nn.Module] = mlp
    forward: Callable[[Any, Any], Any] = lambda model, x: model(x)
    clip: Callable[[Any], Any] = lambda model: None
    beside: Callable[[Any], Any] = lambda model: None
    update: Callable[[Any, Any], Any] = lambda beside, model: None
    scheduler: Callable[[Any], Any] = lambda optimizer: None
    between: Callable[[Any, Any, int], Any] = lambda optimizer, scheduler, number: None
    replays: int = STEPS - 5

    def run(self, captured: bool) -> tuple[list[torch.Tensor], Any]:
        """Losses, and all tensors of the model, its gradients and the optimizer's state; the step."""
        torch.manual_seed(0)
        model = dtorch.parallelize(self.model(), MESH, {})
        optimizer = self.optimizer(list(model.parameters()))
        scheduler, beside = self.scheduler(optimizer), self.beside(model)
        forward, clip, update = self.forward, self.clip, self.update

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(forward(model, x), y)
            loss.backward()
            clip(model)
            optimizer.step()
            update(beside, model)
            return loss.detach()

        called: Any = dtorch.capture(step) if captured else step
        draw, found = torch.Generator().manual_seed(3), []
        for number in range(STEPS):
            x, y = torch.randn(6, 8, generator=draw), torch.randn(6, 4, generator=draw)
            found.append(called(sharded(x), sharded(y)))
            self.between(optimizer, scheduler, number)
        found += [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        found += [x for state in optimizer.state.values() for x in state.values()]
        found += [] if beside is None else [*beside.state_dict().values()]
        return [x.to_torch() if isinstance(x, dtorch.Tensor) else x for x in found], called


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.inner = kind(4, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x.view(x.shape[0], 2, 4))[0][:, -1])


class Attending(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True, **options)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.shape[0], 2, 4)
        return self.head(self.inner(x, x, x)[0].flatten(1))


class Looking(nn.Module):
    def __init__(self, kind: Any = nn.Embedding, **options: Any) -> None:
        super().__init__()
        self.inner = kind(10, 4, **options)
        self.head = nn.Linear(8 if kind is nn.Embedding else 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner((x[:, :2].abs() * 3).clamp(max=9).long()).flatten(1))


def layers(kind: Any, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(8, 6), kind(*args, **options), nn.Linear(6, 4))


def wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(wrap(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 4))


def under_autocast(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


@torch.no_grad()
def by_hand(beside: Any, model: Any) -> None:
    for mine, new in zip(beside.parameters(), model.parameters(), strict=True):
        mine.lerp_(new, 0.1)


EMA = swa_utils.get_ema_multi_avg_fn(0.9)
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw, foreach": lambda p: optim.AdamW(p, lr=1e-2, foreach=True),
    "adam, foreach, amsgrad, maximize": lambda p: optim.Adam(
        p, lr=1e-2, foreach=True, amsgrad=True, maximize=True, weight_decay=0.1
    ),
    "adamw, amsgrad, maximize": lambda p: optim.AdamW(p, lr=1e-2, amsgrad=True, maximize=True),
    "adamw, lr in a tensor": lambda p: optim.AdamW(p, lr=torch.tensor(1e-2)),
    "adamw, two groups": lambda p: optim.AdamW([{"params": p[:2]}, {"params": p[2:], "lr": 1e-3}], lr=1e-2),
    "sgd, foreach": lambda p: optim.SGD(p, lr=1e-2, foreach=True, momentum=0.9, nesterov=True),
    "rmsprop, foreach": lambda p: optim.RMSprop(p, lr=1e-2, foreach=True, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "adagrad, foreach": lambda p: optim.Adagrad(p, lr=1e-2, foreach=True),
    "adadelta, foreach": lambda p: optim.Adadelta(p, lr=1e-2, foreach=True),
    "adamax, foreach": lambda p: optim.Adamax(p, lr=1e-2, foreach=True),
    "nadam, foreach": lambda p: optim.NAdam(p, lr=1e-2, foreach=True),
    "asgd, foreach": lambda p: optim.ASGD(p, lr=1e-2, foreach=True),
    "rprop, foreach": lambda p: optim.Rprop(p, lr=1e-2, foreach=True),
    "adamw, fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "adam, fused, amsgrad": lambda p: optim.Adam(p, lr=1e-2, fused=True, amsgrad=True),
    "sgd, fused": lambda p: optim.SGD(p, lr=1e-2, fused=True, momentum=0.9),
    "adagrad, fused": lambda p: optim.Adagrad(p, lr=1e-2, fused=True),
    "muon": lambda p: optim.Muon([x for x in p if x.ndim == 2], lr=1e-2),
    "a user's": Lion,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm of two layers": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.2),
    "gru": lambda: Recurrent(nn.GRU),
    "attention": lambda: Attending(dropout=0.2),
    "batch norm": layers(nn.BatchNorm1d, 6),
    "batch norm without statistics": layers(nn.BatchNorm1d, 6, track_running_stats=False),
    "embedding of a greatest norm": lambda: Looking(max_norm=0.5),
    "embedding scaled by frequency": lambda: Looking(scale_grad_by_freq=True),
    "embedding bag": lambda: Looking(nn.EmbeddingBag),
    "spectral norm": wrapped(parametrizations.spectral_norm),
    "weight norm": wrapped(parametrizations.weight_norm),
    "orthogonal": wrapped(parametrizations.orthogonal),
    "dropout": layers(nn.Dropout, 0.3),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda optimizer: schedule.OneCycleLR(optimizer, 0.1, total_steps=30),
    "warm restarts": lambda optimizer: schedule.CosineAnnealingWarmRestarts(optimizer, 4),
    "lambda": lambda optimizer: schedule.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "sequential": lambda optimizer: schedule.SequentialLR(
        optimizer,
        [schedule.LinearLR(optimizer, 0.1, total_iters=3), schedule.ExponentialLR(optimizer, 0.9)],
        [3],
    ),
    "averaging": lambda optimizer: swa_utils.SWALR(optimizer, 0.05, anneal_epochs=4),
}


def scheduled(optimizer: Callable[[Any], Any], scheduler: Callable[[Any], Any]) -> Step:
    return Step(optimizer, scheduler=scheduler, between=lambda _, scheduler, number: scheduler.step())


STEPS_OF: dict[str, Step] = {
    **{f"scheduled, {name}": scheduled(OPTIMIZERS["adamw, two groups"], s) for name, s in SCHEDULERS.items()},
    "scheduled, one cycle, foreach": scheduled(OPTIMIZERS["adamw, foreach"], SCHEDULERS["one cycle"]),
    "scheduled, one cycle, fused": scheduled(OPTIMIZERS["adamw, fused"], SCHEDULERS["one cycle"]),
    "scheduled, one cycle, sgd, fused": scheduled(OPTIMIZERS["sgd, fused"], SCHEDULERS["one cycle"]),
    "scheduled on a plateau": Step(
        scheduler=lambda optimizer: schedule.ReduceLROnPlateau(optimizer, patience=1),
        between=lambda _, scheduler, number: scheduler.step(1.0),
    ),
    **{name: Step(optimizer) for name, optimizer in OPTIMIZERS.items()},
    **{name: Step(model=model) for name, model in MODELS.items()},
    # Its rectified course begins at step 6, and is recorded then.
    "radam, foreach": Step(lambda p: optim.RAdam(p, lr=1e-2, foreach=True), replays=2),
    **{
        f"clipped, foreach={foreach}, norm {norm}": Step(
            clip=lambda model, f=foreach, n=norm: clip_grad_norm_(model.parameters(), 0.1, n, foreach=f)
        )
        for foreach, norm in ((True, 2.0), (False, 2.0), (None, 2.0), (True, float("inf")))
    },
    "clipped by value": Step(clip=lambda model: clip_grad_value_(model.parameters(), 0.01)),
    "weight decay that changes": Step(
        between=lambda optimizer, _, i: optimizer.param_groups[0].update(weight_decay=0.1 / (i + 1))
    ),
    "averaged": Step(beside=swa_utils.AveragedModel, update=lambda b, model: b.update_parameters(model)),
    "averaged with buffers": Step(
        model=layers(nn.BatchNorm1d, 6),
        beside=lambda model: swa_utils.AveragedModel(model, multi_avg_fn=EMA, use_buffers=True),
        update=lambda beside, model: beside.update_parameters(model),
    ),
    "averaged by hand": Step(beside=copy.deepcopy, update=by_hand),
    "checkpointed": Step(forward=lambda model, x: checkpoint(model, x, use_reentrant=False)),
    "under autocast": Step(forward=under_autocast),
    "lstm under autocast": Step(model=lambda: Recurrent(nn.LSTM), forward=under_autocast),
}


@pytest.mark.parametrize("name", STEPS_OF)
def test_a_captured_step_is_the_recorded_one(name: str) -> None:
    step = STEPS_OF[name]
    found, captured = step.run(captured=True)
    expected, _ = step.run(captured=False)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert captured.stats().replays >= step.replays, captured.why()


REFUSED: dict[str, tuple[Step, str]] = {
    "adafactor": (
        Step(lambda p: optim.Adafactor(p, lr=1e-2)),
        r"asks for the value.*\n  asked at .*test_steps",
    ),
    "an error if not finite": (
        Step(clip=lambda model: clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)),
        r"asks for the value.*\n  asked at .*test_steps",
    ),
    "batch norm that averages": (
        Step(model=layers(nn.BatchNorm1d, 6, momentum=None)),
        r"asks for the value.*\n  asked at .*test_steps",
    ),
    "rrelu": (
        Step(model=layers(nn.RReLU)),
        r"RreluWithNoise.*the random numbers .* depend on values; keep",
    ),
    "checkpointed dropout": (
        Step(
            model=layers(nn.Dropout, 0.3),
            forward=lambda model, x: checkpoint(model, x, use_reentrant=False),
        ),
        "sets the state of a random generator",
    ),
    "old spectral norm": (
        Step(model=wrapped(nn.utils.spectral_norm)),
        r"keeps what Div.*return it instead",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_replayed_is_refused(name: str) -> None:
    step, words = REFUSED[name]
    with pytest.raises(CaptureError, match=words):
        step.run(captured=True)


def test_a_scaler_of_gradients_is_refused() -> None:
    model, scaler = dtorch.parallelize(mlp(), MESH, {}), torch.amp.GradScaler("cpu")
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @dtorch.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    x = sharded(torch.ones(6, 8))
    with pytest.raises(CaptureError, match=r"asks for the value.*\n  asked at .*test_steps"):
        step.capture(x)


def test_a_plain_tensor_that_is_written_is_named() -> None:
    cache = torch.zeros(4, 3)
    captured = dtorch.capture(lambda x: cache.index_copy_(0, torch.tensor([1]), x) * x.sum())
    with pytest.raises(CaptureError, match=r"writes the plain tensor of shape \[4, 3\].*device_mesh\(mesh\)"):
        captured.capture(dtorch.ones(1, 3, device_mesh=MESH))


def test_a_cache_that_is_full_is_named() -> None:
    with dtorch.device_mesh(MESH):
        cache, position = torch.zeros(2, 5), torch.zeros(1, dtype=torch.long)

    def step(x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, position, x)
        position.add_(1)
        return cache.sum(1)

    captured, x = dtorch.capture(step), dtorch.ones(2, 1, device_mesh=MESH)
    for number in range(5):
        assert captured(x).to_torch().tolist() == [number + 1.0] * 2
    with pytest.raises(IndexError, match=r"test_steps.*\n.*tensor of shape \[2, 5\]: a cache that is full"):
        captured(x)
