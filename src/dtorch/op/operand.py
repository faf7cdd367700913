"""The graph's data nodes, and what keeps their aliases honest.

An `Operand` has a spec and, once run, one local tensor per device (its parts; replicas on one physical
device are one tensor). Views share the parts' storage with their base wherever the view is local, so in-place
writes are seen by all of them. A view that is not local (a slice of the sharded dim, a diagonal) is a copy;
its buffer then remembers what it copies (`upstream`), reads refresh it after the base was written, and writes
are carried back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from dtorch.errors import UnsupportedError
from dtorch.layout import Layout
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh

Parts = list[Any]


class Upstream:
    """Where a copied view comes from: `view` maps the base's full value to the copy's."""

    __slots__ = ("base", "seen", "view")

    def __init__(self, base: Operand, view: Callable[[Any], Any]) -> None:
        self.base = base
        self.view = view
        self.seen = base.buffer.version


class Buffer:
    """The storages behind one lineage of views; made when the first view or write needs it.

    Attributes:
        version: counts writes through any member.
        root_spec, root_parts: the tensor that owns the storages; no parts until it has run.
        members: the operands that share them and have run; what is pending has nothing to keep in step.
        upstream: set where the storages are a copy of some view of another buffer.
    """

    __slots__ = ("__weakref__", "_prune_at", "members", "root_parts", "root_spec", "upstream", "version")

    def __init__(self, root: Operand) -> None:
        self.version = 0
        self.root_spec = root.spec
        self.root_parts = root.parts
        self.members: list[weakref.ref[Operand]] = [] if root.parts is None else [weakref.ref(root)]
        self.upstream: Upstream | None = None
        self._prune_at = 16

    def add(self, member: Operand) -> None:
        """Enter a member; the dead are forgotten now and then, or a parameter keeps all its views."""
        self.members.append(weakref.ref(member))
        if len(self.members) >= self._prune_at:
            self._prune_at = 16 + 2 * len(self.live_members())

    def live_members(self) -> list[Operand]:
        """The operands that still exist, dead ones forgotten."""
        found = [(ref, member) for ref in self.members if (member := ref()) is not None]
        self.members = [ref for ref, _ in found]
        return [member for _, member in found]

    def spoil(self, failed: Failed) -> None:
        """Nobody can tell what is in the storages any more; copies of them are out of date."""
        self.version += 1
        self.root_parts = failed
        for member in self.live_members():
            member.parts = failed


class Failed(list):
    """Parts of an operand whose operator failed: reading them raises what failed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def again(self) -> BaseException:
        """The failure, to be raised; without the frames of earlier raises, which would keep values alive."""
        return self.error.with_traceback(None)


KEPT_BYTES = 2**20
"""Whole numbers and truth values below this size keep their values on described devices."""


class NoValue(Failed):
    """Parts of an operand on described devices: there are none, and reading them raises.

    One object stands for one storage; views share it, so that it lives as long as the storage would.
    """

    def __init__(self) -> None:
        list.__init__(self)

    @property
    def error(self) -> BaseException:  # type: ignore[override]
        """What reading raises."""
        return UnsupportedError(
            "this tensor has no value: it lives on described devices, where calls are recorded and nothing "
            "is computed. Shapes, and whole numbers and masks that depend on no such tensor, can be read; a "
            "program that stops or branches on other values (generate: at an end token) must be told not to"
        )


def keeps_value(mesh: DeviceMesh, dtype: torch.dtype, numel: int) -> bool:
    """Whether tensors of a dtype and size hold values on a mesh; see `KEPT_BYTES`."""
    if mesh.description is None:
        return True
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return whole and numel * dtype.itemsize < KEPT_BYTES


class Scalar:
    """A plain value among an operator's inputs, that rule, metadata and price do not depend on.

    A number of which the operator declares so, a random generator, or None for an absent input. It stands
    beside operands, with the same value on every device.
    """

    __slots__ = ("__weakref__", "parts")

    spec = None
    shared = None
    converted = None

    def __init__(self, value: Any) -> None:
        self.parts = Everywhere(value)


