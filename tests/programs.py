"""Random programs over distributed tensors, the same ones from the same seed.

A program holds a few tensors and makes some steps: each takes tensors that it holds, and replaces one of them
or writes into it. What came out is compared between two ways of running it, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

import dtorch
from dtorch import Partial, Replicate, Shard

MESHES = (((2,), ("a",)), ((4,), ("a",)), ((2, 2), ("a", "b")), ((3, 2), ("a", "b")))
SIZES = (1, 3, 5, 6, 7, 8)
HELD = 5

Step = Callable[["Program"], None]
STEPS: list[tuple[int, Step]] = []


def step(weight: int) -> Callable[[Step], Step]:
    """Decorator: a kind of step, taken with this weight."""

    def enter(function: Step) -> Step:
        STEPS.append((weight, function))
        return function

    return enter


class Program:
    """One run of the program of a seed.

    Args:
        seed: which program.
        eager: whether each call runs at once.
        flushes: seed of the points at which what is pending is run; None for none.

    Class attributes:
        kinds: of steps, each with its weight.
    """

    kinds: ClassVar[Sequence[tuple[int, Step]]] = STEPS

    def __init__(self, seed: int, eager: bool, flushes: int | None = None) -> None:
        self.choice = random.Random(seed)
        self.flushes = None if flushes is None else random.Random(flushes)
        self.graph = dtorch.Graph()
        self.graph.constructor.eager = eager
        shape, names = self.choice.choice(MESHES)
        self.mesh = dtorch.init_device_mesh("cpu", shape, mesh_dim_names=names)
        self.rows, self.columns = self.choice.choice(SIZES), self.choice.choice(SIZES)
        self.generator = torch.Generator().manual_seed(seed)
        self.held: list[dtorch.Tensor] = [self.leaf() for _ in range(HELD)]
        self.leaves = [t for t in self.held if t.requires_grad]
        self.plain = torch.randn(self.columns, generator=self.generator)
        self.found: list[Any] = []
        self.trace: list[str] = []

    def run(self, steps: int) -> list[Any]:
        """Make the steps; everything that came out: values, placements, gradients, texts of errors."""
        torch.manual_seed(self.choice.randrange(1000))
        # Each program leaves some kinds of steps out, so that some have long stretches which nothing cuts.
        weights, functions = zip(*self.choice.sample(self.kinds, len(self.kinds) * 2 // 3), strict=True)
        for function in self.choice.choices(functions, weights, k=steps):
            self.trace.append(function.__name__)
            function(self)
            if self.flushes is not None and self.flushes.random() < 0.3:
                self.graph.sync()
        for tensor in [*self.held, *(leaf.grad for leaf in self.leaves if leaf.grad is not None)]:
            self.note(tensor)
        return self.found

    def note(self, tensor: Any) -> None:
        """Keep a value, and how it is laid out."""
        parts = [tensor.to_local(i).clone() for i in range(self.mesh.size)]
        self.found.append((tensor.detach().to_torch(), parts, str(tensor.dist_layout), tensor.stride()))

    # -- what steps are made of -----------------------------------------------------------------------------

    def placements(self, partial: bool = False) -> list[Any]:
        """Random placements of a matrix."""
        kinds = [Replicate(), Shard(0), Shard(1), *([Partial()] if partial else [])]
        return [self.choice.choice(kinds) for _ in range(self.mesh.ndim)]

    def leaf(self) -> dtorch.Tensor:
        """A matrix; some require grad."""
        value = torch.randn(self.rows, self.columns, generator=self.generator)
        return dtorch.Tensor(
            value,
            self.mesh,
            self.placements(partial=True),
            graph=self.graph,
            requires_grad=self.choice.random() < 0.4,
        )

    def pick(self) -> dtorch.Tensor:
        """One of the held tensors."""
        return self.choice.choice(self.held)

    def keep(self, value: dtorch.Tensor) -> None:
        """Hold a matrix in place of another one; the other is dropped."""
        assert tuple(value.shape) == (self.rows, self.columns), value.shape
        self.held[self.choice.randrange(HELD)] = value

    def number(self) -> float:
        """A number, seldom the same."""
        return self.choice.choice([0.5, 2.0, self.choice.uniform(-2, 2)])


@step(6)
def binary(p: Program) -> None:
    operator = p.choice.choice([torch.add, torch.sub, torch.mul, torch.maximum])
    p.keep(operator(p.pick(), p.pick()))


@step(4)
def scaled(p: Program) -> None:
    x, y, a = p.pick(), p.pick(), p.number()
    p.keep(
        p.choice.choice(
            [lambda: x * a, lambda: x + a, lambda: torch.add(x, y, alpha=a), lambda: x / (a + 9)]
        )()
    )


@step(4)
def pointwise(p: Program) -> None:
    p.keep(
        p.choice.choice([torch.tanh, torch.relu, torch.sigmoid, torch.neg, torch.nn.functional.gelu])(
            p.pick()
        )
    )


@step(2)
def plain_operand(p: Program) -> None:
    p.keep(p.pick() * p.plain)
    p.plain.add_(1.0)


@step(4)
def product(p: Program) -> None:
    x, y, z = p.pick(), p.pick(), p.pick()
    kind = p.choice.randrange(3)
    if kind == 0:
        p.keep(x @ (y.t() @ z) * 0.1)
    elif kind == 1:
        p.keep(torch.einsum("ij,kj,kl->il", x, y, z) * 0.1)
    else:
        p.keep(torch.nn.functional.linear(x, y.t() @ z) * 0.1)


@step(3)
def reduction(p: Program) -> None:
    x, dim = p.pick(), p.choice.randrange(2)
    kind = p.choice.randrange(4)
    if kind == 0:
        p.keep(p.pick() - x.mean(dim, keepdim=True))
    elif kind == 1:
        p.keep(torch.softmax(x, dim))
    elif kind == 2:
        p.keep(p.pick() + x.sum(dim, keepdim=True) * 0.1)
    else:
        p.keep(p.pick() * x.amax(dim, keepdim=True).tanh())


@step(4)
def views(p: Program) -> None:
    x, kind = p.pick(), p.choice.randrange(5)
    if kind == 0:
        p.keep(x.t().reshape(-1).view(p.columns, p.rows).t())
    elif kind == 1:
        p.keep(x.view(-1).view(p.rows, p.columns) if x.is_contiguous() else x.contiguous())
    elif kind == 2:
        p.keep(x.unsqueeze(0).expand(2, -1, -1).sum(0))
    elif kind == 3:
        p.keep(x.detach().view_as(x))
    else:
        p.keep(x[:, :1].expand(-1, p.columns) + x[:1])


@step(3)
def pieces(p: Program) -> None:
    x, dim = p.pick(), p.choice.randrange(2)
    kind, size = p.choice.randrange(3), x.shape[dim]
    if kind == 0:
        p.keep(torch.cat([*x.split(max(1, size // 2), dim)][::-1], dim))
    elif kind == 1:
        p.keep(torch.stack(x.unbind(dim), dim))
    else:
        p.keep(
            torch.cat([x.narrow(dim, 0, size // 2), p.pick().narrow(dim, size // 2, size - size // 2)], dim)
        )


@step(6)
def written(p: Program) -> None:
    """In place; a leaf under no_grad, as optimizers do."""
    x, y, a = p.pick(), p.pick(), p.number()
    with torch.no_grad():
        p.choice.choice(
            [
                lambda: x.add_(y.detach().clone(), alpha=a),
                lambda: x.mul_(a),
                lambda: x.copy_(y.clone()),
                lambda: x.tanh_(),
                lambda: x.zero_().add_(1.0),
                lambda: x.clamp_(-a * a, a * a),
            ]
        )()


@step(6)
def written_through_view(p: Program) -> None:
    x, a = p.pick().detach(), p.number()
    view = p.choice.choice(
        [
            lambda: x.t(),
            lambda: x[p.rows // 2],
            lambda: x[:, p.columns // 2 :],
            lambda: x[::2],
            lambda: x.unsqueeze(1),
            lambda: x.diagonal(),
            lambda: x.narrow(0, 0, p.rows),
        ]
    )
    with torch.no_grad():
        first, second = view(), x.view_as(x)
        first.add_(a)
        second.mul_(0.5)
        if p.choice.random() < 0.5:
            p.keep(second.detach())
        else:
            p.note(first)


@step(3)
def moved(p: Program) -> None:
    p.keep(p.pick().redistribute(placements=p.placements(partial=False)))


@step(2)
def moved_and_written(p: Program) -> None:
    x = p.pick().detach().redistribute(placements=p.placements())
    x.add_(p.number())
    p.keep(x)


@step(2)
def random_numbers(p: Program) -> None:
    p.keep(
        torch.nn.functional.dropout(p.pick(), 0.3) if p.choice.random() < 0.7 else torch.rand_like(p.pick())
    )


@step(2)
def indexing(p: Program) -> None:
    x = p.pick()
    index = torch.randint(p.rows, (p.rows,), generator=p.generator)
    p.keep(x[index] if p.choice.random() < 0.5 else x.index_select(0, index))


@step(2)
def choice_by_value(p: Program) -> None:
    x, y = p.pick(), p.pick()
    p.keep(torch.where(x > y, x, y * 0.5).masked_fill(x < -1.0, p.number()))


@step(2)
def asked(p: Program) -> None:
    p.found.append(p.pick().sum().item())


@step(2)
def list_operators(p: Program) -> None:
    xs, a = [p.pick().detach(), p.pick().detach()], p.number()
    if xs[0]._operand is not xs[1]._operand:
        torch._foreach_mul_(xs, a)
        torch._foreach_add_(xs, [p.pick().detach().clone() for _ in xs], alpha=a)
        torch._foreach_lerp_(xs, [x * 2 for x in xs], 0.25)


@step(2)
def data_replaced(p: Program) -> None:
    x = p.pick()
    x.data = (x.detach() * p.number()).clone()


@step(3)
def backward(p: Program) -> None:
    leaves = [leaf for leaf in p.leaves if leaf.is_leaf and leaf.requires_grad]
    x = p.pick()
    if not leaves:
        return
    hook = leaves[0].register_hook(lambda grad: grad * 1.5)
    loss = (x.detach() * leaves[0]).tanh() @ leaves[-1].t()
    (loss.sum() + torch.nn.functional.dropout(leaves[0], 0.5).pow(2).mean()).backward()
    hook.remove()
    if p.choice.random() < 0.5:
        with torch.no_grad():
            for leaf in p.leaves:
                if leaf.grad is not None:
                    leaf.add_(leaf.grad, alpha=-0.1)
