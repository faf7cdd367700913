"""Kinds of lines: each looks at the shapes of what is there and writes a line of torch, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod

import torch

from tests.fuzz.program import Program, execute, names_for_lines, random_leaves, tensors

MAX_NUMEL = 600
MAX_NDIM = 5


class Writer:
    """Writes a program from a seed, running it on plain tensors as it goes."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.mesh_shape, self.leaves = random_leaves(self.choice)
        self.names = names_for_lines()
        for leaf in self.leaves:
            self.names[leaf.name] = leaf.full().requires_grad_(leaf.requires_grad)
        self.lines: list[str] = []

    def write(self, count: int) -> Program:
        """The program of so many lines."""
        # Some kinds are left out, so that some programs have long stretches that nothing cuts.
        kinds = self.choice.sample(KINDS, len(KINDS) * 3 // 4)
        for _ in range(8 * count):
            if len(self.lines) == count:
                break
            line = self.choice.choice(kinds)(self)
            if line is None:
                continue
            try:
                execute(line, self.names)
            except Exception:
                continue
            self.lines.append(line)
        return Program(self.mesh_shape, self.leaves, tuple(self.lines))

    def pick(self, accept: Callable[[torch.Tensor], bool] = lambda x: True) -> str:
        """The name of a float tensor; later ones are likelier."""
        found = [n for n, x in tensors(self.names).items() if x.dtype is torch.float64 and accept(x)]
        if not found:
            raise LookupError
        return self.choice.choice(found[-8:] if self.choice.random() < 0.7 else found)

    def of(self, name: str) -> torch.Tensor:
        """The plain tensor of a name."""
        return self.names[name]

    def dim(self, name: str) -> int:
        """A dim of a tensor that has one, at times counted from the end."""
        ndim = self.of(name).ndim
        dim = self.choice.randrange(ndim)
        return dim if self.choice.random() < 0.7 else dim - ndim

    def new(self, expression: str) -> str:
        """A line that gives the value of an expression a name of its own, or an old one."""
        made = [n for n in tensors(self.names) if n.startswith("t")]
        if made and self.choice.random() < 0.2:
            return f"{self.choice.choice(made)} = {expression}"
        return f"t{len(self.lines)} = {expression}"

    def number(self) -> float:
        """A factor that is seldom the same."""
        return self.choice.choice((0.5, -1.0, 2.0, round(self.choice.uniform(-1.5, 1.5), 3)))

    def piece(self, name: str) -> str:
        """An index that leaves a part of a tensor: `[1:, ::2]`."""
        parts = []
        for size in self.of(name).shape[: self.choice.randint(1, 3)]:
            start = self.choice.randint(-1, max(0, size))
            parts.append(
                self.choice.choice(
                    (
                        ":",
                        f"{start}:",
                        f":{start}",
                        "::2",
                        "1:-1",
                        str(self.choice.randrange(max(1, size))),
                        "None",
                    )
                )
            )
        return f"[{', '.join(parts)}]"


Kind = Callable[[Writer], str | None]
KINDS: list[Kind] = []


def kind(weight: int) -> Callable[[Kind], Kind]:
    """Decorator: a kind of line, drawn with this weight."""

    def enter(function: Kind) -> Kind:
        def safe(writer: Writer) -> str | None:
            try:
                return function(writer)
            except LookupError:
                return None

        KINDS.extend([safe] * weight)
        return function

    return enter


def _has_dims(x: torch.Tensor) -> bool:
    return x.ndim > 0


@kind(3)
def pointwise(w: Writer) -> str:
    x = w.pick()
    return w.new(
        w.choice.choice(
            ("{x}.tanh()", "F.gelu({x})", "{x}.sigmoid()", "-{x}", "{x} * {a}", "{x} + {a}", "{x}.cos()",
             "F.relu({x} - 0.3137)", "{x} / 3", "{x}.exp().reciprocal()", "F.silu({x})", "{x}.clone()",
             "1 - {x}", "{x}.square() * 0.1", "{x}.clamp(-0.717, 1.313)",
             "torch.where({x} > 0.2718, {x}, {a})")
        ).format(x=x, a=w.number())
    )  # fmt: skip


def _broadcast(w: Writer, x: str) -> str:
    shape = w.of(x).shape

    def fits(y: torch.Tensor) -> bool:
        try:
            return prod(torch.broadcast_shapes(shape, y.shape)) <= MAX_NUMEL
        except RuntimeError:
            return False

    return w.pick(fits)


@kind(4)
def binary(w: Writer) -> str:
    x = w.pick()
    y = _broadcast(w, x)
    return w.new(
        w.choice.choice(
            ("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / ({y} * {y} + 1)", "torch.add({x}, {y}, alpha={a})",
             "torch.lerp({x}, {y}, 0.3)", "torch.addcmul({x}, {x}, {y}, value={a})",
             "torch.maximum({x}, {y}).detach()",
             "torch.where({x} > {a}, {x}, {y})", "{x}.masked_fill({y} > 0.4142, {a})",
             "torch.hypot({x} + 2, {y})")
        ).format(x=x, y=y, a=w.number())
    )  # fmt: skip


def _factored(numel: int, w: Writer) -> list[int]:
    sizes, rest = [], numel
    while rest > 1 and len(sizes) < 3:
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        sizes.append(w.choice.choice(divisors))
        rest //= sizes[-1]
    return [*sizes, rest]


@kind(6)
def view(w: Writer) -> str:
    x = w.pick(lambda x: 0 < x.ndim < MAX_NDIM)
    t = w.of(x)
    i, j = w.dim(x), w.dim(x)
    order = w.choice.sample(range(t.ndim), t.ndim)
    low, high = sorted((i % t.ndim, j % t.ndim))
    divisors = [d for d in range(1, t.shape[i] + 1) if t.shape[i] % d == 0] or [1]
    d = w.choice.choice(divisors)
    return w.new(
        w.choice.choice(
            (f"{x}.transpose({i}, {j})", f"{x}.permute({order})", f"{x}.reshape({_factored(t.numel(), w)})",
             f"{x}.view({_factored(t.numel(), w)})", f"{x}.flatten({low}, {high})", f"{x}.unsqueeze({i})",
             f"{x}.squeeze()", f"{x}.unflatten({i}, ({d}, -1))", f"{x}.reshape(-1)", f"{x}.squeeze({i})",
             f"{x}.expand(2, {', '.join(['-1'] * t.ndim)})", f"{x}.movedim({i}, {j})", f"{x}.contiguous()",
             f"{x}.diagonal(0, {low}, {high})", f"{x}.unfold({i}, {d}, {d})", f"{x}.view_as({x})", f"{x}.mT")
        )
    )  # fmt: skip


@kind(4)
def part(w: Writer) -> str:
    x = w.pick(_has_dims)
    size, i = 0, w.dim(x)
    size = w.of(x).shape[i]
    start = w.choice.randint(0, size)
    return w.new(
        w.choice.choice(
            (f"{x}{w.piece(x)}", f"{x}{w.piece(x)}",
             f"{x}.narrow({i}, {start}, {w.choice.randint(0, size - start)})",
             f"{x}.select({i}, {w.choice.randrange(max(size, 1))})",
             f"{x}.split({max(1, size // 2)}, {i})[-1]",
             f"{x}.chunk(3, {i})[0]", f"{x}.unbind({i})[-1]", f"{x}.flip({i})", f"{x}.roll({start}, {i})",
             f"{x}.tensor_split(3, {i})[1]", f"{x}.index_select({i}, torch.tensor({[start // 2, 0]}))",
             f"{x}[torch.tensor({w.choice.choices(range(max(1, w.of(x).shape[0])), k=3)})]",
             f"F.pad({x}, (1, 2))",
             f"{x}.repeat_interleave(2, {i})", f"{x}.tril()", f"{x}.triu(1)")
        )
    )  # fmt: skip


@kind(1)
def moved(w: Writer) -> str:
    x = w.pick(lambda x: x.ndim in (2, 3, 4))
    a, b, c, d = (w.choice.randint(-1, 3) for _ in range(4))
    size = [w.choice.randint(1, 7) for _ in range(max(1, w.of(x).ndim - 2))]
    return w.new(
        w.choice.choice(
            (f"F.pad({x}, ({a}, {b}, {c}, {d}))", f"{x}.roll(({a}, {c}), (0, 1))", f"{x}.flip(0, 1)",
             f"F.pad({x}, ({a}, {b}), 'reflect')", f"F.pad({x}, ({a}, {b}, {c}, {d}), 'replicate')",
             f"F.pad({x}, ({abs(a)}, {abs(b)}), 'circular')", f"F.interpolate({x}, {size})",
             f"F.interpolate({x}, {size}, mode='linear')", f"F.interpolate({x}, {size}, mode='bilinear')",
             f"F.interpolate({x}, {size}, mode='bicubic', align_corners=True)",
             f"F.pixel_shuffle({x}, 2)", f"F.pixel_unshuffle({x}, 2)")
        )
    )  # fmt: skip


@kind(3)
def joined(w: Writer) -> str:
    x = w.pick(_has_dims)
    i, shape = w.dim(x), w.of(x).shape
    ours = [*shape[: i % len(shape)], *shape[i % len(shape) + 1 :]]

    def fits(y: torch.Tensor) -> bool:
        theirs = list(y.shape)
        if y.ndim != len(shape):
            return False
        theirs.pop(i % len(shape))
        return theirs == ours

    y = w.pick(fits)
    z = w.pick(lambda z: z.shape == shape)
    return w.new(
        w.choice.choice(
            (f"torch.cat([{x}, {y}], {i})", f"torch.cat([{y}, {x}, {y}], {i})",
             f"torch.stack([{x}, {z}], {i})",
             f"torch.cat({x}.split(2, {i})[::-1], {i})", f"torch.stack({x}.unbind({i}), -1)")
        )
    )  # fmt: skip


@kind(4)
def reduction(w: Writer) -> str:
    x = w.pick(_has_dims)
    i, keep = w.dim(x), w.choice.random() < 0.5
    return w.new(
        w.choice.choice(
            ("{x}.sum({i}, {k})", "{x}.mean({i}, {k})", "{x}.sum()", "{x}.mean()",
             "{x}.amax({i}, {k}).detach()",
             "{x}.var({i}, keepdim={k})", "{x}.softmax({i})", "{x}.log_softmax({i})",
             "{x}.logsumexp({i}, {k})",
             "{x}.cumsum({i})", "{x}.norm(2, {i}, {k}).detach()", "{x}.sort({i}).values.detach()",
             "{x}.std()",
             "{x}.detach().min({i}, {k}).values", "{x}.prod({i}, {k}) * 0.1",
             "F.layer_norm({x}, {x}.shape[-1:])",
             "torch.linalg.vector_norm({x}.detach(), 1, {i}, {k})", "({x} > 0.2222).sum({i}).double()",
             "F.normalize({x} + 2, dim={i})", "{x}.aminmax(dim={i}).max.detach()")
        ).format(x=x, i=i, k=keep)
    )  # fmt: skip


@kind(4)
def product(w: Writer) -> str:
    x = w.pick(lambda x: 1 <= x.ndim <= 3)
    k = w.of(x).shape[-1]
    y = w.pick(lambda y: 1 <= y.ndim <= 3 and y.shape[-1] == k)
    a, b = w.of(x).ndim, w.of(y).ndim
    left, right = "abc"[: a - 1] + "k", "def"[: b - 1] + "k"
    out = [*left[:-1], *right[:-1]]
    w.choice.shuffle(out)
    return w.new(
        w.choice.choice(
            (f"torch.einsum('{left},{right}->{''.join(out)}', {x}, {y})", f"{x} @ {y}.mT",
             f"F.linear({x}, {y})",
             f"torch.einsum('{left},{right}->{''.join(out[:-1])}', {x}, {y})",
             f"torch.matmul({x}, {y}.transpose(-1, -2))",
             f"{x} @ {y}", f"torch.tensordot({x}, {y}, ([-1], [-1]))")
        )
        + " * 0.3"
    )  # fmt: skip


def _is_expanded(x: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _is_order_dependent(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether writing x from y overwrites what is still to be read: torch leaves open what comes of that."""
    if (x.shape, x.stride(), x.storage_offset()) == (y.shape, y.stride(), y.storage_offset()):
        return False
    return bool(_places(x) & _places(y))


def _places(x: torch.Tensor) -> set[tuple[int, int]]:
    """Where the elements of a tensor lie."""
    storage = x.untyped_storage()
    numbers = torch.arange(storage.nbytes() // x.element_size())
    return {
        (storage.data_ptr(), i)
        for i in numbers.as_strided(x.shape, x.stride(), x.storage_offset()).flatten().tolist()
    }


@kind(6)
def written(w: Writer) -> str:
    x = w.pick(lambda x: not _is_expanded(x))
    y = _broadcast(w, x)
    y = f"{y}.clone()" if _is_order_dependent(w.of(x), w.of(y)) else y
    where = w.piece(x) if w.of(x).ndim else "[...]"
    i = w.dim(x) if w.of(x).ndim else 0
    rows = w.choice.choices(range(max(1, w.of(x).shape[0] if w.of(x).ndim else 1)), k=2)
    line = w.choice.choice(
        ("{x}.add_({y})", "{x}.mul_({a})", "{x}.copy_({y})", "{x}{p} = {a}", "{x}{p} = {y}{p}",
         "{x}{p} += {a}",
         "{x}{p}.mul_({a})", "{x}.tanh_()", "{x}.zero_()", "{x}.addcmul_({y}, {y}, value=0.1)",
         "{x}.masked_fill_({y} > 0.4142, {a})", "{x}.transpose(0, {i}).add_({a})", "{x}.clamp_(-0.717, 1.1)",
         "{x}[torch.tensor({r})] = {a}", "{x}.index_add_(0, torch.tensor({r}), {x}[:2].clone())",
         "{x}.cumsum_({i})",
         "{x}.view(-1)[::2].sub_({a})", "{x}.select({i}, 0).copy_({y}.select({i}, 0) * 1)",
          "{x}.diagonal().fill_({a})", "{x}[{x} > 0.5772] = {a}", "{x}.lerp_({y}, 0.25)",
         "torch.add({x}, {y}, out={x})", "{x}.index_fill_({i}, torch.tensor([0]), {a})")
    ).format(x=x, y=y, a=w.number(), p=where, i=i, r=rows)  # fmt: skip
    if w.choice.random() < 0.5:
        return line
    return f"with torch.no_grad(): {line}"


@kind(1)
def reshaped_in_place(w: Writer) -> str:
    """Without a gradient: torch makes views with one anew, from a base that has another shape by now."""
    x = w.pick(lambda x: 0 < x.ndim < MAX_NDIM and not x.requires_grad)
    i = w.dim(x)
    return w.choice.choice(
        (f"{x}.t_()", f"{x}.squeeze_({i})", f"{x}.unsqueeze_({i})", f"{x}.transpose_(0, {i})")
    )


@kind(3)
def redistributed(w: Writer) -> str:
    x = w.pick()
    ndim = w.of(x).ndim
    kinds = ["R", "P", *(f"Shard({d})" for d in range(ndim))]
    places = ", ".join(w.choice.choice(kinds) for _ in w.mesh_shape)
    return w.new(f"moved({x}, {places})")


@kind(2)
def backward(w: Writer) -> str:
    x, y = w.pick(lambda x: x.requires_grad), w.pick()
    loss = w.choice.choice(
        ("{x}.sum()", "{x}.tanh().mean()", "({x} * {x}).sum() + {y}.sum()", "{x}.cos().sum()")
    )
    return f"({loss.format(x=x, y=y)}).backward(retain_graph=True)"


@kind(1)
def stepped(w: Writer) -> str:
    leaf = w.choice.choice(w.leaves).name
    return f"with torch.no_grad(): {leaf}.add_({leaf}.grad, alpha=-0.1)"


@kind(1)
def gradient(w: Writer) -> str:
    x = w.pick(lambda x: x.requires_grad)
    leaf = w.choice.choice(w.leaves).name
    return w.new(f"torch.autograd.grad({x}.tanh().sum(), {leaf}, retain_graph=True)[0]")


@kind(2)
def by_value(w: Writer) -> str:
    x = w.pick(_has_dims)
    return w.new(
        w.choice.choice(
            (f"{x}[{x} > 0.2718]", f"{x}.masked_select({x} < 0.1)", f"({x} > 0.3037).nonzero().double()",
             f"{x} * {x}.sum().item()", f"{x} if bool({x}.sum() > 0.123) else -{x}",
             f"{x}.flatten()[{x}.detach().argmax()]",
             f"{x}.repeat_interleave(({x}.select(-1, 0).flatten() > 0.3037).long() + 1, 0)",
             f"torch.where({x} > 0.3037)[0].double()", f"torch.unique(({x} > 0.3037).long()).double()")
        )
    )  # fmt: skip


@kind(1)
def kept_apart(w: Writer) -> str:
    x = w.pick()
    return w.new(
        w.choice.choice(
            (f"{x}.detach()", f"{x}.detach().requires_grad_()", f"torch.zeros_like({x})", f"{x}.data")
        )
    )
