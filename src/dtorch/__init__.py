"""dtorch: write single-device PyTorch in one process, see the price of every operator, run it on a mesh.

Every name of torch is here too: `dtorch.add is torch.add`. Factories are dtorch's own and take
`device_mesh=` and `placements=`.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
from types import ModuleType
from typing import Any

import torch

# What is imported stays. A collection meanwhile walks over all of torch's objects, and finds nothing.
_collecting = gc.isenabled()
gc.disable()
try:
    from dtorch import autograd, mesh_description, ops
    from dtorch.errors import (
        AxisError,
        CaptureError,
        DeviceError,
        DtorchError,
        MeshError,
        MeshMismatchError,
        ModelError,
        OperatorError,
        OptionError,
        PlacementError,
        SerializationError,
        ShapeError,
        UnsupportedError,
    )
    from dtorch.future import TensorFuture, VoidFutureCollect
    from dtorch.graph.graph import Graph
    from dtorch.graph.logical_graph import LogicalGraph
    from dtorch.graph.memory_stats import MemoryStats
    from dtorch.inductor.mode import optimize
    from dtorch.layout import Layout
    from dtorch.mesh import DeviceMesh, init_device_mesh
    from dtorch.op.cost import OperatorCost
    from dtorch.options import GlobalOption, SdpaOption
    from dtorch.placement import Partial, Placement, Replicate, Shard
    from dtorch.plan.cache import PlanStats
    from dtorch.plan.cache import stats as plan_stats
    from dtorch.plan.fuse import rates as _rates
    from dtorch.plan.passes.listed import passes
    from dtorch.policy import device_mesh, no_sync, record, set_redistribute_policy, strict
    from dtorch.runtime.runner import LocalRunner

    Graph.runner_factory = LocalRunner
    _rates.measured = lambda: importlib.import_module("dtorch.perf.rates").measured()
    mesh_description.kinds = lambda: importlib.import_module("dtorch.perf.device").KINDS

    # Graphs are handed their runner before anything below could make one.
    from dtorch import creation_mode as _creation_mode  # noqa: F401
    from dtorch import dispatch_value as _dispatch_value  # noqa: F401
    from dtorch import dispatch_view as _dispatch_view  # noqa: F401
    from dtorch import dispatch_write as _dispatch_write  # noqa: F401
    from dtorch import foreach as _foreach  # noqa: F401
    from dtorch import tensor_replay as _tensor_replay  # noqa: F401
    from dtorch.creation import (
        arange,
        distribute_tensor,
        empty,
        empty_like,
        from_local,
        from_numpy,
        from_torch,
        full,
        full_like,
        get_default_device_mesh,
        ones,
        ones_like,
        rand,
        rand_like,
        randint,
        randint_like,
        randn,
        randn_like,
        tensor,
        zeros,
        zeros_like,
    )
    from dtorch.inductor.stored import fall_back as _fall_back
    from dtorch.nn.parallelize import distribute_module, parallelize
    from dtorch.tensor import Tensor
    from dtorch.tensor_compile import watch_dynamo as _watch_dynamo
    from dtorch.version import __version__

    _fall_back()
    _watch_dynamo()
finally:
    if _collecting:
        gc.enable()

__all__ = [
    "__version__",
    "AxisError",
    "Capture",
    "CaptureError",
    "CaptureStats",
    "DeviceError",
    "DeviceMesh",
    "DtorchError",
    "GlobalOption",
    "Graph",
    "Layout",
    "LogicalGraph",
    "MemoryStats",
    "MeshError",
    "MeshMismatchError",
    "ModelError",
    "OperatorCost",
    "OperatorError",
    "OptionError",
    "Partial",
    "Placement",
    "PlanStats",
    "PlacementError",
    "Replicate",
    "Report",
    "SdpaOption",
    "SerializationError",
    "Shard",
    "ShapeError",
    "Tensor",
    "TensorFuture",
    "UnsupportedError",
    "VoidFutureCollect",
    "arange",
    "capture",
    "described_mesh",
    "device_mesh",
    "devices",
    "discover_rules",
    "distribute_module",
    "distribute_tensor",
    "dry_run",
    "empty",
    "empty_like",
    "explain",
    "from_local",
    "from_numpy",
    "from_torch",
    "full",
    "full_like",
    "get_default_device_mesh",
    "init_device_mesh",
    "no_sync",
    "ones",
    "ones_like",
    "optimize",
    "parallelize",
    "passes",
    "plan_stats",
    "price",
    "profile",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "record",
    "set_redistribute_policy",
    "strict",
    "tensor",
    "zeros",
    "zeros_like",
]

# What not every program needs: its modules are imported when one of these names is first used.
_LATE = {
    "Capture": "dtorch.replay",
    "CaptureStats": "dtorch.replay",
    "Report": "dtorch.report.report",
    "capture": "dtorch.replay",
    "described_mesh": "dtorch.perf.device",
    "devices": "dtorch.perf.device",
    "discover_rules": "dtorch.testing.discover",
    "dry_run": "dtorch.perf.dry_run",
    "explain": "dtorch.explanation",
    "price": "dtorch.report.price",
    "profile": "dtorch.report.profile",
}

_SUBMODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """The thread's default graph; a submodule of dtorch; else what torch calls by that name."""
    if name == "default_graph":
        return Graph.default_graph()
    if name in _LATE:
        found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return found
    if name in _SUBMODULES:
        return _with_torchs(importlib.import_module(f"{__name__}.{name}"))
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(torch, name)
    except AttributeError:
        raise AttributeError(f"neither dtorch nor torch has {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch), *_LATE, *_SUBMODULES, "default_graph"})


def _with_torchs(module: ModuleType) -> ModuleType:
    """A submodule that torch has too (autograd, ops, testing) answers for torch's names as well."""
    theirs = getattr(torch, module.__name__.rpartition(".")[2], None)
    if theirs is not None and "__getattr__" not in module.__dict__:
        module.__dict__["__getattr__"] = lambda name: getattr(theirs, name)
    return module


_with_torchs(autograd)
_with_torchs(ops)
