"""Which Python function calls which torch operator, and which class serves it: docs/operators_mapping.md.

    python -m dtorch.testing.mapping [--write]

Prints the page, or writes it. What calls what is observed: the samples run, and every function of torch that
is called is noted with the torch operators that it makes.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.op import registry
from dtorch.op.schema import base_name
from dtorch.testing.mapping_onnx import ONNX
from dtorch.testing.samples import run_sample, samples

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operators_mapping.md"

DTORCH = {
    "Convert": "dtorch.Tensor.redistribute, dtorch.Tensor.to",
    "GetTensor": "dtorch.Tensor.to_torch, dtorch.Tensor.full_tensor, item, tolist",
    "Sync": "dtorch.Graph.sync",
    "Memory": "dtorch.Graph.get_memory_stats, dtorch.Graph.empty_cache",
    "Nvtx": "dtorch.cuda.nvtx.range_push, dtorch.cuda.nvtx.range_pop, dtorch.cuda.nvtx.mark",
}
"""Types that are no torch operator, and what calls them."""

_SDPA = "torch.nn.functional.scaled_dot_product_attention"
ELSEWHERE = {
    "aten._fused_adam": "torch.optim.Adam(fused=True)",
    "aten._fused_adamw": "torch.optim.AdamW(fused=True)",
    "aten._fused_sgd": "torch.optim.SGD(fused=True)",
    "aten._fused_adagrad": "torch.optim.Adagrad(fused=True)",
    "aten._fused_rms_norm": "torch.nn.functional.rms_norm",
    "dtorch.apply_rotary_emb": "dtorch.nn.functional.apply_rotary_emb",
    "dtorch.layer_norm_mul_add": "dtorch.nn.functional.layer_norm_mul_add",
    "dtorch.silu_linear_chunk": "dtorch.nn.functional.silu_linear_chunk",
    **{f"aten._scaled_dot_product_{kind}_attention": _SDPA for kind in ("cudnn", "efficient", "flash")},
}
"""Torch operators that no function of torch makes: of dtorch's own, of optimizers, and of CUDA alone."""

HEAD = """# Python API, torch operator, operator class

Made by `python -m dtorch.testing.mapping --write`; a test fails when it is stale.

A function of torch reaches dtorch as one or several torch operators; the operator's name leads to the class
([following a call](following_a_call.md)). Parameter names are torch's. Where ONNX has the operator, its name
stands beside; its parameters may be called otherwise.

An operator that torch tags as element-wise and that is not listed is served by `BroadcastBinary` if it has an
argument `other`, else by `BaseMath`. Any other operator runs on whole tensors, as `General`: exact and
visible.
"""


class _Functions(TorchFunctionMode):
    """Notes the outermost function of torch that is running; the gradient's pass counts as none."""

    running: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before, self.running = self.running, _function_name(func)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running = before


class _Operators(TorchDispatchMode):
    """Notes the torch operators that each function makes, in order."""

    def __init__(self, functions: _Functions) -> None:
        super().__init__()
        self.functions = functions
        self.found: dict[str, dict[str, None]] = defaultdict(dict)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        # autograd keeps outputs for the gradient by detach
        if self.functions.running is not None and func is not torch.ops.aten.detach.default:
            self.found[self.functions.running][base_name(func)] = None
        return func(*args, **(kwargs or {}))


def _function_name(func: Any) -> str | None:
    """`torch.add`; None for what is no public function, for operators as symbols, and for backward passes."""
    name = resolve_name(func)
    if name is None or name.startswith(("torch.ops", "torch.autograd", "torch._")):
        return None
    if name in ("torch.Tensor.__getitem__", "torch.Tensor.__setitem__"):
        return "x[...]" if "get" in name else "x[...] ="
    name = name.removesuffix(".__get__").replace("torch.functional.", "torch.")
    last = name.rpartition(".")[2]
    return None if last.startswith("_") or last in ("backward", "requires_grad_", "detach") else name


def observed() -> dict[str, list[str]]:
    """Python function -> the torch operators that it makes in the samples, in order of their first use."""
    functions = _Functions()
    with warnings.catch_warnings(), functions, _Operators(functions) as operators:
        warnings.simplefilter("ignore")
        for sample in samples().values():
            run_sample(sample)
    return {name: list(found) for name, found in sorted(operators.found.items())}


def namesakes(operator: str) -> list[str]:
    """Public functions and methods called like a torch operator."""
    namespace, name = operator.split(".")[:2]
    if operator in ELSEWHERE:
        return [ELSEWHERE[operator]]
    if namespace != "aten" or name.startswith("_"):
        return []
    places = (("torch.nn.functional", torch.nn.functional), ("torch", torch), ("torch.Tensor", torch.Tensor))
    found = [f"{path}.{name}" for path, place in places if callable(getattr(place, name, None))]
    if callable(getattr(torch.Tensor, f"{name}_", None)):
        found.append(f"torch.Tensor.{name}_")
    return found[:1]


def own_types() -> dict[str, dict[str, type]]:
    """Type -> the torch operators of its classes, of dtorch's own types alone."""
    found: dict[str, dict[str, type]] = {}
    for name, cls in registry.types().items():
        if cls.__module__.startswith("dtorch.ops"):
            found[name] = {}
    for operator, cls in sorted(registry.torch_operators().items()):
        if cls.__module__.startswith("dtorch.ops"):
            found[cls.type][operator] = cls
    return dict(sorted(found.items()))


def callers(operator: str, functions: Mapping[str, list[str]]) -> list[str]:
    """The functions that make a torch operator alone; where there are none, two that make it among others."""
    users = sorted((f for f, made in functions.items() if operator in made), key=lambda f: len(functions[f]))
    alone = [name for name in users if len(functions[name]) == 1]
    return [*dict.fromkeys([*namesakes(operator), *_short(alone)])] or _short(users)[:2]


def page() -> str:
    """The page's text."""
    functions = observed()
    lines = [HEAD, "## Operators", ""]
    lines += ["| Type | Class | torch operator | Python | ONNX |", "|---|---|---|---|---|"]
    for type_name, operators in own_types().items():
        if type_name in DTORCH:
            lines.append(f"| {type_name} | {type_name} | | {_code(DTORCH[type_name].split(', '))} | |")
        for operator, cls in operators.items():
            base = ".".join(operator.split(".")[:2])
            python = "a gradient" if "_backward" in base else _code(callers(base, functions))
            lines.append(f"| {type_name} | {cls.__name__} | `{operator}` | {python} | {ONNX.get(base, '')} |")
    lines += ["", "## Functions made of several operators", "", "| Python | torch operators |", "|---|---|"]
    for name, made in functions.items():
        if len(made) > 1 and not name.startswith("x["):
            lines.append(f"| `{name}` | {_code(made)} |")
    return "\n".join(lines) + "\n"


def _short(names: Iterable[str]) -> list[str]:
    """Without in-place forms, and without methods of which there is a function."""
    kept = [name for name in names if not name.endswith("_")]
    known = {name.rpartition(".")[2] for name in kept if not name.startswith("torch.Tensor.")}
    return [n for n in kept if not (n.startswith("torch.Tensor.") and n.rpartition(".")[2] in known)]


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Print the page, or write it."""
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
