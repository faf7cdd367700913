"""Type <-> class <-> torch operator: existing is registering, claims are exclusive."""

from typing import ClassVar

import pytest
import torch

from dtorch.op import registry
from dtorch.op.operator import Dims, Operator

aten = torch.ops.aten


class RegistryFirst(Operator):
    """Serves one operator by a line, another by name, and one overload of a third."""

    rules: ClassVar[dict[str, Dims]] = {"dtorch_registry.one": Dims("x[m] -> y[m]")}
    torch_ops = ("dtorch_registry.two", "dtorch_registry.three.dim")


class RegistryKind(RegistryFirst):
    """A kind of an existing type; what its base serves it does not serve again."""

    type = "RegistryFirst"
    torch_ops = ("dtorch_registry.four",)


def test_defining_a_class_registers_it() -> None:
    assert registry.types()["RegistryFirst"] is RegistryFirst
    served = registry.torch_operators()
    assert [served[f"dtorch_registry.{n}"] for n in ("one", "two", "three.dim", "four")] == [
        RegistryFirst,
        RegistryFirst,
        RegistryFirst,
        RegistryKind,
    ]


def test_the_first_class_stands_for_a_type() -> None:
    assert RegistryKind.type == "RegistryFirst"
    assert registry.class_by_type("RegistryFirst") is RegistryFirst


def test_a_torch_operator_belongs_to_one_class() -> None:
    with pytest.raises(
        ValueError, match=r"dtorch_registry.one belongs to RegistryFirst already, RegistryThief claims it too"
    ):
        type("RegistryThief", (Operator,), {"torch_ops": ("dtorch_registry.one",)})


class RegistryKin(RegistryFirst):
    """Defined before the class that bears the type's name."""

    type = "RegistryNamed"


class RegistryNamed(RegistryFirst):
    """Stands for its type, though it is not the first."""


def test_the_class_of_the_types_name_stands_for_it() -> None:
    assert RegistryKin.type == RegistryNamed.type
    assert registry.class_by_type("RegistryNamed") is RegistryNamed


class RegistryBase(Operator, abstract=True):
    """What others share."""


class RegistryMade(RegistryBase):
    """Concrete again."""


def test_an_abstract_base_is_no_type() -> None:
    assert "RegistryBase" not in registry.types()
    assert registry.class_by_type("RegistryMade") is RegistryMade


TYPES = (
    "Matmul", "Linear", "Sdpa", "BroadcastBinary", "Activation", "BaseMath", "Reduce", "MaxMin", "Softmax",
    "Normalization", "Embedding", "Concat", "Chunk", "GetItem", "SetItem", "View", "Reshape", "Flatten",
    "Permute", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Contiguous", "Clone", "Copy", "Convert",
    "Create", "Where", "Masked", "Dropout", "Clamp", "CrossEntropy", "GetTensor", "Sync", "Pad", "Repeat",
    "SdpaBackward", "ActivationBackward", "SoftmaxBackward", "NormalizationBackward", "EmbeddingBackward",
    "GetItemBackward", "DropoutBackward", "CrossEntropyBackward",
)  # fmt: skip
ABSTRACT = (
    "LayoutOperator", "Pointwise", "Statistics", "Composed", "PendingRows", "Along", "Windowed", "Tapped",
    "CustomOperator", "Reduction",
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_the_types_of_the_documents(name: str) -> None:
    assert registry.class_by_type(name).type == name


def test_abstract_bases_are_no_types() -> None:
    assert registry.types().keys().isdisjoint(ABSTRACT)
    assert not any(name.endswith("Base") for name in registry.types())


def test_an_unknown_type() -> None:
    with pytest.raises(KeyError, match=r"no operator of type Nonsense; there are .*Matmul"):
        registry.class_by_type("Nonsense")


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (aten.mm.default, "Matmul"),
        (aten.add.Tensor, "BroadcastBinary"),
        (aten.add_.Tensor, "BroadcastBinary"),
        (aten.add.Scalar, "BroadcastBinary"),
        (aten.relu.default, "Activation"),
        (aten.relu_.default, "Activation"),
        (aten.gelu_backward.default, "ActivationBackward"),
        (aten.t.default, "Transpose"),
        # By torch's tag: of one tensor, and of two.
        (aten.polygamma.default, "BaseMath"),
        (aten.gcd.default, "BroadcastBinary"),
        # A class may claim one overload alone.
        (aten.where.self, "Where"),
        # Nobody's.
        (aten.nonzero.default, "General"),
        (aten.unique_dim.default, "General"),
    ],
    ids=str,
)
def test_class_of(func: object, name: str) -> None:
    assert registry.class_of(func).__name__ == name


def test_random_operators_are_not_pointwise() -> None:
    """torch tags some of them so; each device would draw the same numbers."""
    tagged = [
        getattr(packet, kind)
        for packet in (aten.bernoulli, aten.normal, aten.rrelu_with_noise)
        for kind in packet.overloads()
    ]
    assert {registry.class_of(f).__name__ for f in tagged}.isdisjoint({"BaseMath", "BroadcastBinary"})


def test_composites_are_taken_apart_unless_claimed() -> None:
    assert registry.is_composite(aten.narrow.default)
    assert not registry.is_composite(aten.reshape.default)
    assert not registry.is_composite(aten.mm.default)
    # It has a kernel of its own, whose rounding is not that of its parts.
    assert not registry.is_composite(aten.silu_backward.default)


def test_every_operator_of_torch_in_the_table_exists() -> None:
    """A misspelt name would register a rule that is never used."""
    for name in registry.torch_operators():
        namespace, packet, *kind = name.split(".")
        if namespace == "aten":
            packets = [
                p for p in (getattr(aten, packet, None), getattr(aten, f"{packet}_", None)) if p is not None
            ]
            overloads = [overload for p in packets for overload in p.overloads()]
            assert packets, name
            assert not kind or kind[0] in overloads, name