class Everywhere:
    """One value at every position."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, position: int) -> Any:
        return self.value


class Operand(msgspec.Struct, eq=False, weakref=True):
    """One tensor of the graph; a struct, since calls make one each and `__init__` would take twice as long.

    Attributes:
        spec: shape, stride, dtype, layout, mesh.
        parts: local tensors in mesh order; None for a prototype, or until the operator that makes it has run.
        shared: the buffer, None while there is neither view nor write; see `buffer`.
        offset: the storage offset that torch would report, in elements.
        converted: layout -> operand, conversions already made at `converted_at` of the buffer's version.
        links: producer and consumers, None until an operator links itself.
    """

    spec: Spec
    parts: Parts | None = None
    shared: Buffer | None = None
    offset: int = 0
    converted: dict[Layout, Operand] | None = None
    converted_at: int = 0
    links: tuple[Any, tuple[Any, ...]] | None = None

    @property
    def producer(self) -> Any:
        """The operator that has the operand as output; None for what calls make, which nobody links."""
        return None if self.links is None else self.links[0]

    @producer.setter
    def producer(self, operator: Any) -> None:
        self.links = (operator, self.consumers)

    @property
    def consumers(self) -> tuple[Any, ...]:
        """The operators that have the operand as input."""
        return () if self.links is None else self.links[1]

    @consumers.setter
    def consumers(self, operators: tuple[Any, ...]) -> None:
        self.links = (self.producer, operators)

    def give(self, parts: Parts) -> Operand:
        """Set the parts of an operand that has run, and let its aliases know; the operand."""
        self.parts = parts
        shared = self.shared
        if shared is not None:
            shared.add(self)
            if shared.root_parts is None:
                shared.root_parts = parts
        return self

    @property
    def buffer(self) -> Buffer:
        """The storages the parts live in."""
        found = self.shared
        if found is None:
            found = self.shared = Buffer(self)
        return found

    def conversions(self) -> dict[Layout, Operand] | None:
        """Conversions of the present value that are still held, or None."""
        if self.converted is not None and self.converted_at != (
            0 if self.shared is None else self.shared.version
        ):
            self.converted = None
        return self.converted

    def keep_conversion(self, converted: Operand) -> None:
        """Hold a conversion for later consumers, until the value is written."""
        if self.conversions() is None:
            self.converted = {}
            self.converted_at = 0 if self.shared is None else self.shared.version
        assert self.converted is not None
        self.converted[converted.spec.layout] = converted

    @property
    def is_distributed(self) -> bool:
        """Whether the operand lives on more than one device."""
        return self.spec.mesh.size > 1

    @property
    def nbytes(self) -> int:
        """Bytes of the global value."""
        return self.spec.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.spec.shape

    @property
    def layout(self) -> Layout:
        """How the global value is laid out over the mesh."""
        return self.spec.layout


def prototype(spec: Spec | None) -> Operand | None:
    """An operand without value, on which operators are inferred; None stays None (an absent input)."""
    return None if spec is None else Operand(spec)


def copied(parts: Parts) -> Parts:
    """Copies of parts; what was shared between replicas stays shared, what has no value has none."""
    if isinstance(parts, NoValue):
        return NoValue()
    copies = {id(part): part.clone() for part in parts}
    return [copies[id(part)] for part in parts]


def replicated(tensor: torch.Tensor, mesh: DeviceMesh) -> Operand:
    """The operand of a plain tensor on a mesh, whole on every device.

    Raises:
        UnsupportedError: it is not strided; or on meta, where the mesh's tensors have values.
    """
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{tensor.layout} tensors do not mix with distributed ones; x.to_dense() does")
    layout = Layout.replicate(mesh.shape, tensor.shape)
    spec = Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype, layout, mesh)
    on_meta = tensor.device.type == "meta"
    if mesh.description is not None and (on_meta or not keeps_value(mesh, tensor.dtype, spec.numel)):
        return Operand(spec, NoValue())
    if on_meta:
        raise UnsupportedError("a meta tensor has no value to mix with distributed tensors")
    if mesh.shares_storage:
        return Operand(spec, [tensor.to(mesh.torch_device(0))] * mesh.size)
    return Operand(spec, [tensor.to(mesh.torch_device(i)) for i in range(mesh.size)])
