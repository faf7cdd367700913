"""The compiling process: takes listings, compiles and tests them, answers with where the code is.

A process of its own, since Inductor, while it compiles, sets back the process's random numbers, holds the
interpreter for seconds and may not end. It ends when its input does, or the process that it works for.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from dtorch.inductor import admission, stored
from dtorch.inductor.blocks import Parts
from dtorch.inductor.listing import Listing, Refusal, compute
from dtorch.inductor.spelt import table

NICE = 10
"""By how much the process, and the compilers that it starts, stand back: nothing waits for them."""


def compile_listing(listing: Listing, num_threads: int) -> tuple[Callable[[list[Any]], list[Any]], str]:
    """Compile a listing: the code (inputs to results), and its key in Inductor's cache, "" if it has none."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    function = torch.func.functionalize(lambda *x: compute(listing)(list(x)), remove="mutations_and_views")
    fake = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with fake, torch.no_grad():
        inputs = [meta.empty() for meta in listing.inputs]
        graph = make_fx(function, decomposition_table=_spelt(select_decomp_table()))(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    output = next(node for node in graph.graph.nodes if node.op == "output")
    made = output.args[0]
    output.meta["user_visible_output_idxs"] = list(range(len(made)))
    output.meta["original_output_strides"] = [node.meta["val"].stride() for node in made]
    options = {
        "cpp_wrapper": True,
        "compile_threads": 1,
        "cpp.threads": num_threads,
        "fx_graph_cache": True,
        "fx_graph_remote_cache": False,
    }
    with config.patch(options), torch._guards.tracing(torch._guards.TracingContext(fake)), torch.no_grad():
        code: Any = compile_fx_inner(graph, inputs, cpp_wrapper=True, is_inference=True)
    return (lambda x: list(code(x))), getattr(code, "_fx_graph_cache_key", None) or ""


def _spelt(known: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions with ours before them; where ours has no words for a call, Inductor's has."""

    def first(own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def words(*args: Any, **kwargs: Any) -> Any:
            found = own(*args, **kwargs)
            return other(*args, **kwargs) if found is NotImplemented else found

        return words

    own = {op: first(call, known[op]) if op in known else call for op, call in table().items()}
    return {**known, **own}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile what a request asks for.

    Args:
        request: listing, mode, num_threads, default_dtype; parts, where it is to be made by blocks.

    Returns:
        {"key": in Inductor's cache} or {"refused": why} or {"failed": why}.
    """
    listing, mode, threads = Listing.from_dict(request["listing"]), request["mode"], request["num_threads"]
    torch.set_num_threads(threads)
    torch.set_default_dtype(getattr(torch, request["default_dtype"]))
    try:
        parts = Parts.from_dict(request["parts"]) if "parts" in request else None
        compiled = listing if parts is None else parts.rest
        if mode == "exact":
            admission.refuse_unlike(compiled, _operators(compiled, threads))
        code, key = compile_listing(compiled, threads)
        if not key:
            return {"refused": "Inductor cannot keep it on disk"}
        test = admission.region_differs if mode == "exact" else admission.region_error
        why = test(listing, code if parts is None else parts.around(code))
        return {"refused": why} if why else {"key": key}
    except Refusal as refusal:
        return {"refused": str(refusal)}
    except Exception as error:
        text = next(iter(str(error).strip().splitlines()), "")
        return {"failed": f"{type(error).__name__}: {text[:300]}"}


def _operators(listing: Listing, threads: int) -> dict[str, str]:
    """What is known of a listing's operators, after asking for what is not."""
    table = admission.known(listing, threads)
    if "other bits" in table.values():
        return table
    unknown = [call for key, call in admission.operators(listing).items() if key not in table]
    for key, found in admission.differing(unknown, lambda x: compile_listing(x, threads)[0]).items():
        stored.save(admission.stored_name(key, threads), found)
        table[key] = found
    return table


def _end_with(parent: int) -> None:
    """End this process when the one it works for has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def prepare() -> None:
    """Load what compiles, and try what vectors the processor has, which takes seconds whatever is asked.

    torch tries one set of instructions after the other, by compiling a few lines; here all are under way at
    once. What a try finds is kept by torch, in this process and beside its compiled code.
    """
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa  # noqa: F401  imported by each try

    present = cpu_vec_isa.x86_isa_checker() if platform.machine() in ("x86_64", "AMD64") else []
    sets = [isa for isa in cpu_vec_isa.supported_vec_isa_list if set(str(isa).split()).issubset(present)]
    with ThreadPoolExecutor(len(sets) + 1) as pool:
        pool.map(bool, sets)
        from torch._inductor import compile_fx  # noqa: F401


def main() -> None:
    """Answer requests, one line of JSON each, until there are no more."""
    os.nice(NICE)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a compiler prints is no answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(Exception):  # it is done again where it is needed, and fails there
        prepare()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
