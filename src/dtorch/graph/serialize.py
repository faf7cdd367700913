"""Recorded graphs to files and back. Reading infers nothing and runs nothing; `LogicalGraph.run` runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from dtorch.errors import SerializationError
from dtorch.graph.confirm import line_of
from dtorch.graph.logical_graph import LogicalGraph, Node
from dtorch.graph.wiring import Free, Use
from dtorch.op import document, records
from dtorch.op.serialize import Reader, Writer, check_body, torch_value, value_of, value_record


def to_document(
    graph: LogicalGraph, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
) -> records.Document:
    """A file of a graph; inputs and outputs as `Wiring.interface` takes them."""
    wiring, writer = graph.wiring, Writer()
    wiring.interface(inputs, outputs)
    body = records.GraphBody(
        nodes=[_node_record(writer, node, wiring.uses.get(i)) for i, node in enumerate(graph.nodes)],
        operands={str(number): writer.spec(spec) for number, spec in wiring.outside.items()},
        inputs=wiring.inputs or [],
        outputs=wiring.outputs or [],
        results=[writer.spec(wiring.results[number]) for number in wiring.outputs or ()],
        constants={str(number): _constant(tensor) for number, tensor in wiring.constants.items()},
    )
    return writer.document(body)


def _node_record(writer: Writer, node: Node, use: Use | None) -> records.Node:
    reads: list[Any] | None = None
    if use is not None:
        reads = [records.Free(value_record(r.value)) if isinstance(r, Free) else r for r in use.reads]
    return records.Node(
        operator=writer.operator(node.operator),
        inputs=[writer.maybe(spec) for spec in node.inputs],
        outputs=[writer.maybe(spec) for spec in node.outputs],
        cause=None if node.cause is None else writer.operator(node.cause),
        in_backward=node.in_backward,
        reads=reads,
        makes=[] if use is None else list(use.makes),
        place=line_of(node.place),
    )


def from_document(file: records.Document) -> LogicalGraph:
    """The graph of a file.

    Raises:
        SerializationError: the file is of something else, contradicts itself, or names what is not here.
    """
    with document.reading():
        check_body(file, records.GraphBody)
        body, reader, graph = file.body, Reader(file), LogicalGraph()
        assert isinstance(body, records.GraphBody)
        graph.nodes = [_node(reader, record) for record in body.nodes]
        wiring = graph.wiring
        wiring.outside = {int(number): reader.specs[spec] for number, spec in body.operands.items()}
        wiring.constants = {int(n): _tensor(record) for n, record in body.constants.items()}
        wiring.inputs, wiring.outputs = list(body.inputs), list(body.outputs)
        results = [reader.specs[spec] for spec in body.results]
        wiring.results = dict(zip(body.outputs, results, strict=True))
        wiring.uses = {
            i: Use(tuple(map(_read, record.reads)), tuple(record.makes))
            for i, record in enumerate(body.nodes)
            if record.reads is not None
        }
        _check(graph)
        return graph


def _node(reader: Reader, record: records.Node) -> Node:
    return Node(
        reader.operators[record.operator],
        tuple(map(reader.maybe, record.inputs)),
        tuple(map(reader.maybe, record.outputs)),
        None if record.cause is None else reader.operators[record.cause],
        record.in_backward,
        record.place,
    )


def _read(read: int | records.Free) -> int | Free:
    return Free(value_of(read.value)) if isinstance(read, records.Free) else read


def _check(graph: LogicalGraph) -> None:
    """Whether each operand is there before it is read, as often as operators have inputs."""
    wiring = graph.wiring
    known = {*(wiring.inputs or ()), *wiring.constants}
    if not known <= wiring.outside.keys():
        raise SerializationError("inputs or constants that are no operands of the graph")
    for number, tensor in wiring.constants.items():
        spec = wiring.outside[number]
        if (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
            raise SerializationError(f"constant {number} is not the tensor that its operand says")
    for i, use in sorted(wiring.uses.items()):
        node = graph.nodes[i]
        reads = {read for read in use.reads if not isinstance(read, Free)}
        if not reads <= known or len(use.reads) != len(node.operator.inputs):
            raise SerializationError(f"node {i} reads operands {sorted(reads - known)} that nothing makes")
        known.update(number for number in use.makes if number is not None)
    if not known.issuperset(wiring.outputs or ()):
        raise SerializationError("the graph gives operands that nothing makes")


def _constant(tensor: torch.Tensor) -> records.Constant:
    flat = tensor.detach().to("cpu").resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    return records.Constant(list(tensor.shape), str(tensor.dtype), bytes(flat.tolist()))


def _tensor(record: records.Constant) -> torch.Tensor:
    dtype = torch_value(record.dtype, torch.dtype)
    if min(record.shape, default=0) < 0 or prod(record.shape) * dtype.itemsize != len(record.data):
        raise SerializationError(f"{len(record.data)} bytes for a {record.dtype} tensor {record.shape}")
    if not record.data:
        return torch.empty(record.shape, dtype=dtype)
    return torch.frombuffer(bytearray(record.data), dtype=dtype).reshape(record.shape)


def save(
    graph: LogicalGraph,
    path: str | Path,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> None:
    """Write a graph into a file, as JSON where its name ends so."""
    path, made = Path(path), to_document(graph, inputs, outputs)
    if path.suffix == ".json":
        path.write_text(document.to_json(made), encoding="utf-8")
    else:
        path.write_bytes(document.to_bytes(made))


def load(path: str | Path) -> LogicalGraph:
    """Read a graph from a file, binary or JSON.

    Raises:
        SerializationError: the file is damaged, newer, of something else, or names what is not here.
    """
    data = Path(path).read_bytes()
    read = document.from_json if data.lstrip()[:1] == b"{" else document.from_bytes
    return from_document(read(data))
