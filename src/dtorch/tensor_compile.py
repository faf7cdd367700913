"""torch.compile meets distributed tensors: what holds them runs as it is, with one notice.

Dynamo must trace neither dtorch nor code that holds distributed tensors. Importing it takes seconds, so
`import dtorch` leaves it alone; a finder waits until somebody else imports it, and has it ask here first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from dtorch.errors import UnsupportedError
from dtorch.tensor import Tensor

NOTICE = (
    "torch.compile: {name} holds distributed tensors and runs uncompiled, with the same results. "
    "dtorch.capture() replays such a program without its Python, dtorch.optimize() says what is compiled."
)
NO_GRAPH = (
    "torch.compile(fullgraph=True): {name} holds distributed tensors, of which torch.compile makes no graph. "
    "Without fullgraph=True it runs uncompiled, with the same results."
)

_CONVERT_FRAME = "torch._dynamo.convert_frame"
_OURS = __name__.partition(".")[0]
_log = logging.getLogger("dtorch")
_told = False


def watch_dynamo() -> None:
    """From now on, or once it is imported, Dynamo leaves distributed tensors alone."""
    if _CONVERT_FRAME in sys.modules:
        _ask_first(sys.modules[_CONVERT_FRAME])
    else:
        sys.meta_path.insert(0, _Waiting())


class _Waiting(MetaPathFinder):
    """Finds nothing; tells when Dynamo's module is found by others and executed."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """None, but for the one module: the spec that it has anyway, whose loader calls back."""
        if name != _CONVERT_FRAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def and_then_ask(module: ModuleType) -> None:
            execute(module)
            _ask_first(module)

        spec.loader.exec_module = and_then_ask  # type: ignore[method-assign]
        return spec


def _ask_first(convert_frame: Any) -> None:
    """Put `_leaves_alone` before everything that Dynamo does with a frame."""
    wrapper, answer = convert_frame.CatchErrorsWrapper, convert_frame.ConvertFrameReturn
    skip = convert_frame.FrameAction.SKIP
    strategy = convert_frame.FrameExecStrategy(skip, skip)  # the frame, and all that it calls
    convert = wrapper.__call__

    def ask(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        if frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
            return answer(frame_exec_strategy=strategy, skip_reason="dtorch is not traced")
        if holds_distributed(frame.f_locals.values()):
            _tell(self, frame)
            return answer(
                frame_exec_strategy=strategy, apply_to_code=False, skip_reason="it holds distributed tensors"
            )
        return convert(self, frame, cache_entry, frame_state)

    wrapper.__call__ = ask
    sys.modules["torch._dynamo.trace_rules"].add(_OURS)


def _tell(convert: Any, frame: Any) -> None:
    """The notice, once in a process.

    Raises:
        UnsupportedError: the user asked for one graph or none (fullgraph=True).
    """
    global _told
    code, modules = frame.f_code, (v for v in frame.f_locals.values() if isinstance(v, torch.nn.Module))
    module = next(modules, None)
    name = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    name = name if module is None else type(module).__name__
    if getattr(getattr(convert, "_torchdynamo_orig_backend", None), "_one_graph", False):
        raise UnsupportedError(NO_GRAPH.format(name=name))
    if not _told:
        _told = True
        _log.warning(NOTICE.format(name=name))


def holds_distributed(values: Iterable[Any], depth: int = 2) -> bool:
    """Whether a distributed tensor is among values, in their lists and dicts, or in modules."""
    for value in values:
        if isinstance(value, Tensor):
            return True
        if isinstance(value, torch.nn.Module):
            if any(isinstance(t, Tensor) for t in (*value.parameters(), *value.buffers())):
                return True
        elif depth and isinstance(value, (list, tuple)):
            if holds_distributed(value, depth - 1):
                return True
        elif depth and isinstance(value, dict) and holds_distributed(value.values(), depth - 1):
            return True
    return False
