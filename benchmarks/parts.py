"""What a recorded call is made of: `python -m benchmarks.parts`, medians in microseconds, one torch thread.

*the way* is what any tensor subclass pays in torch: to `__torch_dispatch__` and back. *the tensor* is torch's
making of one without data. What is left of *whole* is dtorch's: key, recipe, node. *kernel* is the same call
on a plain tensor; a call on 4 devices runs four, and is recorded once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import dtorch
from dtorch import DeviceMesh, Shard, native

CALLS, REPEATS = 200, 200
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: torch.add(x, y),
    "mm": lambda x, y: torch.mm(x, y),
    "view": lambda x, y: x.view(64),
    "t": lambda x, y: x.t(),
}


class Bare(torch.Tensor):
    """A subclass that answers every call with a tensor that is there, of no use for views."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return made(Bare) if func in VIEWS else READY


VIEWS = (torch.ops.aten.view.default, torch.ops.aten.t.default)


def made(cls: type) -> torch.Tensor:
    """A tensor without data."""
    return torch.Tensor._make_wrapper_subclass(cls, (8, 8), (8, 1))  # type: ignore[attr-defined]


READY = made(Bare)


def microseconds(function: Callable[[], Any], after: Callable[[], Any] = lambda: None) -> float:
    """The median time of a call; `after` runs between the repeats, unmeasured."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
        after()
    return statistics.median(found)


def main() -> None:
    """Print the parts of each call."""
    torch.set_num_threads(1)
    bare, mesh = made(Bare), DeviceMesh("cpu", [0])
    where = "Python" if native.loaded("again") is None else "C"
    making = microseconds(lambda: made(Bare))
    print(f"microseconds a call, recorded in {where}")
    print(f"{'call':6}{'whole':>8}{'the way':>9}{'the tensor':>12}{'dtorch':>8}{'kernel':>8}")
    with torch.no_grad():
        for name, function in FUNCTIONS.items():
            x, y = (dtorch.Tensor(torch.randn(8, 8), mesh, [Shard(0)]) for _ in range(2))
            whole = microseconds(lambda f=function, x=x, y=y: f(x, y), x.graph.sync)  # type: ignore[misc]
            way = microseconds(lambda f=function: f(bare, bare))  # type: ignore[misc]
            way -= making if name in ("view", "t") else 0
            plain = torch.randn(8, 8)
            kernel = microseconds(lambda f=function, p=plain: f(p, p))  # type: ignore[misc]
            ours = whole - way - making
            print(f"{name:6}{whole:8.2f}{way:9.2f}{making:12.2f}{ours:8.2f}{kernel:8.2f}")


if __name__ == "__main__":
    main()
