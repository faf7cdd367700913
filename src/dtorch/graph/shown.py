"""What an operator without rules gives, as its first run has shown it: later calls are recorded by that.

What comes out of such an operator is known only when it has run, and where it depends on values (`nonzero`)
each call runs at once. Where torch's meta kernel tells sizes, it told them without values, so they are the
same at each call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtorch.graph.aliasing import shares_storage
from dtorch.graph.logical_graph import replicated_spec
from dtorch.graph.recipe import OutputPlan
from dtorch.op.call import MetaFailed
from dtorch.op.operand import Operand, Parts
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall

SIZED_BY_THE_KERNEL = ("aten.mkldnn_rnn_layer", "aten._embedding_bag", "aten._embedding_bag_forward_only")
"""Operators that keep something for the backward, of a size that no value changes nor a meta kernel knows."""
_BY_VALUE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def shown(
    operator: Operator, results: Sequence[Parts], inputs: Sequence[Parts | None]
) -> tuple[OutputPlan, ...] | None:
    """The plans of whole outputs, which the operator is given too; None where later calls may give others.

    Args:
        operator: it has run.
        results: parts of each output.
        inputs: parts of each input.
    """
    if not isinstance(operator.param, TorchCall) or operator.schema.view_of is not None:
        return None
    if any(tag in operator.call.func.tags for tag in _BY_VALUE):
        return None
    try:
        metas = operator.infer_output_meta_info()
    except MetaFailed:
        return None
    if len(metas) != len(results):
        return None
    outputs: list[Operand | None] = []
    for meta, parts in zip(metas, results, strict=True):
        made = parts[0]
        if made is None:
            outputs.append(None)
            continue
        if meta is None or not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
            return None
        alike = (meta.shape, meta.dtype) == (tuple(made.shape), made.dtype)
        if not alike and operator.name not in SIZED_BY_THE_KERNEL:
            return None
        given = [held[0] for held in inputs if held is not None]
        if any(isinstance(x, torch.Tensor) and shares_storage(made, x) for x in given):
            return None
        outputs.append(Operand(replicated_spec(operator.mesh, made)))
    operator.outputs = tuple(outputs)
    return tuple(OutputPlan("absent") if x is None else OutputPlan("fresh", -1, x.spec) for x in outputs)
