"""Optimizers, by loop, foreach and fused, equal plain torch; operators on lists are one for each tensor."""

import pytest
import torch

import dtorch
from dtorch.foreach import each
from dtorch.graph.graph import Graph
from tests.dist import place

SHAPES = [(5, 3), (7,), (2, 3, 2), (), (1, 4)]
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
}
FUSED = ("sgd", "momentum", "adam", "amsgrad", "adamw", "adagrad")
MODES = [(name, mode) for name in OPTIMIZERS for mode in ("loop", "foreach", "fused")]
MODES = [(name, mode) for name, mode in MODES if mode != "fused" or name in FUSED]


def train(kind, options, parameters, gradients):
    """Three steps with given gradients."""
    optimizer = kind(parameters, **options)
    for step in gradients:
        for parameter, grad in zip(parameters, step, strict=True):
            if isinstance(parameter, dtorch.Tensor):
                grad = place(grad, parameter.device_mesh.shape, parameter.placements)
            parameter.grad = grad.clone()
        optimizer.step()
    return parameters


def values(tensors):
    """Plain."""
    return [t.to_torch() if isinstance(t, dtorch.Tensor) else t.detach() for t in tensors]


@pytest.mark.parametrize(
    ("mesh", "ways"),
    [((1,), ("R",)), ((4,), ("S0",)), ((2,), ("R",)), ((2, 2), ("S0", "S1")), ((2, 2), ("S0", "S0"))],
)
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_three_steps(name, mode, mesh, ways):
    kind, options = OPTIMIZERS[name]
    options = {**options, **({} if mode == "loop" else {mode: True})}
    start = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(3)]
    wanted = train(kind, options, [p.clone().requires_grad_() for p in start], gradients)
    parameters = []
    for p in start:
        fitting = tuple(w if w == "R" or int(w[1]) < p.ndim else "R" for w in ways)
        parameters.append(place(p, mesh, fitting).requires_grad_())
    with Graph.default_graph().record() as graph:
        found = train(kind, options, parameters, gradients)
    assert graph.communications() == []
    for a, b in zip(values(found), values(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=0 if mesh == (1,) else 1e-6, atol=0 if mesh == (1,) else 1e-6)


@pytest.mark.parametrize("mode", ["foreach", "fused"])
def test_lists_may_mix_meshes_and_plain_tensors(mode):
    start = [torch.randn(4, 3) for _ in range(3)]
    gradients = [[torch.randn(4, 3) for _ in range(3)] for _ in range(3)]
    wanted = train(torch.optim.AdamW, {mode: True}, [p.clone().requires_grad_() for p in start], gradients)
    leaves = [
        place(start[0], (2,), ("S0",)).requires_grad_(),
        place(start[1], (4,), ("S1",)).requires_grad_(),
        start[2].clone().requires_grad_(),
    ]
    found = train(torch.optim.AdamW, {mode: True}, leaves, gradients)
    torch.testing.assert_close(values(found), values(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grad", ["P", "S1", "R"])
@pytest.mark.parametrize("mode", ["loop", "foreach", "fused"])
def test_gradient_elsewhere_than_its_parameter(mode, grad):
    p, g = torch.randn(4, 6), torch.randn(4, 6)
    options = {"lr": 0.1, "momentum": 0.9, **({} if mode == "loop" else {mode: True})}
    a, b = p.clone().requires_grad_(), place(p, (2,), ("S0",)).requires_grad_()
    first, second = torch.optim.SGD([a], **options), torch.optim.SGD([b], **options)
    for _ in range(3):
        a.grad, b.grad = g.clone(), place(g, (2,), (grad,))
        first.step()
        second.step()
        torch.testing.assert_close(b.grad.to_torch(), g)
    torch.testing.assert_close(b.to_torch(), a.detach(), rtol=1e-6, atol=1e-6)
    assert b.placements == (dtorch.Shard(0),)


def test_fused_with_a_gradient_scaler():
    p, g = torch.randn(4, 6), torch.randn(4, 6)
    for inf in (0.0, 1.0):
        leaves = [p.clone(), place(p, (2,), ("S0",))]
        grads = [g.clone(), place(g, (2,), ("S1",))]
        for leaf, grad in zip(leaves, grads, strict=True):
            states = [torch.zeros_like(leaf) for _ in range(2)]
            torch._fused_adamw_(
                [leaf], [grad], [states[0]], [states[1]], [], [torch.tensor(1.0)], amsgrad=False, beta1=0.9,
                beta2=0.99, lr=0.1, weight_decay=0.1, eps=1e-8, maximize=False,
                grad_scale=torch.tensor(4.0), found_inf=torch.tensor(inf),
            )  # fmt: skip
        torch.testing.assert_close(leaves[1].to_torch(), leaves[0])
        torch.testing.assert_close(grads[1].to_torch(), grads[0])


def lists():
    x = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]
    y = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]
    return x, y


CALLS = {
    "add list": lambda x, y: torch._foreach_add(x, y, alpha=2),
    "add scalars": lambda x, y: torch._foreach_add(x, [1.0, 2.0]),
    "add tensor": lambda x, y: torch._foreach_add(x, torch.tensor(3.0), alpha=2),
    "sub_": lambda x, y: torch._foreach_sub_(x, y, alpha=0.5),
    "mul_ scalar": lambda x, y: torch._foreach_mul_(x, 0.5),
    "mul_ tensor": lambda x, y: torch._foreach_mul_(x, torch.tensor(2.0)),
    "div_ scalars": lambda x, y: torch._foreach_div_(x, [2.0, 4.0]),
    "neg": lambda x, y: torch._foreach_neg(x),
    "sqrt_": lambda x, y: torch._foreach_sqrt_(x),
    "reciprocal": lambda x, y: torch._foreach_reciprocal(x),
    "maximum": lambda x, y: torch._foreach_maximum(x, y),
    "maximum_": lambda x, y: torch._foreach_maximum_(x, y),
    "minimum scalar": lambda x, y: torch._foreach_minimum(x, 0.8),
    "clamp_min_": lambda x, y: torch._foreach_clamp_min_(x, 0.8),
    "clamp_max list": lambda x, y: torch._foreach_clamp_max(x, y),
    "pow": lambda x, y: torch._foreach_pow(x, 2),
    "pow list": lambda x, y: torch._foreach_pow(x, y),
    "pow of a number": lambda x, y: torch._foreach_pow(2.0, x),
    "lerp_": lambda x, y: torch._foreach_lerp_(x, y, 0.3),
    "lerp list": lambda x, y: torch._foreach_lerp(x, y, y),
    "addcdiv_": lambda x, y: torch._foreach_addcdiv_(x, y, y, value=0.5),
    "addcdiv_ scalars": lambda x, y: torch._foreach_addcdiv_(x, y, y, [0.5, 2.0]),
    "addcmul tensor": lambda x, y: torch._foreach_addcmul(x, y, y, torch.tensor([0.5, 2.0])),
    "copy_": lambda x, y: torch._foreach_copy_(x, y),
    "zero_": lambda x, y: torch._foreach_zero_(x),
    "norm": lambda x, y: torch._foreach_norm(x),
    "norm inf": lambda x, y: torch._foreach_norm(x, float("inf")),
    "max": lambda x, y: torch._foreach_max(x),
}


@pytest.mark.parametrize("mesh", [(1,), (4,)])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_operators_on_lists(call, mesh):
    x, y = lists()
    ours = [[place(t, mesh, ("S0",)) for t in ts] for ts in (x, y)]
    found, wanted = call(*ours), call(x, y)
    for a, b in zip([*(found or []), *ours[0]], [*(wanted or []), *x], strict=True):
        torch.testing.assert_close(a.to_torch(), b)


def test_every_operator_on_lists_has_a_form_for_one():
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::_foreach_") and "out" not in name:
            packet, _, kind = name.removeprefix("aten::").partition(".")
            try:
                each(getattr(getattr(torch.ops.aten, packet), kind or "default"))
            except dtorch.UnsupportedError:
                missing.append(packet)
    assert sorted(set(missing)) == ["_foreach_powsum"]
