"""A program is leaves and lines of torch; it runs on plain tensors and on a mesh, and must come to the same.

Everything is computed in double precision: sums in another order differ by far less than anything else does.
A program that comes to something else is shrunk: lines and cuts of leaves are left out while it fails.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

import dtorch
from dtorch import Partial, Placement, Replicate, Shard
from dtorch.testing.compare import Tolerance, difference, plain

MESHES = ((2,), (3,), (4,), (2, 2), (3, 2), (2, 1, 2))
SIZES = (0, 1, 2, 3, 4, 5, 6, 7)
CLOSE = Tolerance(1e-9, 1e-9)

Names = dict[str, Any]


@dataclass(frozen=True)
class Leaf:
    """A tensor that a program begins with: values are drawn from its seed."""

    name: str
    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    requires_grad: bool
    seed: int

    def full(self) -> torch.Tensor:
        """Its value."""
        return torch.randn(
            self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(self.seed)
        )

    def __str__(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        return f"{self.name} = leaf({list(self.shape)}, {list(self.placements)}{grad})"


@dataclass(frozen=True)
class Program:
    """Leaves and lines.

    Attributes:
        mesh_shape: of the mesh.
        leaves: what lines begin with.
        lines: statements of Python; names are tensors.
    """

    mesh_shape: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        text = [f"mesh {list(self.mesh_shape)}", *map(str, self.leaves), *self.lines]
        return "\n".join(f"    {line}" for line in text)


def moved(x: Any, *placements: Placement) -> Any:
    """A copy under other placements; of a plain tensor a copy. What one tensor lacks in dims stays whole."""
    if not isinstance(x, dtorch.Tensor):
        return x.clone()
    fit = [Replicate() if p.is_shard() and p.get_shard_index() >= x.ndim else p for p in placements]
    return x.redistribute(placements=fit).clone()


def names_for_lines(seed: int = 0) -> Names:
    """What lines may use beside tensors."""
    torch.manual_seed(seed)
    return {"torch": torch, "F": F, "moved": moved, "Shard": Shard, "R": Replicate(), "P": Partial()}


def execute(line: str, names: Names) -> None:
    """Run one line; tensors that it makes are entered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(line, names)


def tensors(names: Names) -> dict[str, torch.Tensor]:
    """The tensors among the names."""
    return {name: value for name, value in names.items() if isinstance(value, torch.Tensor)}


def on_plain(program: Program) -> tuple[Names, tuple[str, ...]]:
    """The names after a run on plain tensors, and the lines that torch accepts there, one after the other.

    A line that makes an infinity is left out: one that meets a pending sum gives NaN (docs/layouts.md).
    """
    names = names_for_lines()
    for leaf in program.leaves:
        names[leaf.name] = leaf.full().requires_grad_(leaf.requires_grad)
    accepted = []
    for line in program.lines:
        try:
            execute(line, names)
        except Exception:
            continue
        made = names.get(line.partition(" = ")[0])
        if isinstance(made, torch.Tensor) and not _is_stale(made) and made.detach().isinf().any():
            del names[line.partition(" = ")[0]]
            continue
        accepted.append(line)
    return names, tuple(accepted)


def on_mesh(program: Program) -> Names:
    """The names after a run on a mesh."""
    names = names_for_lines()
    mesh = dtorch.DeviceMesh(
        "cpu", torch.arange(torch.Size(program.mesh_shape).numel()).view(program.mesh_shape)
    )
    for leaf in program.leaves:
        names[leaf.name] = dtorch.Tensor(
            leaf.full(), mesh, list(leaf.placements), requires_grad=leaf.requires_grad
        )
    for line in program.lines:
        try:
            execute(line, names)
        except Exception as error:
            raise RuntimeError(f"{line}: {type(error).__name__}: {error}") from error
    return names


