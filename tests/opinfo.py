"""PyTorch's own operator database, tried on meshes: what is eligible, and how one operator is compared.

python -m tests.opinfo [--seed N] [name ...]     all operators, or these; one line each, counts at the end
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.placement import Partial, Placement, Replicate, Shard
from dtorch.testing.calls import copy
from dtorch.testing.compare import EXACT, difference, plain
from dtorch.testing.engine import distributed

MAX_SAMPLES = 3
"""Samples tried for one operator, chosen among the first hundred."""

UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}

UNREPEATABLE = {"linalg.lstsq"}
"""Plain torch gives other bits from run to run (LAPACK's gelsy)."""

# name -> (text of the refusal, why it cannot be otherwise). Samples refused so are listed, not passed over.
CANNOT: dict[str, tuple[str, str]] = {
    "tensor_split": (
        "its data is not allocated yet",
        "torch reads a tensor of indices at its memory address, before it asks anyone; give a list",
    ),
    "nn.functional.linear_cross_entropy/chunked_none": (
        "would write a distributed result into a plain tensor",
        "torch's chunked form accumulates into plain tensors of its own",
    ),
}

ELIGIBILITY = (
    "eligible: float32 on the CPU, a tensor among the arguments, deterministic (no random numbers, no "
    "uninitialised memory), dense inputs and outputs, accepted by plain torch"
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let torch's test code and odd samples warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Ineligible(Exception):
    """Why an operator or a sample is not tried."""


def name_of(op: Any) -> str:
    """`linalg.norm`, `linalg.norm/subgradients_at_zero`."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


def refused(op: Any) -> str | None:
    """Why an operator is not eligible, as far as its entry in the database tells."""
    if torch.float32 not in op.dtypes:
        return "no float32 on the CPU"
    if op.name in UNINITIALISED:
        return "uninitialised memory"
    if op.name in UNREPEATABLE:
        return "plain torch gives other bits from run to run"
    if op.name.startswith("signal.windows."):
        return "no tensor among the arguments"
    if op.name.startswith(("sparse.", "to_sparse")):
        return "sparse"
    return None


def samples_of(op: Any, seed: int) -> list[Any]:
    """A few samples of an operator, copied so that every stride is dense."""
    torch.manual_seed(seed)
    with quiet():
        found = list(islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), 100))
    chosen = random.Random(seed).sample(range(len(found)), min(MAX_SAMPLES, len(found)))
    return [found[i] for i in sorted(chosen)]


class _Tags(TorchDispatchMode):
    """Notes whether random numbers are drawn."""

    random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


Run = tuple[list[Any], list[Any], list[Any]]
"""Leaves, flat outputs, gradients of the leaves."""


def run(op: Any, sample: Any, make: Any, cotangents: Any) -> Run:
    """Run an operator forward and backward on a sample whose tensors `make` has replaced."""
    leaves: list[Any] = []

    def replace(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        leaves.append(make(value, len(leaves)))
        return leaves[-1]

    args, kwargs = tree_map(replace, (sample.input, *sample.args)), tree_map(replace, sample.kwargs)
    result = op(*args, **kwargs)
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = tree_flatten(result)[0]
    wanted = [x for x in leaves if x.requires_grad]
    used = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
    grads: list[Any] = []
    if wanted and used:
        grads = list(torch.autograd.grad(used, wanted, [cotangents(y) for y in used], allow_unused=True))
    return leaves, outputs, grads


def plain_leaf(value: torch.Tensor, _: int) -> torch.Tensor:
    """The tensor itself, as a leaf of its own."""
    return copy(value).requires_grad_(value.requires_grad)


def generic(like: torch.Tensor) -> torch.Tensor:
    """Values of mixed sign for the gradient of an output, the same for equal shapes; no random numbers."""
    return torch.arange(1, like.numel() + 1).mul(1.7).sin().to(like.dtype).reshape(like.shape)


def reference(op: Any, sample: Any) -> Run:
    """The sample on plain torch.

    Raises:
        Ineligible: it is random, sparse, refused by torch, or has no tensor.
    """
    watch = _Tags()
    try:
        with watch, quiet():
            found = run(op, sample, plain_leaf, generic)
            again = run(op, sample, plain_leaf, generic)
    except Exception as error:
        raise Ineligible(
            f"plain torch refuses: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from None
    leaves, outputs, _ = found
    if watch.random:
        raise Ineligible("random numbers")
    if not leaves:
        raise Ineligible("no tensor among the arguments")
    if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in (*leaves, *outputs)):
        raise Ineligible("sparse")
    same = [_differ(a, b, EXACT) is None for i in (1, 2) for a, b in zip(found[i], again[i], strict=True)]
    if not all(same):
        raise Ineligible("plain torch gives other bits the second time")
    return found


def placement_for(tensor: torch.Tensor, chance: random.Random) -> Placement:
    """Shard(0), Shard(last), Replicate, a random Shard, or pending sums where the dtype has sums."""
    kinds: list[Placement] = [Replicate()]
    if tensor.ndim:
        kinds += [Shard(0), Shard(tensor.ndim - 1), Shard(chance.randrange(tensor.ndim))]
    if tensor.is_floating_point() and bool(tensor.isfinite().all()):
        kinds.append(Partial())
    return chance.choice(kinds)


def compare(op: Any, sample: Any, wanted: Run, mesh: DeviceMesh, seed: int) -> None:
    """Run a sample on a mesh, compare everything with plain torch; on one device bit for bit.

    Raises:
        AssertionError: something differs; the text says what, and the placements.
    """
    chance = random.Random(seed)
    placements: list[Placement] = []

    def leaf(value: torch.Tensor, _: int) -> torch.Tensor:
        value_ = copy(value)
        placements.append(placement_for(value_, chance) if mesh.size > 1 else Replicate())
        layout = Layout.from_placements(mesh.shape, value_.shape, [placements[-1]])
        return distributed(value_, layout, mesh, None, value.requires_grad)

    with quiet():
        try:
            found = run(op, sample, leaf, generic)
        except Exception as error:
            raise AssertionError(f"{placements}: {type(error).__name__}: {error}") from error
    exact = EXACT if mesh.size == 1 else None
    for what, ours, theirs in (("output", found[1], wanted[1]), ("gradient", found[2], wanted[2])):
        assert len(ours) == len(theirs), f"{placements}: {len(ours)} {what}s instead of {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            why = _differ(a, b, exact)
            assert why is None, f"{placements}: {what} {i}: {why}"


def _differ(ours: Any, theirs: Any, exact: Any) -> str | None:
    if not isinstance(theirs, torch.Tensor):
        return None if ours == theirs or (ours != ours and theirs != theirs) else f"{ours} is not {theirs}"
    if ours is None:
        return "absent"
    if tuple(ours.shape) != tuple(theirs.shape):
        return f"says shape {list(ours.shape)}, not {list(theirs.shape)}"
    theirs, ours = theirs.detach(), plain(ours).detach()
    if exact is None and theirs.dtype in (torch.float32, torch.complex64):
        # Sums in another order: relative to the largest value, since cancellation hits small ones.
        scale = theirs.abs().nan_to_num(0, 0, 0).max().item() if theirs.numel() else 0.0
        return difference(ours, theirs, EXACT._replace(rtol=2e-4, atol=5e-5 * max(1.0, scale)))
    return difference(ours, theirs, exact)


MESHES = {1: DeviceMesh("cpu", [0]), 4: DeviceMesh("cpu", [0, 1, 2, 3])}


def check(op: Any, size: int, seed: int) -> int:
    """Compare every eligible sample of an operator on a mesh of `size` devices.

    Returns:
        The number of samples that cannot work, by the list above.

    Raises:
        Ineligible: no sample is eligible.
        AssertionError: a sample differs.
    """
    why = refused(op)
    if why is not None:
        raise Ineligible(why)
    tried, listed, reasons = 0, 0, {}
    refusal = CANNOT.get(name_of(op))
    for number, sample in enumerate(samples_of(op, seed)):
        try:
            wanted = reference(op, sample)
        except Ineligible as reason:
            reasons[str(reason)] = None
            continue
        tried += 1
        try:
            compare(op, sample, wanted, MESHES[size], seed + number)
        except AssertionError as error:
            if refusal is not None and refusal[0] in str(error):
                listed += 1
                continue
            raise AssertionError(f"sample {number} {_text(sample)}\n{error}") from error
    if not tried:
        raise Ineligible("; ".join(reasons) or "no samples")
    return listed


def _text(sample: Any) -> str:
    def short(value: Any) -> Any:
        return f"{list(value.shape)}{str(value.dtype)[5:]}" if isinstance(value, torch.Tensor) else value

    return str(tree_map(short, (sample.input, *sample.args, sample.kwargs)))


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise AssertionError after so many seconds."""

    def late(*_: Any) -> None:
        raise AssertionError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main() -> None:
    """Try all operators of the database, or those named."""
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(ELIGIBILITY, flush=True)
    counts = {"equal": 0, "listed": 0, "differs": 0, "ineligible": 0}
    for op in op_db:
        if options.names and name_of(op) not in options.names and op.name not in options.names:
            continue
        start = time.perf_counter()
        try:
            with time_limit(120):
                listed = max([check(op, size, options.seed) for size in MESHES])
            status, text = ("listed", CANNOT[name_of(op)][1]) if listed else ("equal", "")
        except Ineligible as reason:
            status, text = "ineligible", str(reason)
        except AssertionError as error:
            status, text = "differs", str(error)
        counts[status] += 1
        print(f"{status:10} {name_of(op)} {time.perf_counter() - start:.1f}s {text}", flush=True)
    print(counts)
    sys.exit(bool(counts["differs"]))


if __name__ == "__main__":
    main()
