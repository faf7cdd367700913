"""The loss of a classifier over log probabilities: nll_loss and nll_loss2d, forward and backward.

    y[n...] = -w[t] x[n, t, ...],  t = target[n...];  0 where t is ignore_index
    mean = sum(y) / sum(w[t]),  dx[n, t, ...] = -w[t] dy[n...]  (/ sum(w[t]))

Shapes      x [n c ...] or [c], target [n ...], weight [c] or absent -> y [n ...] or [], total_weight []
FLOPs       bound by memory; touched are targets, what they pick of x, and all that is written
Placements  on one mesh axis; d is n or a dim after c

    x       target  weight  y       total_weight
    R       R       R       R       R
    S(c)    R       S(c)    R       R               each device picks the targets in its own classes
    S(d)    S(d)    R       S(d)    R               no reduction
    S(d)    S(d)    R       R       R               mean and sum
    P       R       R       P       R
    R       R       P       P       P               no mean; without a reduction total_weight is R

    dy      x       target  weight  total_weight    dx
    R       S(c)    R       S(c)    R               S(c)
    S(d)|R  S(d)    S(d)    R       R               S(d)
    P       R       R       R       R               P
    R       R       R       P       R               P
    x may be P instead of R, total_weight too unless for a mean: they are not read

Price       mean and sum: an all-reduce of two numbers; no reduction: of y where c is cut; backward: none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.op.operator import Local, Operator
from dtorch.op.priced import touched
from dtorch.op.signature import PlacementSignature, Row
from dtorch.ops.standard.statistics import Statistics, global_positions, wide

NONE, MEAN, SUM = 0, 1, 2


class CrossEntropyBase(Operator, abstract=True):
    """What forward and backward share."""

    @property
    def reduction(self) -> int:
        """By the argument; the loss of a single sample is summed, and its weight told, whatever that says."""
        single = len(self.shapes[self.slot("self")] or ()) == 1  # type: ignore[index]
        given = self.arguments["reduction"]
        return SUM if single and given == NONE else given

    def names(self) -> list[Names | None] | None:
        """Names of the inputs' dims; None for a target that is no index for each sample."""
        ndim = len(self.shapes[self.slot("self")] or ())  # type: ignore[index]
        rest = tuple(f"s{i}" for i in range(ndim - 2))
        samples = ("n", *rest) if ndim > 1 else ()
        if len(self.shapes[self.slot("target")] or ()) != len(samples):  # type: ignore[index]
            return None
        known: dict[str, Names] = {
            "grad_output": samples if self.reduction == NONE else (),
            "self": ("n", "c", *rest) if ndim > 1 else ("c",),
            "target": samples,
            "weight": ("c",),
            "total_weight": (),
        }
        names: list[Names | None] = [None] * len(self.inputs)
        for argument, dims in known.items():
            if (slot := self.slot(argument)) is not None:
                names[slot] = dims
        return names

    def picks(
        self, mine: Sequence[Any], coord: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each sample its target's place among this device's classes, whether it is there, its weight."""
        slot = self.slot("self")
        target = mine[self.slot("target")].long()  # type: ignore[index]
        layout = self.layouts[slot]  # type: ignore[index]
        assert layout is not None
        dim = 1 if layout.ndim > 1 else 0
        ignored = target == self.arguments["ignore_index"]
        if target.device.type == "cpu":
            self._check(target[~ignored], layout.shape[dim])
        positions = global_positions(layout, dim, coord, target.device)
        place = torch.searchsorted(positions, target.contiguous()).clamp(max=max(len(positions) - 1, 0))
        here = ~ignored
        here &= positions[place] == target if len(positions) else torch.zeros_like(here)
        place = torch.where(here, place, 0)
        weight = None if self.slot("weight") is None else mine[self.slot("weight")]  # type: ignore[index]
        x = mine[slot]  # type: ignore[index]
        scale = (
            here.to(wide(x.dtype))
            if weight is None or not len(positions)
            else here * weight[place].to(wide(x.dtype))
        )
        return place, here, scale

    def traffic_bytes(self) -> int:
        """x is read where a target points, forward; backward not at all."""
        slot = self.slot("self")
        x, targets = self.inputs[slot], self.inputs[self.slot("target")]  # type: ignore[index]
        picked = 0 if x is None or targets is None or "grad_output" in self.arguments else targets.spec.numel
        return self.operand_bytes() - touched(x) + (0 if x is None else picked * x.spec.itemsize)

    @staticmethod
    def _check(target: torch.Tensor, classes: int) -> None:
        wrong = target[(target < 0) | (target >= classes)]
        if wrong.numel():
            raise IndexError(f"Target {int(wrong[0])} is out of bounds.")


class CrossEntropy(CrossEntropyBase, Statistics):
    """The loss."""

    left_out = (("", "reduction=1", "the mean of one sample; its weight is seldom pending"),)

    torch_ops = ("aten.nll_loss_forward", "aten.nll_loss2d_forward")
    kinds = "NLLLoss"

    def rule(self) -> Rule | None:
        """Samples are kept or summed, classes are picked from: statistics for both."""
        inputs = self.names()
        if inputs is None:
            return None
        target = inputs[self.slot("target")] or ()  # type: ignore[index]
        samples = target if self.reduction == NONE else ()
        return Rule(tuple(inputs), (samples, ()), stats=frozenset({"c", *target}))

    def pending_rows(self) -> Sequence[Row]:
        """The loss is linear in x; in the weight both outputs are, unless for a mean."""
        found = [self.pending("self", outputs="PR")]
        if self.slot("weight") is not None and self.reduction != MEAN:
            found.append(self.pending("weight", outputs="PP" if self.reduction == SUM else "PR"))
        return found

    def statistics_axes(self) -> tuple[int, ...]:
        """Without a reduction every sample's loss stays where the sample is."""
        if self.reduction != NONE:
            return super().statistics_axes()
        x = self.layouts[self.slot("self")]  # type: ignore[index]
        assert x is not None
        return tuple(sorted(x.axes_of(1 if x.ndim > 1 else 0)))

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Loss and weight."""
        both = 1 if self.reduction == NONE else 2
        return [(self.output_names, wide(self.dtype).itemsize)] * both

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Each device's share of the loss, and of the weight; then their sums."""
        dtype, reduction = self.dtype, self.reduction
        losses, weights = [], []
        for mine, coord in zip(inputs, group.coords, strict=True):
            loss, scale = self._losses(mine, coord)
            losses.append(loss if reduction == NONE else loss.sum())
            weights.append(scale.sum())
        losses = group.all_reduce(losses, axes)
        if reduction != NONE:
            weights = group.all_reduce(weights, axes)
        for out, loss, weight in zip(outputs, losses, weights, strict=True):
            if reduction == NONE:
                weight = torch.zeros_like(weight)
            out[:] = [(loss / weight if reduction == MEAN else loss).to(dtype), weight.to(dtype)]

    def _losses(self, mine: Sequence[Any], coord: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        x = mine[self.slot("self")]  # type: ignore[index]
        place, here, scale = self.picks(mine, coord)
        dim = 1 if x.ndim > 1 else 0
        if not x.shape[dim]:
            return scale, scale
        picked = x.gather(dim, place.unsqueeze(dim)).squeeze(dim).to(wide(x.dtype))
        # Where the target is elsewhere, x may be -inf here.
        return torch.where(here, -picked * scale, 0), scale


class CrossEntropyBackward(CrossEntropyBase):
    """The gradient of the loss."""

    torch_ops = ("aten.nll_loss_backward", "aten.nll_loss2d_backward")
    kinds = "NLLLossBackward"

    def rule(self) -> Rule | None:
        """Every dim of x may be cut."""
        inputs = self.names()
        if inputs is None:
            return None
        names = inputs[self.slot("self")]  # type: ignore[index]
        assert names is not None
        groups = [self.slot("grad_output"), self.slot("weight")]
        return Rule(tuple(inputs), (names,), tuple(frozenset({i}) for i in groups if i is not None))

    def get_placement_signature(self) -> PlacementSignature:
        """Of x only the shape is read, the total weight only for a mean: these may be pending."""
        found = super().get_placement_signature()
        rows = list(found.rows)
        for name in ("self",) if self.reduction == MEAN else ("self", "total_weight"):
            i = self.slot(name)
            assert i is not None
            rows += [
                row._replace(inputs=(*row.inputs[:i], "P", *row.inputs[i + 1 :]))
                for row in rows
                if row.inputs[i] == "R"
            ]
        return PlacementSignature(found.n_inputs, found.n_outputs, rows)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, unless the targets of other devices' classes must be left out."""
        x = self.layouts[self.slot("self")]  # type: ignore[index]
        assert x is not None
        if not x.cut_axes:
            super().compute(inputs, outputs, local)
            return
        outputs[:] = [self._gradient(inputs, local.coord)]

    def _gradient(self, mine: Sequence[Any], coord: tuple[int, ...]) -> torch.Tensor:
        x, grad = mine[self.slot("self")], mine[self.slot("grad_output")]  # type: ignore[index]
        place, here, scale = self.picks(mine, coord)
        if self.reduction == MEAN:
            grad = grad / mine[self.slot("total_weight")]  # type: ignore[index]
        dim = 1 if x.ndim > 1 else 0
        dx = torch.zeros_like(x)
        if x.shape[dim]:
            # Where nothing is picked, the gradient may be infinite: the mean of no samples divides by 0.
            picked = torch.where(here, -scale * grad, 0)
            dx.scatter_(dim, place.unsqueeze(dim), picked.to(x.dtype).unsqueeze(dim))
        return dx
