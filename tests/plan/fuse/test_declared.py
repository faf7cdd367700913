"""What operators declare about compiled code is about operators that they serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dtorch.op import registry
from dtorch.op.operator import Operator
from dtorch.ops.standard.activation import Activation
from dtorch.ops.standard.reduce import Reduce


def _classes(base: type[Operator] = Operator) -> Iterator[type[Operator]]:
    for cls in base.__subclasses__():
        if cls.compiled_alike or cls.rowwise or cls.alone_at_end:
            yield cls
        yield from _classes(cls)


@pytest.mark.parametrize("cls", sorted(set(_classes()), key=lambda cls: cls.__name__))
def test_each_name_is_served_by_the_class_that_declares_it(cls: type[Operator]) -> None:
    assert cls.alone_at_end <= cls.compiled_alike
    for name in cls.compiled_alike | cls.rowwise:
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))
        overloads = [getattr(packet, kind) for kind in packet.overloads()]
        assert any(issubclass(registry.class_of(func), cls) for func in overloads), name
        pointwise = any(torch.Tag.pointwise in func.tags for func in overloads)
        assert pointwise == (name in cls.compiled_alike), name


def test_some_are_declared() -> None:
    assert {Activation, Reduce} <= set(_classes())
