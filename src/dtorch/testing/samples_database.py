"""Calls out of PyTorch's own operator database (`op_db`), for the judge.

Every entry is run on its samples, forward and backward, and the calls below autograd are taken down.
Sizes are those of the database: mostly 5, 10, 3, 2 and 1, which 2 and 3 devices cut evenly, unevenly, or
not at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch

from dtorch.op.call import flatten
from dtorch.op.param import TorchCall
from dtorch.testing.calls import Call, calls_in
from dtorch.testing.samples import backward_of, by_operator, is_determined

DTYPES = (torch.float64, torch.complex128, torch.int64, torch.bool, torch.float32)
"""An entry is run in the first of these that it has; the narrow ones only add rounding."""

MAX_SAMPLES = 40
"""Samples of an entry that are looked at; of more, evenly spaced ones."""

MAX_NUMEL = 2000
"""Elements of all inputs together up to which a call is small enough to be judged by brute force."""


NOT_JUDGED = {
    "sparse": "gives or takes sparse tensors, which are refused",
    "_linear_cross_entropy_batch_chunked": "accumulates into plain tensors of its own",
}
"""Parts of names of torch operators that cannot work, and why."""


@cache
def entries() -> dict[str, Any]:
    """Entries of the database by name, `linalg.norm/subgradients_at_zero`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def calls_of_entry(name: str) -> list[Call]:
    """The small calls that an entry's samples make, each kind once; none where it has no dense sample."""
    op = entries()[name]
    dtype = next((dtype for dtype in DTYPES if dtype in op.dtypes), None)
    if dtype is None:
        return []
    found: dict[str, Call] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(op, dtype):
            for call in _calls(op, sample):
                if _is_small(call) and is_determined(call) and _stands_alone(call):
                    found.setdefault(call.key(), call)
    return list(found.values())


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    smooth = dtype.is_floating_point or dtype.is_complex
    gradients = smooth and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    try:
        every = list(islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 400))
    except Exception:
        return  # the database itself has none for this build
    step = max(1.0, len(every) / MAX_SAMPLES)
    yield from (every[int(i * step)] for i in range(min(len(every), MAX_SAMPLES)))


def _calls(op: Any, sample: Any) -> list[Call]:
    def run() -> None:
        result = op(sample.input, *sample.args, **sample.kwargs)
        if sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        backward_of([y for y in flatten(result) if isinstance(y, torch.Tensor)])

    try:
        return calls_in(run)
    except Exception:
        return []  # plain torch refuses it


def _is_small(call: Call) -> bool:
    tensors = [x for x in call.inputs if x is not None]
    dense = all(x.layout is torch.strided and not x.is_quantized and not x.is_nested for x in tensors)
    return bool(tensors) and dense and sum(x.numel() for x in tensors) <= MAX_NUMEL


def _stands_alone(call: Call) -> bool:
    """Whether it works on copies; not where it reads the storage behind a tensor (as_strided)."""
    if isinstance(call.param, TorchCall) and any(part in call.param.op for part in NOT_JUDGED):
        return False
    try:
        call.run()
    except Exception:
        return False
    return True


def database_calls() -> dict[str, list[Call]]:
    """Torch operator ("aten.mm") -> its calls in the samples of all entries, each kind of call once."""
    return by_operator(call for name in entries() for call in calls_of_entry(name))
