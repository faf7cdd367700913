"""Linear layers that arrive whole (below inference_mode); under autograd torch makes them of mm or addmm.

    y[..., o] = sum over i of x[..., i] w[o, i] + b[o]

Shapes      x [..., i], w [o, i], b [o] or none -> y [..., o]
FLOPs       2 ... i o; the bias is not counted
Placements  on one mesh axis, for every leading dim d of x

    x       w       b       y
    R       R       R       R
    S(d)    R       R       S(d)
    R       S(0)    S(0)    S(o)
    S(i)    S(1)    P       P
    P       R       P       P
    R       P       P       P
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dtorch.op.operator import Dims, Operator


class Linear(Operator):
    """torch.nn.functional.linear."""

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.linear": Dims(
            "input[... i], weight[o i], bias[o]? -> y[... o]", ("input bias", "weight bias"), "2 ... i o"
        )
    }
    products: ClassVar[Mapping[str, tuple[str, str, str]]] = {"aten.linear": ("input", "weight", "bias")}
