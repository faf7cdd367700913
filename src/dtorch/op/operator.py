"""The life of every operator, as a template method; families fill in steps.

    infer()
      infer_output()
        check_input()                    dtypes, mesh, placements legal for shape and mesh
        infer_output_meta_info()         shape, stride, dtype of the outputs
        infer_output_placements()        unless skip_placement_inference()
      infer_operator_assign_info()       which streams run it

An operator is inferred once, on operands without values, and shared by every call with the same key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtorch import redistribute
from dtorch.errors import MeshMismatchError, PlacementError
from dtorch.layout import Layout
from dtorch.op import registry
from dtorch.op.call import MetaFailed, OutputMeta, flatten, metas, run_on_meta
from dtorch.op.choice import Choice, choose, scattered
from dtorch.op.dims import UNCUT, Dims, Rule, concretize, parse
from dtorch.op.local import Local
from dtorch.op.operand import Operand
from dtorch.op.param import OpParam, TorchCall
from dtorch.op.priced import Priced
from dtorch.op.signature import PlacementSignature, Row
from dtorch.op.stream import StreamKey
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.op.group import Group


class Operator(Priced):
    """Base of all operators.

    A subclass is an operator type, unless it says `class Base(Operator, abstract=True)`.

    Class attributes:
        type: the operator type's name, by default the class's.
        rules: torch operator -> its dims line.
        torch_ops: further torch operators served, whose rule a method builds.
        needs_siblings: `compute_group` runs it, seeing the shards of all devices.
        gradient_of: output number -> name of the argument whose gradient it is; where that argument is cut, a
            pending output is reduce-scattered to the same cut.
        free_scalars: torch operator -> arguments whose float value no rule, metadata or price depends on;
            calls that differ in these alone share one recipe and one plan.
        free_starts: torch operator -> tensors whose dim must be whole for bounds of slices to be such inputs.
        left_out: (torch operator or "" for all, part of a rule as the judge writes it, why), for rules that
            hold, by accident of a call's values or sizes, or that are worth too little, and are not listed.
        reduces: pending outputs are reduced at once outside a backward, so that a user sees Replicate.
        compiled_alike: element-wise torch operators that compilers are known to leave bit for bit; regions
            of them are tested before they are used.
        alone_at_end: those of them whose last elements, behind whole vectors, torch computes by other code.
        rowwise: torch operators that need all of a row, and are compiled with what stands around them under
            "fast", where the row stays on the chip.
        products: torch operators that are matrix products, and the names of their operands: rows, the other,
            and what is added, "" for none.
    """

    rules: ClassVar[Mapping[str, Dims]] = {}
    torch_ops: ClassVar[Sequence[str]] = ()
    needs_siblings: ClassVar[bool] = False
    gradient_of: ClassVar[Mapping[int, str]] = {}
    left_out: ClassVar[Sequence[tuple[str, str, str]]] = ()
    reduces: ClassVar[bool] = False
    compiled_alike: ClassVar[frozenset[str]] = frozenset()
    alone_at_end: ClassVar[frozenset[str]] = frozenset()
    rowwise: ClassVar[frozenset[str]] = frozenset()
    products: ClassVar[Mapping[str, tuple[str, str, str]]] = {}
    free_scalars: ClassVar[Mapping[str, Sequence[str]]] = {}
    free_starts: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "compute" in cls.__dict__ and "is_torch_call" not in cls.__dict__:
            cls.is_torch_call = _is_none  # type: ignore[assignment]  # whatever a base says of its own
        if abstract:
            return
        if "type" not in cls.__dict__:
            cls.type = cls.__name__
        registry.register(cls, [*cls.__dict__.get("rules", {}), *cls.__dict__.get("torch_ops", ())])

    def __init__(self, param: OpParam, inputs: Sequence[Operand | None]) -> None:
        super().__init__(param, inputs)
        self.outputs: tuple[Operand | None, ...] = ()
        self.output_metas: tuple[OutputMeta | None, ...] = ()
        self.streams: tuple[StreamKey, ...] = ()
        self.choice: Choice | None = None

    def describe(self) -> str:
        """One line: kind, input shapes -> output shapes, parameters."""
        from .describe import describe

        return describe(self)

    # -- inference ------------------------------------------------------------------------------------------

    def infer(self) -> None:
        """Learn everything that depends on parameters and specs alone."""
        self.infer_output()
        self.infer_operator_assign_info()

    def infer_output(self) -> None:
        """Output shapes, strides, dtypes and placements, into `self.outputs`."""
        self.check_input()
        try:
            self.output_metas = tuple(self.infer_output_meta_info())
        except MetaFailed as failed:
            raise failed.error from None
        count = self.infer_output_size()
        if count is not None and len(self.output_metas) != count:
            raise PlacementError(f"{self.type} gives {len(self.output_metas)} outputs, its rule says {count}")
        layouts: Sequence[Layout | None]
        if self.skip_placement_inference():
            shape = self.mesh.shape
            layouts = [None if m is None else Layout.replicate(shape, m.shape) for m in self.output_metas]
        else:
            layouts = self.infer_output_placements()
        self.outputs = tuple(
            None if meta is None or layout is None else Operand(self._spec(meta, layout))
            for meta, layout in zip(self.output_metas, layouts, strict=True)
        )

    def _spec(self, meta: OutputMeta, layout: Layout) -> Spec:
        return Spec(meta.shape, meta.stride, meta.dtype, layout, self.mesh)

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """Shape, stride and dtype of each output; by default the torch operator is run on meta tensors."""
        call = self.call
        specs = [None if x is None else x.spec for x in self.inputs]
        return metas(run_on_meta(call.func, call.args, call.kwargs, specs))

    def infer_output_size(self) -> int | None:
        """Number of outputs; None where a torch operator decides."""
        return None if isinstance(self.param, TorchCall) else 1

    def skip_placement_inference(self) -> bool:
        """Whether outputs are whole without asking the signature: no input is distributed."""
        return not any(x is not None and x.is_distributed for x in self.inputs)

    def infer_output_placements(self) -> Sequence[Layout | None]:
        """Layout of each output, for inputs that are legal.

        Raises:
            PlacementError: the inputs fit no rule.
        """
        choice = self.choice or self.place()
        if choice is None or any(a is not b for a, b in zip(choice.inputs, self.layouts, strict=True)):
            raise PlacementError(f"{self.describe()} has no rule for {[str(x) for x in self.layouts]}")
        return choice.outputs

    def infer_operator_assign_info(self) -> None:
        """Streams that run the operator: compute streams of every device of the operands' mesh."""
        mesh = self.mesh
        self.streams = tuple(StreamKey(mesh.device_type, i, "compute") for i in mesh.device_ids)

    def check_input(self) -> None:
        """Refuse inputs that no rule could make legal."""
        if self.require_input_same_dtype():
            self.check_input_same_dtype()
        self.check_input_all_distributed_or_not()
        self.check_input_same_device_mesh()
        self.check_input_distributed_spec()

    def require_input_same_dtype(self) -> bool:
        """Whether inputs must agree in dtype; torch's own operators follow torch's promotion rules."""
        return not isinstance(self.param, TorchCall)

    def check_input_same_dtype(self) -> None:
        """All inputs have one dtype."""
        dtypes = {x.spec.dtype for x in self.inputs if x is not None}
        if len(dtypes) > 1:
            raise TypeError(f"{self.type} wants inputs of one dtype, got {sorted(map(str, dtypes))}")

    def check_input_all_distributed_or_not(self) -> None:
        """All inputs are distributed, or none is."""
        if len({x.is_distributed for x in self.inputs if x is not None}) > 1:
            raise MeshMismatchError(f"{self.type} got distributed and one-device inputs together")

    def check_input_same_device_mesh(self) -> None:
        """All inputs live on one mesh."""
        meshes = dict.fromkeys(x.spec.mesh for x in self.inputs if x is not None)
        if len(meshes) > 1:
            raise MeshMismatchError(
                f"{self.type} got inputs on different meshes: {', '.join(map(str, meshes))}; "
                "bring them together first, x.redistribute(mesh, placements) or x.to(mesh)"
            )

    def check_input_distributed_spec(self) -> None:
        """Layouts fit shape and mesh."""
        for x in self.inputs:
            if x is not None and (x.spec.layout.mesh_shape != x.spec.mesh.shape or x.layout.shape != x.shape):
                raise PlacementError(
                    f"{self.type}: layout {x.layout} does not fit {x.shape} on {x.spec.mesh}"
                )

    def update_operand_topology(self) -> None:
        """Link the operands: who produces them, who consumes them."""
        for x in self.inputs:
            if x is not None:
                x.consumers = (*x.consumers, self)
        for y in self.outputs:
            if y is not None:
                y.producer = self

    # -- placements -----------------------------------------------------------------------------------------

    def rule(self) -> Rule | None:
        """The dims of this operator's tensors, or None where only whole inputs will do.

        By default the dims line of the torch operator, whose tensors bear the names of torch's arguments.
        """
        for cls in type(self).__mro__:
            dims = cls.__dict__.get("rules", {}).get(self.name)
            if dims is not None:
                return self.rule_from(dims)
        return None

    def rule_from(self, dims: Dims) -> Rule:
        """Tie a dims line to this operator's inputs; arguments that are no tensors count as absent."""
        tensors = parse(dims.line).inputs
        slots = [self.slot(tensor.name) for tensor in tensors]
        rule = concretize(
            dims.line, [None if i is None else self.shapes[i] for i in slots], dims.linear, dims.flops
        )
        names: list[tuple[str, ...] | None] = [None if s is None else (UNCUT,) * len(s) for s in self.shapes]
        for i, dim_names in zip(slots, rule.inputs, strict=True):
            if i is not None:
                names[i] = dim_names
        groups = tuple(frozenset(i for n in group if (i := slots[n]) is not None) for group in rule.linear)
        return replace(rule, inputs=tuple(names), linear=groups)

    @cached_property
    def cached_rule(self) -> Rule | None:
        """`rule()`, built once."""
        return self.rule()

    def get_placement_signature(self) -> PlacementSignature:
        """Legal placements on one mesh axis."""
        rule = self.cached_rule
        if rule is not None:
            return rule.signature()
        count = len(self.output_metas) or len(self.infer_output_meta_info())
        whole = Row(tuple(None if x is None else "R" for x in self.inputs), ("R",) * count)
        return PlacementSignature(len(self.inputs), count, [whole])

    @cached_property
    def signature(self) -> PlacementSignature:
        """`get_placement_signature()`, built once, less the rows in which a written input changes role."""
        signature = self.get_placement_signature()
        written = self.returned_inputs()
        if not written:
            return signature
        rows = [
            row for row in signature.rows if all(row.inputs[i] == row.outputs[n] for n, i in written.items())
        ]
        return signature.with_rows(rows)

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """Layouts that make the inputs legal at the least price, and those of the outputs.

        Args:
            pinned: inputs that must keep their layout.
            held: layouts to which an input has been converted already, free to reuse.
        """
        if not self.output_metas:
            self.output_metas = tuple(self.infer_output_meta_info())
        shapes = [() if m is None else m.shape for m in self.output_metas]

        def cost(i: int, target: Layout) -> int:
            operand = self.inputs[i]
            assert operand is not None
            return min(
                redistribute.cost(have, target, operand.spec.itemsize)
                for have in (operand.layout, *held.get(i, ()))
            )

        return choose(self.signature, self.layouts, shapes, cost, self.owed, pinned)

    def owed(self, number: int, layout: Layout) -> int:
        """Bytes that the pending sums of an output will cost, once, when they are reduced, or scattered."""
        meta = self.output_metas[number]
        if meta is None:
            return 0
        slot = self.slot(self.gradient_of[number]) if number in self.gradient_of else None
        target = None if slot is None else scattered(layout, self.layouts[slot])
        return redistribute.cost(layout, (target or layout).without_partial(), meta.dtype.itemsize)

    def output_targets(self, given: Sequence[Layout | None], in_backward: bool) -> list[Layout | None]:
        """Layouts to which the outputs are brought at once; None where they stay.

        Args:
            given: layouts of the inputs as the caller had them, before any conversion.
            in_backward: whether a backward is running.
        """
        targets: list[Layout | None] = [None] * len(self.outputs)
        for i, output in enumerate(self.outputs):
            if output is None or not output.layout.partial:
                continue
            if self.reduces and not in_backward:
                targets[i] = output.layout.without_partial()
            elif i in self.gradient_of:
                slot = self.slot(self.gradient_of[i])
                targets[i] = None if slot is None else scattered(output.layout, given[slot])
        return targets

    # -- running --------------------------------------------------------------------------------------------

    def localize(self, coord: tuple[int, ...]) -> Local:
        """The call as the device at `coord` makes it; sizes among the arguments become local ones."""
        if not isinstance(self.param, TorchCall):
            return Local(coord, None, (), {})
        return Local(coord, self.call.func, self.call.args, self.call.kwargs)

    def localized(self, coord: tuple[int, ...], **changed: Any) -> Local:
        """The torch call with some arguments replaced, by name."""
        args, kwargs = self.schema.replaced(self.call.args, self.call.kwargs, changed)
        return Local(coord, self.call.func, args, kwargs)

    def is_torch_call(self, local: Local) -> bool:
        """Whether on this device `compute` does no more than make the torch call of `local`.

        A plan then makes the call itself. An operator with a `compute` of its own, that differs only on parts
        of what is cut or on empty ones, says so here; else no device's is.
        """
        return local.call is not None

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """Fill `outputs` from the local `inputs` of one device; by default the torch operator is called."""
        if local.call is None:
            raise NotImplementedError(f"{self.type} has no compute")
        outputs[:] = flatten(local.call(inputs))

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fill the outputs of all devices at once, for operators that combine statistics of their shards."""
        raise NotImplementedError(f"{self.type} says needs_siblings but has no compute_group")


def _is_none(operator: Operator, local: Local) -> bool:
    """No device's `compute` is the torch call."""
    return False
