"""`dtorch.explain`: by which plans a function runs, and what passes made of what it recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_leaves

from dtorch.errors import UnsupportedError
from dtorch.graph.graph import Graph
from dtorch.plan import cache
from dtorch.plan.codegen import Plan
from dtorch.tensor import Tensor


class Explanation:
    """The plans of one call.

    Attributes:
        plans: in the order in which they ran; `plan.explain()` tells of one.
    """

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = plans

    def __str__(self) -> str:
        """What became of each recorded sequence."""
        if not self.plans:
            return "nothing was recorded: no call on distributed tensors"
        return "\n\n".join(plan.explain() for plan in self.plans)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Call a function, and tell by which plans its calls on distributed tensors ran.

    It is called twice: once so that all its calls are known, once to look at. What it recorded is run at its
    end, so its results count as wanted.

        print(dtorch.explain(step, batch))

    Args:
        function: called with the other arguments.

    Raises:
        TypeError: `function` cannot be called.
        UnsupportedError: DTORCH_EAGER=1, under which nothing runs by a plan.
        Exception: what the function raises.
    """
    if not callable(function):
        raise TypeError(
            f"explain() takes a function and its arguments, not a {type(function).__name__}: "
            "explain(lambda: ...) tells of the calls in it"
        )
    given = _graphs((args, kwargs))
    graphs = list(dict.fromkeys([*given, Graph.default_graph()]))
    if any(graph.constructor.eager for graph in given or graphs):
        raise UnsupportedError("explain(): under DTORCH_EAGER=1 each call runs at once, without a plan")
    _call(function, args, kwargs, graphs)
    with cache.watched() as plans:
        _call(function, args, kwargs, graphs)
    return Explanation(plans)


def _call(function: Callable[..., Any], args: tuple, kwargs: dict, graphs: list[Graph]) -> None:
    """Call it on graphs on which nothing is pending, and run what it recorded while its value is held."""
    for graph in graphs:
        graph.sync()
    value = function(*args, **kwargs)
    for graph in dict.fromkeys([*graphs, *_graphs(value)]):
        graph.sync()
    del value


def _graphs(values: Any) -> list[Graph]:
    return list(dict.fromkeys(leaf._graph for leaf in tree_leaves(values) if isinstance(leaf, Tensor)))
