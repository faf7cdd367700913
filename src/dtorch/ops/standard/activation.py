"""Element-wise operators that torch does not tag so, and those that are element-wise but for one dim.

    y = f(x)                glu: y = a sigmoid(b), a and b the halves of x along d

Shapes      x [...] -> y [...]; glu: half of d; cross: d has 3 elements
FLOPs       bound by memory
Placements  on one mesh axis, for every dim e; of glu, renorm and cross see below

    x       y               dy      x       dx
    R       R               R       R       R
    S(e)    S(e)            S(e)    S(e)    S(e)
                            P       R       P

glu and cross keep d whole, and cross is P where one of its inputs is; renorm cuts only the dim of its slices.
"""

from __future__ import annotations

from torch._prims_common import canonicalize_dim

from dtorch.op.call import OutputMeta
from dtorch.op.dims import UNCUT, Rule, broadcast_names
from dtorch.op.operator import Operator
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.pointwise import Pointwise
from dtorch.ops.standard.statistics import dim_names


class Activation(Pointwise):
    """As those that torch tags."""

    torch_ops = (
        "aten.elu_backward", "aten.hardshrink_backward", "aten.hardsigmoid_backward", "aten.hardswish",
        "aten.hardswish_backward", "aten.hardtanh_backward", "aten.leaky_relu_backward", "aten.mish_backward",
        "aten.softplus_backward", "aten.softshrink_backward", "aten.rrelu_with_noise_backward",
        "aten._prelu_kernel", "aten._prelu_kernel_backward", "aten.complex", "aten.polar",
    )  # fmt: skip

    def linear_inputs(self) -> list[set[int]]:
        """A backward in its gradient; parts of complex numbers; the length of polar ones."""
        if self.name == "aten.complex":
            return [self.slots("real", "imag")]
        if self.name == "aten.polar":
            return [self.slots("abs")]
        return (
            [self.slots("grad_out")] if self.name == "aten.hardshrink_backward" else super().linear_inputs()
        )


class LogSigmoid(Batched):
    """logsigmoid, which keeps a buffer for its backward: as x on the CPU, nothing on other devices."""

    type = "Activation"
    torch_ops = ("aten.log_sigmoid_forward", "aten.log_sigmoid_backward")

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


class Glu(Batched):
    """glu, whose dim is whole."""

    type = "Activation"
    torch_ops = ("aten.glu", "aten.glu_backward")

    def rule(self) -> Rule:
        """Every dim but one."""
        names = dim_names(len(self.shapes[0] or ()))
        dim = canonicalize_dim(len(names), self.arguments["dim"])
        linear = (frozenset({0}),) if "backward" in self.name else ()
        return Rule((names,) * len(self.inputs), (names,), linear, whole=frozenset({names[dim]}))


class Renorm(Batched):
    """renorm: slices along a dim, each scaled by its own norm."""

    type = "Activation"
    torch_ops = ("aten.renorm",)

    def rule(self) -> Rule:
        """A slice is whole."""
        names = dim_names(len(self.shapes[0] or ()))
        dim = self.arguments["dim"] % len(names)
        return Rule((names,), (names,), whole=frozenset(names) - {names[dim]})


class Cross(Operator):
    """Vector products, linear in either vector."""

    type = "BaseMath"
    torch_ops = ("aten.linalg_cross",)

    def rule(self) -> Rule:
        """Every dim but the vectors'."""
        names, output = broadcast_names(self.shapes)
        dim = self.arguments["dim"] % len(output)
        whole = frozenset({output[dim]}) - {UNCUT}
        return Rule(names, (output,), (frozenset({0}), frozenset({1})), whole=whole)
