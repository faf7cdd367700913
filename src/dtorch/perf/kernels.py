"""How many kernels a program launches, by kind; and a decode step of a Llama as it is counted by hand.

    with dtorch.dry_run(mesh) as run:
        model(ids, past_key_values=cache)
    kernel_counts(run)                      # {"weight GEMM": 225, "element-wise": 650, ...}

Every operator that touches memory is one kernel on each device; views, and what only changes sizes, are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dtorch.graph.logical_graph import communication_of
from dtorch.perf.recording import Recording

WEIGHT_GEMM, GEMM = "weight GEMM", "batched GEMM"

_KINDS = {
    "attention": "Sdpa SdpaBackward",
    "convolution": "Conv ConvBackward",
    "softmax": "CrossEntropy CrossEntropyBackward Softmax SoftmaxBackward",
    "norm": "BatchNorm BatchNormBackward Normalization NormalizationBackward",
    "reduction": "Loss LossBackward MaxMin Pooling Reduce Scan Sort",
    "lookup": "Embedding EmbeddingBackward GetItem GetItemBackward SetItem",
    "copy": "Chunk Clone Concat Contiguous Copy Create Flip GetTensor Pad Repeat Reshape",
    "element-wise": "Activation ActivationBackward BaseMath BroadcastBinary Clamp Convert Dropout"
    " DropoutBackward FusedOptimizer Masked Triangle Where",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_PRODUCTS = frozenset(("Einsum", "Linear", "Matmul", "Outer"))


def kernel_counts(recording: Recording) -> dict[str, int]:
    """Kernels by kind, the most frequent first.

    A product is a "weight GEMM" where one of its factors is a parameter of a module, else a "batched GEMM",
    such as scores of attention that is not fused. What devices exchange counts as "communication", operators
    of no kind that is named here as "other".
    """
    counts: Counter[str] = Counter()
    for node, made in zip(recording.nodes, recording.made, strict=True):
        if node.operator.price().state == "free":
            continue
        kind = _KIND_OF.get(node.operator.type, "other")
        if communication_of(node) is not None:
            kind = "communication"
        elif node.operator.type in _PRODUCTS:
            trained = any(recording.storages[number].trained for number in made.reads)
            kind = WEIGHT_GEMM if trained else GEMM
        counts[kind] += 1
    return dict(counts.most_common())


@dataclass(frozen=True)
class Spelling:
    """A model's decode step as a list of kernels.

    Attributes:
        layer: what every layer launches.
        once: what the whole step launches beside its layers.
    """

    layer: Mapping[str, int]
    once: Mapping[str, int]

    @property
    def per_layer(self) -> int:
        """Kernels of one layer."""
        return sum(self.layer.values())

    def total(self, layers: int) -> int:
        """Kernels of a step of a model with so many layers."""
        return layers * self.per_layer + sum(self.once.values())


UNFUSED = Spelling(
    MappingProxyType({
        "RMSNorm before attention, in 4 steps": 4, "q, k, v projections": 3,
        "rotary embedding of q and of k": 6, "key and value into the cache": 2,
        "scores": 1, "scale and mask": 2, "softmax, in 3 steps": 3, "scores times values": 1,
        "o projection": 1, "residual": 1, "RMSNorm before the perceptron": 4, "gate and up projections": 2,
        "SiLU": 1, "gate times up": 1, "down projection": 1, "residual again": 1,
    }),
    MappingProxyType({"last RMSNorm": 4, "output head": 1}),
)  # fmt: skip
"""A Llama as the article on fusion counts it by hand: 34 a layer and 5, so 1093 for 32 layers."""

FUSED = Spelling(
    MappingProxyType({
        "residual and RMSNorm before attention": 1, "q, k, v projections": 3,
        "rotary embedding, into the cache": 1, "attention": 1, "o projection": 1,
        "residual and RMSNorm before the perceptron": 1,
        "gate and up projections": 2, "down projection, of SiLU(gate) times up": 1,
    }),
    MappingProxyType({"embedding": 1, "last RMSNorm": 1, "output head": 1}),
)  # fmt: skip
"""The same with what is element-wise fused into its neighbours: 11 a layer and 3, so 355."""
