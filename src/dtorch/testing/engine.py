"""The same call through the real door: distributed tensors, engine, autograd; compared with torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import flatten
from dtorch.op.operand import Operand
from dtorch.op.param import TorchCall, fill
from dtorch.spec import Spec
from dtorch.tensor import Tensor, wrap
from dtorch.testing.calls import Call, copy
from dtorch.testing.compare import difference, plain
from dtorch.testing.local import parts_of


def distributed(
    full: torch.Tensor,
    layout: Layout,
    mesh: DeviceMesh,
    generator: torch.Generator | None,
    requires_grad: bool = False,
) -> Tensor:
    """A leaf of a given value and layout; its pending sums, if any, are those of `parts_of`."""
    full = copy(full)
    spec = Spec(tuple(full.shape), full.stride(), full.dtype, layout, mesh)
    tensor = wrap(Operand(spec, parts_of(full, layout, mesh, generator)), Graph.default_graph())
    return tensor.requires_grad_() if requires_grad else tensor


class Reference:
    """What plain torch makes of a call: outputs, and gradients of everything that can have one.

    Attributes:
        outputs: flat.
        cotangents: for each output that has a gradient, generic values of its shape; else None.
        gradients: for each input, None where it has none; all None where torch refuses the backward.
    """

    def __init__(self, call: Call, seed: int = 0, backward: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed + 1)
        self.call = call
        self.backward = backward and isinstance(call.param, TorchCall)
        leaves, outputs = self._plainly()
        self.outputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in outputs]
        self.cotangents = [
            torch.randn(x.shape, dtype=x.dtype, generator=generator)
            if isinstance(x, torch.Tensor) and x.requires_grad
            else None
            for x in outputs
        ]
        self.gradients: list[torch.Tensor | None] = [None] * len(leaves)
        if any(c is not None for c in self.cotangents):
            try:
                self.gradients = _backward(leaves, outputs, self.cotangents)
            except (RuntimeError, NotImplementedError):
                self.cotangents = [None] * len(outputs)

    def _plainly(self) -> tuple[list[Any], list[Any]]:
        """Forward on plain tensors; where torch has no gradient for some input, without any."""
        inputs = self.call.inputs
        try:
            return _forward(self.call, [None if x is None else copy(x) for x in inputs], self.backward)
        except RuntimeError:
            self.backward = False
            return _forward(self.call, [None if x is None else copy(x) for x in inputs], False)

    def wrong(
        self, layouts: Sequence[Layout | None], mesh: DeviceMesh, seed: int = 0, policy: str = "auto"
    ) -> str | None:
        """Why the engine's answer for inputs of these layouts differs, None if it does not.

        Args:
            layouts: of the inputs.
            mesh: where.
            seed: of pending sums.
            policy: under "error" the forward may not send anything to make its inputs legal.
        """
        generator = torch.Generator().manual_seed(seed)
        tensors = [
            None if x is None or layout is None else distributed(x, layout, mesh, generator)
            for x, layout in zip(self.call.inputs, layouts, strict=True)
        ]
        try:
            with Graph.default_graph().redistribute_policy(policy):
                leaves, outputs = _forward(self.call, tensors, self.backward)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return self._compare(leaves, outputs) or self._compare_gradients(leaves, outputs)

    def _compare(self, leaves: list[Any], outputs: list[Any]) -> str | None:
        if len(outputs) != len(self.outputs):
            return f"{len(outputs)} outputs instead of {len(self.outputs)}"
        for i, (found, wanted) in enumerate(zip(outputs, self.outputs, strict=True)):
            if not isinstance(wanted, torch.Tensor):
                if found != wanted:
                    return f"output {i}: {found} is not {wanted}"
                continue
            if tuple(found.shape) != tuple(wanted.shape) or found.dtype != wanted.dtype:
                says = f"{list(found.shape)} {found.dtype}"
                return f"output {i} says {says}, not {list(wanted.shape)} {wanted.dtype}"
            if found.requires_grad != (self.cotangents[i] is not None) and any(
                c is not None for c in self.cotangents
            ):
                return f"output {i} has requires_grad={found.requires_grad}"
            why = difference(plain(found), wanted, self.call.tolerance(wanted))
            if why is not None:
                return f"output {i}: {why}"
        return None

    def _compare_gradients(self, leaves: list[Any], outputs: list[Any]) -> str | None:
        if all(c is None for c in self.cotangents):
            return None
        cotangents = [
            None if c is None else self._cotangent(c, y)
            for c, y in zip(self.cotangents, outputs, strict=True)
        ]
        try:
            gradients = _backward(leaves, outputs, cotangents)
        except Exception as error:
            return f"backward: {type(error).__name__}: {error}"
        found: Any
        for i, (found, wanted) in enumerate(zip(gradients, self.gradients, strict=True)):
            if (found is None) != (wanted is None):
                return f"gradient {i} is {'absent' if found is None else 'there'}, unlike torch's"
            if found is None or wanted is None:
                continue
            why = difference(plain(found), wanted, self.call.tolerance(wanted))
            if why is not None:
                return f"gradient {i}: {why}"
            if found._operand.layout is not leaves[i]._operand.layout:
                return f"gradient {i} has placements {found.placements}, its leaf {leaves[i].placements}"
        return None

    @staticmethod
    def _cotangent(full: torch.Tensor, like: Tensor) -> Tensor:
        """Laid out as the output is, pending sums included."""
        generator = torch.Generator().manual_seed(5)
        return distributed(full, like._operand.layout, like.device_mesh, generator)


def _forward(call: Call, inputs: Sequence[Any], backward: bool) -> tuple[list[Any], list[Any]]:
    if not isinstance(call.param, TorchCall):
        operands = [None if x is None else x._operand for x in inputs]
        if any(isinstance(x, Tensor) for x in inputs):
            graph = Graph.default_graph()
            results = graph.constructor.add_operator(call.param, operands)
            return list(inputs), [wrap(r, graph) if isinstance(r, Operand) else r for r in results]
        return list(inputs), call.run()
    if backward:
        for x in inputs:
            if x is not None and (x.is_floating_point() or x.is_complex()):
                x.requires_grad_()
    written = call.written
    values = [x.clone() if i in written else x for i, x in enumerate(inputs)]
    results = call.param.func(*fill(call.param.args, values), **fill(call.param.kwargs, values))
    return list(inputs), flatten(results)


def _backward(leaves: list[Any], outputs: list[Any], cotangents: Sequence[Any]) -> list[torch.Tensor | None]:
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if c is not None]
    torch.autograd.backward([y for y, _ in pairs], [c for _, c in pairs])
    return [None if x is None or not x.requires_grad else x.grad for x in leaves]
