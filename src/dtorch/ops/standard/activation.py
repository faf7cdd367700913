"""Activations, and their gradients.

    y = f(x)        dx = dy f'(x), from x or from y         glu: y = a sigmoid(b), the halves of x along d

Shapes      x [...] -> y [...]; prelu: weight [...], broadcast; glu: half of d
FLOPs       bound by memory
Placements  on one mesh axis, for every dim e; glu keeps d whole

    x       y               dy      x       dx
    R       R               R       R       R
    S(e)    S(e)            S(e)    S(e)    S(e)
                            P       R       P

No activation is linear: a pending sum is summed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch._prims_common import canonicalize_dim

from dtorch.op.call import OutputMeta
from dtorch.op.dims import Rule
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.pointwise import Pointwise
from dtorch.ops.standard.statistics import dim_names

_KINDS = {
    "aten.relu": "ReLU", "aten.gelu": "GELU", "aten.silu": "SiLU", "aten.elu": "ELU", "aten.celu": "CELU",
    "aten.selu": "SELU", "aten.leaky_relu": "LeakyReLU", "aten._prelu_kernel": "PReLU",
}  # fmt: skip


class Activation(Pointwise):
    """relu, gelu, silu, sigmoid, tanh and their kin."""

    left_out = (("", "lambd=", "nothing is shrunk where lambd is 0 or less"),)

    torch_ops = (
        "aten.relu", "aten.gelu", "aten.silu", "aten.elu", "aten.celu", "aten.selu", "aten.leaky_relu",
        "aten.sigmoid", "aten.tanh", "aten.hardtanh", "aten.hardsigmoid", "aten.hardswish", "aten.mish",
        "aten.softplus", "aten.softshrink", "aten.hardshrink", "aten.threshold", "aten._prelu_kernel",
    )  # fmt: skip
    kinds: ClassVar[Mapping[str, str]] = _KINDS
    compiled_alike = frozenset({"aten.hardtanh", "aten.relu", "aten.sigmoid", "aten.silu"})
    alone_at_end = frozenset({"aten.sigmoid", "aten.silu"})

    def parameters(self) -> dict[str, Any]:
        """Also whether x is overwritten."""
        return {**super().parameters(), "inplace": bool(self.schema.written)}


class ActivationBackward(Pointwise):
    """Gradients, linear in the one that comes in."""

    left_out = (
        ("", "lambd=", "nothing is shrunk where lambd is 0 or less"),
        (
            "aten.rrelu_with_noise_backward",
            "",
            "x or noise is not read; noise is never pending",
        ),
    )

    torch_ops = (
        "aten.threshold_backward", "aten.gelu_backward", "aten.silu_backward", "aten.sigmoid_backward",
        "aten.tanh_backward", "aten.elu_backward", "aten.leaky_relu_backward", "aten.hardtanh_backward",
        "aten.hardsigmoid_backward", "aten.hardswish_backward", "aten.mish_backward",
        "aten.softplus_backward", "aten.softshrink_backward", "aten.hardshrink_backward",
        "aten.rrelu_with_noise_backward",
        "aten._prelu_kernel_backward",
    )  # fmt: skip
    kinds: ClassVar[Mapping[str, str]] = {
        **{f"{name}_backward": f"{kind}Backward" for name, kind in _KINDS.items()},
        "aten.threshold_backward": "ReLUBackward",
    }
    compiled_alike = frozenset({"aten.threshold_backward"})

    def linear_inputs(self) -> list[set[int]]:
        """The gradient, by whichever name."""
        return (
            [self.slots("grad_out")] if self.name == "aten.hardshrink_backward" else super().linear_inputs()
        )


class LogSigmoid(Batched):
    """logsigmoid, which keeps a buffer for its backward: as x on the CPU, nothing on other devices."""

    type = "Activation"
    torch_ops = ("aten.log_sigmoid_forward",)
    kinds = "LogSigmoid"

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's, less what its kernels for other devices than the CPU do otherwise."""
        found = super().infer_output_meta_info()
        if len(found) == 2 and self.mesh.device_type != "cpu" and found[1] is not None:
            found[1] = found[1]._replace(shape=(0,), stride=(1,))
        return found

    def rule(self) -> Rule:
        """Every dim may be cut."""
        names = dim_names(len(self.shapes[self.slot("self")] or ()))  # type: ignore[index]
        inputs = tuple(("",) if shape == (0,) and names else names for shape in self.shapes)
        linear = (frozenset({0}),) if "backward" in self.name else ()
        return self.trimmed(Rule(inputs, (names,) * len(self.metas), linear))


class LogSigmoidBackward(LogSigmoid):
    """Its gradient."""

    type = "ActivationBackward"
    torch_ops = ("aten.log_sigmoid_backward",)
    kinds = "LogSigmoidBackward"


class Glu(Batched):
    """glu, whose dim is whole."""

    type = "Activation"
    torch_ops = ("aten.glu",)
    kinds = "GLU"

    def rule(self) -> Rule:
        """Every dim but one."""
        names = dim_names(len(self.shapes[0] or ()))
        dim = canonicalize_dim(len(names), self.arguments["dim"])
        linear = (frozenset({0}),) if "backward" in self.name else ()
        return Rule((names,) * len(self.inputs), (names,), linear, whole=frozenset({names[dim]}))


class GluBackward(Glu):
    """Its gradient."""

    type = "ActivationBackward"
    torch_ops = ("aten.glu_backward",)
    kinds = "GLUBackward"
