"""What torch's schemas say about aliasing, as the engine reads it."""

from typing import Any

import pytest
import torch

from dtorch.op.schema import base_name, functional_of_in_place, functional_of_out, has_tag, schema_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "written", "outs", "returned", "view_of"),
    [
        (aten.add.Tensor, (), (), (None,), None),
        (aten.add_.Tensor, ("self",), (), ("self",), None),
        (aten.add.out, (), ("out",), ("out",), None),
        (aten.view.default, (), (), (None,), "self"),
        (aten.split.Tensor, (), (), (None,), "self"),
        (aten.unbind.int, (), (), (None,), "self"),
        (aten.max.dim, (), (), (None, None), None),
        (aten.max.dim_max, (), ("max", "max_values"), ("max", "max_values"), None),
        # The schema does not say that it writes.
        (aten.native_batch_norm.default, ("running_mean", "running_var"), (), (None, None, None), None),
        (
            aten._native_batch_norm_legit.default,
            ("running_mean", "running_var"),
            (),
            (None, None, None),
            None,
        ),
        (aten._foreach_add_.List, ("self",), (), (), None),
        (aten.detach.default, (), (), (None,), "self"),
        (aten.copy_.default, ("self",), (), ("self",), None),
    ],
    ids=str,
)
def test_aliasing(func: Any, written: Any, outs: Any, returned: Any, view_of: Any) -> None:
    facts = schema_of(func)
    assert (facts.written, facts.outs, facts.returned, facts.view_of) == (written, outs, returned, view_of)
    assert schema_of(func) is facts


def test_arguments_by_name() -> None:
    facts = schema_of(aten.add.Tensor)
    assert facts.names == ("self", "other", "alpha")
    assert facts.keyword_only == {"alpha"}
    assert facts.bind((1, 2), {}) == {"self": 1, "other": 2, "alpha": 1}
    assert facts.bind((1, 2), {"alpha": 5}) == {"self": 1, "other": 2, "alpha": 5}
    assert "other" not in facts.bind((1,), {})


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (aten.add.Tensor, "aten.add"),
        (aten.add_.Tensor, "aten.add"),
        (aten.add.out, "aten.add"),
        (aten.__lshift__.Tensor, "aten.__lshift__"),
        (aten._softmax.default, "aten._softmax"),
        (aten.squeeze_.dim, "aten.squeeze"),
    ],
    ids=str,
)
def test_base_name(func: Any, name: str) -> None:
    assert base_name(func) == name


@pytest.mark.parametrize(
    ("func", "plain"),
    [
        (aten.add.out, aten.add.Tensor),
        (aten.max.dim_max, aten.max.dim),
        (aten.sum.IntList_out, aten.sum.dim_IntList),
        # These differ by dtype, device and their like.
        (aten.arange.start_out, aten.arange.start_step),
        (aten.cat.out, aten.cat.default),
    ],
    ids=str,
)
def test_out_forms_have_a_plain_one(func: Any, plain: Any) -> None:
    assert functional_of_out(func) is plain


@pytest.mark.parametrize(
    ("func", "plain"),
    [
        (aten.squeeze_.dim, aten.squeeze.dim),
        (aten.squeeze_.default, aten.squeeze.default),
        (aten.t_.default, aten.t.default),
        (aten.transpose_.default, aten.transpose.int),
        (aten.unsqueeze_.default, aten.unsqueeze.default),
        (aten.as_strided_.default, aten.as_strided.default),
    ],
    ids=str,
)
def test_in_place_views_have_a_plain_one(func: Any, plain: Any) -> None:
    assert functional_of_in_place(func) is plain


def test_tags() -> None:
    assert has_tag(aten.relu.default, torch.Tag.pointwise)
    assert not has_tag(aten.mm.default, torch.Tag.pointwise)
