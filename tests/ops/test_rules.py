"""Every operator class before the judge: no rule wrong, none missing.

`make rules` tries more rows of placements and more calls; DTORCH_CASES=5 does so here.
"""

import functools
import warnings

import pytest

from dtorch.op import registry
from dtorch.testing import Call
from dtorch.testing.rules import class_names, judge_operator, own_operators
from dtorch.testing.samples import calls_by_operator
from tests.support import cases, sample

# Rules that hold for the sample by accident of its mathematics: (operator, part of the finding, why no rule).
MISSING_OK = [
    ("aten._to_copy", "P -> P", "a narrower or inexact type rounds each part, so the sum comes first"),
    ("aten.copy", "P, P -> P", "a narrower type rounds each part, so the sum comes first"),
    ("aten.add", "other=0.0", "adding nothing"),
    ("aten.add", "other=2.2", "adding hardly anything"),
    ("aten.pow", "exponent=1.0", "the first power"),
    ("aten.scatter_reduce", "reduce=prod", "a product that includes x is linear in x; seldom pending"),
    ("aten.index_put", "P, S(0), R -> P", "accumulates one value at every place; seldom pending"),
    ("aten.addmm", "beta=0", "beta = 0 makes the added tensor irrelevant"),
    ("aten.linalg_vector_norm", "ord=0", "counts what is not zero, and no part is"),
    ("aten.nansum", "P -> P", "linear only where nothing is nan"),
    ("aten.native_layer_norm_backward", "P -> ", "the bias is not read"),
    ("aten.nan_to_num", "P -> P", "linear only where nothing is nan or infinite"),
    ("aten.xlogy", "P, R -> P", "0 log 0 is 0 for a sum of 0, not for its parts"),
    ("aten.special_xlog1py", "P, R -> P", "0 log 0 is 0 for a sum of 0, not for its parts"),
    ("aten.convolution", "transposed=True", "gathering x and w is cheaper than the sum that y would owe"),
    (
        "aten.native_batch_norm",
        "training=False",
        "linear in x, running mean and bias together; never pending",
    ),
    (
        "aten.native_batch_norm_backward",
        " -> ",
        "statistics that are not read, or linear in x and their mean",
    ),
    ("aten.pixel_shuffle", "S(2) -> S(2)", "rows of a picture, where cuts fall together"),
    ("aten.pixel_unshuffle", "S(2) -> S(2)", "rows of a picture, where cuts fall together"),
    ("aten.heaviside", "P -> ", "the second input counts only where the first is 0"),
    ("aten.__lshift__", "P -> P", "of whole numbers, until they overflow"),
]

# Operators with a class that no sample calls, and why.
UNSAMPLED = {
    **dict.fromkeys(
        [
            "normal",
            "normal_functional",
            "uniform",
            "random",
            "exponential",
            "geometric",
            "cauchy",
            "log_normal",
            "bernoulli",
            "rand_like",
            "randn_like",
            "randint_like",
            "native_dropout",
        ],
        "random: tests/ops/test_fill.py compares it with torch's stream",
    ),
    **dict.fromkeys(
        [
            f"_scaled_dot_product_{kind}_attention{backward}"
            for kind in ("cudnn", "efficient", "flash")
            for backward in ("", "_backward")
        ],
        "has a CUDA kernel only; its class serves the CPU's form too, which is sampled",
    ),
    **dict.fromkeys(
        [f"_scaled_dot_product_fused_attention_overrideable{backward}" for backward in ("", "_backward")],
        "other devices' form of the same class",
    ),
    **dict.fromkeys(
        [
            "convolution_overrideable",
            "convolution_backward_overrideable",
            "_upsample_lanczos2d_aa",
            "_upsample_lanczos2d_aa_backward",
            "native_channel_shuffle",
            "_linalg_eigvals",
        ],
        "other devices' form of the same class",
    ),
    "rrelu_with_noise_backward": "random forward",
    **dict.fromkeys(["_fused_rms_norm", "_fused_rms_norm_backward"], "torch gives it on CUDA only"),
    **dict.fromkeys(["new_empty", "empty_like", "new_empty_strided"], "values are whatever the memory held"),
    **dict.fromkeys(
        [
            "true_divide",
            "alias",
            "unsafe_split",
            "unsafe_split_with_sizes",
            "_unsafe_index",
            "_unsafe_index_put",
            "_neg_view",
            "_reshape_alias",
            "_index_put_impl",
            "unsafe_chunk",
        ],
        "another name, that torch gives in graphs of its own, of an operator that is sampled",
    ),
}


@functools.cache
def calls() -> dict[str, list[Call]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has advice for some samples
        return calls_by_operator()


OWN = [name for name in own_operators() if name.startswith("aten.")]
BY_TAG = [
    name
    for name, found in calls().items()
    if name not in OWN and class_names(found) in ("BaseMath", "BroadcastBinary")
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n in OWN if n in calls()] + sample(BY_TAG, 20))
def test_rules(name: str) -> None:
    verdict = judge_operator(calls()[name], cases(3), max_rows=cases(40))
    assert not verdict.wrong, verdict
    allowed = [part for operator, part, _ in MISSING_OK if operator == name]
    missing = [found for found in verdict.missing if not any(part in found.rule for part in allowed)]
    assert not missing, "\n".join(map(str, missing))


def test_every_operator_class_has_a_sample() -> None:
    present = {n for n in own_operators() if n.startswith("aten.")}
    without = {name.removeprefix("aten.") for name in present if name not in calls()}
    assert without - UNSAMPLED.keys() == set(), "add a line to dtorch/testing/samples_*.py"


def test_lists_are_not_stale() -> None:
    assert {name for name, _, _ in MISSING_OK} <= {*OWN, *BY_TAG}
    sampled = {f"aten.{name}" for name in UNSAMPLED} & calls().keys()
    assert sampled == set(), "sampled after all"


@pytest.mark.parametrize("name", sorted(registry.types()))
def test_every_type_has_a_class(name: str) -> None:
    assert registry.class_by_type(name).type == name
