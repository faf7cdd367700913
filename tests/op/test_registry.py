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
        # By torch's tag.
        (aten.relu.default, "Pointwise"),
        (aten.relu_.default, "Pointwise"),
        (aten.erf.default, "Pointwise"),
        # A class may claim one overload alone.
        (aten.where.self, "Where"),
        # Nobody's.
        (aten.nonzero.default, "General"),
        (aten.linalg_inv_ex.default, "General"),
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
    assert {registry.class_of(f) for f in tagged}.isdisjoint({registry.class_by_type("Pointwise")})


def test_composites_are_taken_apart_unless_claimed() -> None:
    assert registry.is_composite(aten.reshape.default)
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
