"""Tools for tests: comparing tensors, combining arguments, and the judge of placement rules."""

from __future__ import annotations

from dtorch.testing.arguments import gen_arg_list
from dtorch.testing.calls import Call, calls_in
from dtorch.testing.compare import TOLERANCES, assert_tensor_allclose, assert_tensor_equal
from dtorch.testing.oracle import Verdict, assert_rules, judge, judge_call

__all__ = [
    "Call",
    "TOLERANCES",
    "Verdict",
    "assert_rules",
    "assert_tensor_allclose",
    "assert_tensor_equal",
    "calls_in",
    "gen_arg_list",
    "judge",
    "judge_call",
]
