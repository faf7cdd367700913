"""A product and the calls behind it, made block by block: what the product gives never leaves the caches.

    for each block:   y = the product of its rows              the library's call
                      its part of the results = f(y, ...)      compiled, f the calls behind the product

A library makes each row of a block as it makes it in the whole, but for a few narrow shapes; as all code,
blocks are tested against the calls before they are used. All blocks are of one size, so that one piece of
code does: the last one begins early enough to be whole, and makes some rows once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dtorch.inductor.cut import Cut
from dtorch.inductor.listing import Listing, Meta, Refusal, compute, list_calls, meta_of

Function = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a region knows of its blocks.

    Attributes:
        cut: where.
        product: the first inputs of a block to [y].
        rest: [y, *the others] of a block to its part of the outputs.
        made: metadata of the whole outputs.
    """

    cut: Cut
    product: Function
    rest: Function
    made: tuple[Meta, ...]

    def listed(self, inputs: Sequence[Meta]) -> Parts:
        """Both parts of one block as torch's calls.

        Args:
            inputs: of the whole.

        Raises:
            Refusal: one cannot be listed.
        """
        cut, num = self.cut, len(self.made)
        here = [_part(x, dim, cut.size) for x, dim in zip(inputs, cut.inputs, strict=True)]
        parts = [_part(x, dim, cut.size) for x, dim in zip(self.made, cut.outputs, strict=True)]

        def fill(given: list[Any]) -> list[Any]:
            made = self.rest(given[:-num])
            for part, value in zip(given[-num:], made, strict=True):
                part.copy_(value)
            return []

        product = list_calls(self.product, [here[i] for i in cut.first])
        if len(product.results) != 1 or not product.outputs[0].whole:
            raise Refusal("its product gives a view")
        y = product.outputs[0]
        given = Meta(y.shape, y.stride, self.made[0].dtype)
        rest = list_calls(fill, [given, *(here[i] for i in cut.behind), *parts])
        return Parts(cut, self.made, product, rest)


@dataclass(frozen=True, slots=True)
class Parts:
    """Blocks as plain values, which another process can make.

    Attributes:
        cut: where.
        made: metadata of the whole outputs.
        product: of one block, uncompiled.
        rest: the calls behind it, which write into a block's part of the outputs: what is compiled.
    """

    cut: Cut
    made: tuple[Meta, ...]
    product: Listing
    rest: Listing

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        plain = {"cut": asdict(self.cut), "made": [asdict(meta) for meta in self.made]}
        return {**plain, "product": self.product.to_dict(), "rest": self.rest.to_dict()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Parts:
        """The reverse of `to_dict`, also after JSON."""
        cut: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x for name, x in plain["cut"].items()
        }
        made = tuple(map(meta_of, plain["made"]))
        return cls(Cut(**cut), made, *(Listing.from_dict(plain[name]) for name in ("product", "rest")))

    @property
    def text(self) -> str:
        """What the code depends on beside the whole function."""
        return repr((self.cut, self.made, self.rest.inputs, self.rest.text))

    def around(self, code: Function) -> Callable[[list[Any]], list[Any]]:
        """What makes the whole function by blocks: inputs to outputs.

        Args:
            code: of `rest`.
        """
        product, cut, made = compute(self.product), self.cut, self.made

        def run(inputs: list[Any]) -> list[Any]:
            results = [meta.empty() for meta in made]
            for start in cut.starts:
                here = _narrow(inputs, cut.inputs, start, cut.size)
                parts = _narrow(results, cut.outputs, start, cut.size)
                y = product([here[i] for i in cut.first])
                code([*y, *[here[i] for i in cut.behind], *parts])
            return results

        return run


def _part(meta: Meta, dim: int, size: int) -> Meta:
    if dim < 0:
        return meta
    return replace(meta, shape=(*meta.shape[:dim], size, *meta.shape[dim + 1 :]))


def _narrow(given: list[Any], dims: tuple[int, ...], start: int, size: int) -> list[torch.Tensor]:
    return [x if dim < 0 else x.narrow(dim, start, size) for x, dim in zip(given, dims, strict=True)]
