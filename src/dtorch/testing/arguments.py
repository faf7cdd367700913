"""Arguments for tests: every combination of some lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch


def gen_arg_list(arguments: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """The cartesian product of named lists, the last name running fastest.

        for shape, device in gen_arg_list(OrderedDict(shape=[(2, 3), (4,)], device=["cpu", "cuda"])):

    Args:
        arguments: name -> values to try, in the order in which the tuples hold them.

    Yields:
        One value for each name. Devices that this machine lacks ("cuda" without a GPU) are left out.
    """
    yield from product(*(_present(values) for values in arguments.values()))


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if not _is_missing_device(value)]


def _is_missing_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        value = value.type
    return isinstance(value, str) and value.split(":")[0] == "cuda" and not torch.cuda.is_available()