def fault(program: Program) -> str | None:
    """What differs between the two runs, None if nothing; lines that plain torch refuses are left out."""
    expected, lines = on_plain(program)
    try:
        found = on_mesh(replace(program, lines=lines))
        return next(_differences(found, expected), None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _differences(found: Names, expected: Names) -> Iterator[str]:
    for name, theirs in tensors(expected).items():
        ours = found[name]
        if _is_stale(theirs):
            continue
        pairs = [(name, ours, theirs)]
        if theirs.is_leaf and (theirs.grad is not None or ours.grad is not None):
            pairs.append((f"{name}.grad", ours.grad, theirs.grad))
        for what, a, b in pairs:
            if a is None or b is None:
                yield f"{what} is {'absent' if a is None else 'there'}, unlike torch's"
            elif a.requires_grad != b.requires_grad or tuple(a.shape) != tuple(b.shape):
                yield f"{what} says {list(a.shape)}, requires_grad={a.requires_grad}"
            else:
                scale = max(1.0, b.detach().abs().nan_to_num(0, 0, 0).max().item()) if b.numel() else 1.0
                allowed = CLOSE._replace(atol=CLOSE.atol * scale) if b.is_floating_point() else None
                why = difference(plain(a), b.detach(), allowed)
                if why is not None:
                    yield f"{what}: {why}"


def _is_stale(x: torch.Tensor) -> bool:
    """Whether torch forbids looking at a tensor: one of several views at once, its base written since."""
    try:
        x.grad_fn  # noqa: B018
    except RuntimeError:
        return True
    return False


def shrunk(program: Program) -> Program:
    """The smallest program found by leaving out that still fails."""
    program = replace(program, lines=on_plain(program)[1])
    for _ in range(10):
        smaller = _leave_out_lines(program)
        smaller = _whole_leaves(smaller)
        if smaller == program:
            break
        program = smaller
    used = " ".join(program.lines)
    kept = tuple(leaf for leaf in program.leaves if leaf.name in used)
    alone = replace(program, leaves=kept)
    return alone if fault(alone) else program


def _leave_out_lines(program: Program) -> Program:
    size = max(1, len(program.lines) // 2)
    while True:
        start = len(program.lines) - size
        while start > -size:
            lines = program.lines[: max(start, 0)] + program.lines[start + size :]
            lines = on_plain(replace(program, lines=lines))[1]
            candidate = replace(program, lines=lines)
            if fault(candidate):
                program = candidate
            start -= size
        if size == 1:
            return program
        size //= 2


def _whole_leaves(program: Program) -> Program:
    for i, leaf in enumerate(program.leaves):
        for change in (
            {"placements": (Replicate(),) * len(leaf.placements)},
            *(
                {"placements": (*leaf.placements[:a], Replicate(), *leaf.placements[a + 1 :])}
                for a in range(len(leaf.placements))
            ),
            {"requires_grad": False},
        ):
            leaves = list(program.leaves)
            leaves[i] = replace(leaves[i], **change)
            candidate = replace(program, leaves=tuple(leaves))
            if candidate != program and fault(candidate):
                program = candidate
    return program


def random_leaves(choice: random.Random) -> tuple[tuple[int, ...], tuple[Leaf, ...]]:
    """A mesh shape and a few leaves."""
    mesh_shape = choice.choice(MESHES)
    few = (
        [choice.choice(SIZES) for _ in range(3)] if choice.random() < 0.15 else choice.choices(SIZES[1:], k=3)
    )
    leaves = []
    for number in range(choice.randint(2, 4)):
        shape = tuple(choice.choice(few) for _ in range(choice.choice((1, 2, 2, 3, 3, 4))))
        placements = tuple(random_placement(len(shape), choice) for _ in mesh_shape)
        leaves.append(Leaf(f"a{number}", shape, placements, choice.random() < 0.6, choice.randrange(1 << 30)))
    return mesh_shape, tuple(leaves)


def random_placement(ndim: int, choice: random.Random) -> Placement:
    """Mostly a cut."""
    kind = choice.random()
    return (
        Replicate() if kind < 0.25 or not ndim else Partial() if kind < 0.4 else Shard(choice.randrange(ndim))
    )
