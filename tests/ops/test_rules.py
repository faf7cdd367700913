"""Every operator class before the judge: no rule wrong, none missing.

`make rules` tries more rows of placements and more calls; DTORCH_CASES=5 does so here. Rules that hold and
are not listed have their reason in the class of the operator, `left_out`.
"""

import functools
import random
import warnings

import pytest

from dtorch.op import registry
from dtorch.testing import Call
from dtorch.testing.rules import class_names, judge_operator, own_operators, spaced
from dtorch.testing.samples import by_operator, calls_by_operator
from dtorch.testing.samples_database import calls_of_entry, entries
from tests.support import cases, sample

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
    record = judge_operator(name, spaced(calls()[name], cases(3)), cases(40))
    assert not record.wrong, record.text()
    assert not record.missing, record.text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("turn", range(cases(16)))
def test_rules_on_calls_of_the_database(turn: int) -> None:
    """One entry of PyTorch's database a turn; `make rules` judges the operators of all."""
    entry = random.Random(turn).choice(sorted(entries()))
    for name, found in by_operator(calls_of_entry(entry)).items():
        record = judge_operator(name, spaced(found, 2), 30, limit_s=5)
        assert not record.wrong, record.text()
        assert not record.missing, record.text()


def test_left_out_has_an_operator_and_a_reason() -> None:
    for kind in registry.torch_operators().values():
        assert all(why and (not op or op.count(".") == 1) for op, _, why in kind.left_out)


def test_every_operator_class_has_a_sample() -> None:
    present = {n for n in own_operators() if n.startswith("aten.")}
    without = {name.removeprefix("aten.") for name in present if name not in calls()}
    assert without - UNSAMPLED.keys() == set(), "add a line to dtorch/testing/samples_*.py"


def test_lists_are_not_stale() -> None:
    sampled = {f"aten.{name}" for name in UNSAMPLED} & calls().keys()
    assert sampled == set(), "sampled after all"


@pytest.mark.parametrize("name", sorted(registry.types()))
def test_every_type_has_a_class(name: str) -> None:
    assert registry.class_by_type(name).type == name
