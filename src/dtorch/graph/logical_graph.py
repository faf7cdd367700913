"""What was called, node by node, and what it costs.

A `Node` is one use of an operator. A `LogicalGraph` collects nodes while it is open (`graph.record()`), as
they are called, whenever they run. It answers what is computed, what is communicated, over which mesh axes,
and whether the user asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from dtorch.graph.listing import line, numbers_in
from dtorch.graph.recipe import Recipe
from dtorch.graph.wiring import Wiring
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op import document
from dtorch.op.call import meta_of
from dtorch.op.cost import OperatorCost
from dtorch.op.operand import Operand, Parts
from dtorch.op.operator import Operator
from dtorch.ops.standard.convert import Convert
from dtorch.ops.system.get_tensor import GetTensor
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph
    from dtorch.graph.sub_graph import SubGraphParam


class Node(NamedTuple):
    """One use of an operator.

    Attributes:
        operator: what was called.
        inputs, outputs: specs, None for absent operands and outputs that are no tensors.
        cause: for an implicit conversion, the operator that needed it.
        in_backward: whether autograd issued it.
        place: where the user's program called it, as `confirm.users_place` notes it.
    """

    operator: Operator
    inputs: tuple[Spec | None, ...]
    outputs: tuple[Spec | None, ...]
    cause: Operator | None = None
    in_backward: bool = False
    place: Any = None


def node_of(
    operator: Operator,
    operands: Sequence[Operand | None],
    results: Sequence[Parts] | None,
    in_backward: bool,
) -> Node:
    """The node of an operator; outputs that it could not infer are read off the results of its run.

    They are known to the node's own operator, which is priced with them.
    """
    inputs = tuple(None if o is None else o.spec for o in operands)
    if operator.outputs or results is None:
        outputs = tuple(None if o is None else o.spec for o in operator.outputs)
    else:
        outputs = tuple(
            replicated_spec(operator.mesh, parts[0]) if isinstance(parts[0], torch.Tensor) else None
            for parts in results
        )
        operator = operator.forgetful()
        operator.outputs = tuple(None if spec is None else Operand(spec) for spec in outputs)
    return Node(operator, inputs, outputs, None, in_backward)


def replicated_spec(mesh: DeviceMesh, tensor: torch.Tensor) -> Spec:
    """The spec of a tensor that every device of the mesh holds whole."""
    meta = meta_of(tensor)
    return Spec(meta.shape, meta.stride, meta.dtype, Layout.replicate(mesh.shape, meta.shape), mesh)


class Communication(NamedTuple):
    """One exchange between devices.

    Attributes:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all, exchange, transfer, get (a value read,
            received by the first device), or within an operator statistics or halo.
        axes: names (or numbers) of the mesh axes, joined by "+".
        implicit: whether dtorch chose it.
        cause: type of the operator that needed it, or "" where the user asked.
        bytes: received by all devices together.
        in_backward: whether autograd issued it.
    """

    kind: str
    axes: str
    implicit: bool
    cause: str
    bytes: int
    in_backward: bool


class LogicalGraph:
    """The container of nodes.

    Attributes:
        nodes: in the order of the program.
        wiring: which of them reads what another one made.
    """

    replayer: ClassVar[Any] = None

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.wiring = Wiring()

    def add(self, node: Node, given: Sequence[Operand | None] = (), made: Sequence[Operand] = ()) -> None:
        """Enter a node.

        Args:
            node: it.
            given, made: on described devices the operands it reads, and those it makes or writes; their
                `parts` say which of them are one storage.
        """
        self.nodes.append(node)

    def wire_conversion(self, operand: Operand, result: Operand) -> None:
        """Note what the last node reads and makes, a conversion that no operator has asked for."""
        number, operator = len(self.nodes) - 1, self.nodes[-1].operator
        implied = isinstance(operator, Convert) and operator.implicit
        if implied and not self.wiring.knows(operand):
            return
        self.wiring.use(number, [operand], [result], {}, ())
        if implied:
            self.wiring.implied.append(number)

    def wire(
        self, recipe: Recipe, operands: Sequence[Operand], results: Sequence[Any], plain: Sequence[int]
    ) -> None:
        """Note what the last call reads and makes.

        Args:
            recipe: its recipe.
            operands: its inputs, before any conversion.
            results: its outputs, after any conversion.
            plain: inputs that are plain tensors, or another graph's.
        """
        # Conversions of its outputs may follow its node.
        node = next(
            i for i in reversed(range(len(self.nodes))) if not isinstance(self.nodes[i].operator, Convert)
        )
        arguments = {i: p.input for i, p in enumerate(recipe.outputs or ()) if p.source == "argument"}
        self.wiring.use(node, operands, results, arguments, plain)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def operators(self) -> list[Operator]:
        """The operator of each node."""
        return [node.operator for node in self.nodes]

    def cost(self, causal_block: int | None = None) -> OperatorCost:
        """Price of all nodes together.

        Args:
            causal_block: count causal attention as a kernel does that skips blocks of this size above the
                diagonal; None counts it in full.
        """
        total = OperatorCost()
        for node in self.nodes:
            price = node.operator.price()
            if causal_block is not None:
                price = replace(price, flops=node.operator.causal_flops(causal_block))
            total = total + price
        return total

    def communications(self) -> list[Communication]:
        """Every exchange between devices, in order; local conversions are none."""
        found: list[Communication] = []
        for node in self.nodes:
            sent = communication_of(node)
            if node.operator.inner is not None:
                found += node.operator.inner.communications()
            elif sent is not None:
                found.append(sent)
        return found

    def run(self, *inputs: torch.Tensor, graph: Graph | None = None) -> list[Any]:
        """Run the graph again, without gradient history. Inputs that it writes are written.

        Args:
            inputs: one tensor for each of the graph's inputs, of its shape and dtype; plain ones are spread,
                and distributed ones brought, to the placements of the recording. Sizes, numbers and decisions
                that the program had taken from values are those of the recording.
            graph: where to run; by default this thread's.

        Returns:
            The graph's outputs, in order; see `save` for what these are.

        Raises:
            ShapeError: another number of inputs, shape or dtype than was recorded.
            MeshMismatchError: an input on another mesh.
        """
        return type(self).replayer(self, inputs, graph)

    def as_param(
        self, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
    ) -> SubGraphParam:
        """The graph as the parameters of one operator, for `dtorch.operators.add_operator(param, *inputs)`.

        Args:
            inputs, outputs: as for `save`.

        Raises:
            UnsupportedError: the graph writes an input, or holds a backward.
            SerializationError: as `save`.
        """
        from dtorch.graph.sub_graph import as_param

        return as_param(self, inputs, outputs)

    def save(
        self, path: str | Path, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
    ) -> None:
        """Write the graph into a file, as readable JSON where its name ends in ".json".

        Args:
            path: the file; `Graph.load` reads it.
            inputs: the tensors that a later run is given; by default all that no node made, in the order of
                their first use. Plain tensors of at most 1 MiB that took part are kept in the file.
            outputs: the tensors that a run gives; by default all that were made, that no node has read, and
                that somebody holds.

        Raises:
            SerializationError: a tensor that took no part; one that took part and is not among the inputs;
                an argument that is no plain value.
        """
        from dtorch.graph import serialize

        serialize.save(self, path, inputs, outputs)

    def to_bytes(self, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None) -> bytes:
        """What `save` writes into a binary file."""
        from dtorch.graph import serialize

        return document.to_bytes(serialize.to_document(self, inputs, outputs))

    def to_json(self, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None) -> str:
        """What `save` writes into a JSON file."""
        from dtorch.graph import serialize

        return document.to_json(serialize.to_document(self, inputs, outputs))

    @staticmethod
    def from_bytes(data: bytes) -> LogicalGraph:
        """The graph of a binary file; nothing is run.

        Raises:
            SerializationError: the file is damaged, newer, or names what is not registered here.
        """
        from dtorch.graph import serialize

        return serialize.from_document(document.from_bytes(data))

    @staticmethod
    def from_json(text: str | bytes) -> LogicalGraph:
        """The graph of a JSON file.

        Raises:
            SerializationError: as `from_bytes`.
        """
        from dtorch.graph import serialize

        return serialize.from_document(document.from_json(text))

    def received(self) -> dict[int, dict[str, int]]:
        """Bytes that each device receives: device id -> kind as of `communications()` -> bytes."""
        found: dict[int, Counter[str]] = {}
        for node in self.nodes:
            sent, operator = communication_of(node), node.operator
            if sent is None:
                continue
            # Of a move to another mesh the devices that receive come first, then those that send.
            devices = (*operator.priced_mesh.device_ids, *operator.mesh.device_ids)
            for device, count in zip(devices, operator.received_bytes()):
                found.setdefault(device, Counter())[sent.kind] += count
        return {device: dict(kinds) for device, kinds in found.items()}

    def __str__(self) -> str:
        """A line a call: operator, placements of its outputs, price, and the line that made the call."""
        return self._lines(inputs=False)

    def listing(self) -> str:
        """The same with placements of inputs too."""
        return self._lines(inputs=True)

    def _lines(self, inputs: bool) -> str:
        return "\n".join(
            line(
                number,
                node.operator,
                numbers_in(self.wiring.numbers(number)),
                node.inputs if inputs else None,
                node.outputs,
                node.place,
            )
            for number, node in enumerate(self.nodes)
        )


def communication_of(node: Node) -> Communication | None:
    """What a node makes devices send, None where it is nothing."""
    operator = node.operator
    if isinstance(operator, Convert):
        if operator.plan.bytes_total == 0:
            return None
        cause = "" if node.cause is None else node.cause.type
        axes = _axis_names(operator, operator.axes)
        return Communication(
            operator.kind, axes, operator.implicit, cause, operator.plan.bytes_total, node.in_backward
        )
    if isinstance(operator, GetTensor):
        received = operator.plan.bytes_total
        return Communication("get", "", False, "", received, node.in_backward) if received else None
    if operator.inner is not None:
        return _together(operator.inner.communications(), node.in_backward)
    sent = sum(operator.received_bytes())
    if not sent:
        return None
    axes = _axis_names(operator, operator.sending_axes())
    return Communication(operator.sends, axes, False, operator.type, sent, node.in_backward)


def _together(sent: Sequence[Communication], in_backward: bool) -> Communication | None:
    """All that a sub-graph sends, as one."""
    if not sent:
        return None
    kinds = "+".join(dict.fromkeys(one.kind for one in sent))
    axes = "+".join(dict.fromkeys(axis for one in sent for axis in one.axes.split("+")))
    implicit = all(one.implicit for one in sent)
    return Communication(kinds, axes, implicit, "SubGraph", sum(one.bytes for one in sent), in_backward)


def _axis_names(operator: Operator, axes: tuple[int, ...]) -> str:
    names = operator.mesh.dim_names
    return "+".join(str(axis) if names is None else names[axis] for axis in axes)
