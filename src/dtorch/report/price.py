"""Pricing a program: it is recorded once on described devices, and nothing is computed.

dtorch.price(model, ids, device="h100-sxm")
dtorch.price(model, ids, mesh=dtorch.described_mesh("h100-sxm", (8,), mesh_dim_names=("tp",)), plan="auto")
dtorch.price(training_step, model, batch, device="a100-sxm-80gb")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from dtorch.errors import DeviceError, MeshError, UnsupportedError
from dtorch.graph.graph import Graph
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.mesh_description import Description
from dtorch.nn.parallelize import Plan, parallelize
from dtorch.perf.device import Device, Link, described_mesh, find_device
from dtorch.perf.dry_run import dry_run
from dtorch.perf.ledger import entries
from dtorch.perf.memory import memory_of
from dtorch.perf.recording import Recording
from dtorch.perf.roofline import Roof, check_source, roof_of, schedule
from dtorch.redistribute.local_work import LocalWork
from dtorch.report.report import Report
from dtorch.tensor import Tensor, distribute

UNNAMED = Device(
    "unnamed", None, None, None, None, None, float("inf"), float("inf"), Link("unnamed", float("inf"))
)
"""Stands for the devices where none is named: calls are counted, and have no time."""

OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
}


def price(
    target: Callable[..., Any],
    *args: Any,
    mesh: DeviceMesh | Mapping[str, int] | None = None,
    device: str | Device | None = None,
    plan: Plan | str | None = None,
    backward: bool | None = None,
    optimizer: str | Callable[[Any], torch.optim.Optimizer] | None = None,
    strict: bool = False,
    roof: str = "achievable",
    title: str | None = None,
    **kwargs: Any,
) -> Report:
    """What a model or a function costs: FLOPs, bytes, communication, time, memory, call by call.

    The program is recorded on described devices. Models and tensors may be plain, distributed, on meta or
    made inside a dry run; they stay as they are. A plain model is laid out over the mesh by `plan`.

    Args:
        target: a module, a method of one, or a function.
        args, kwargs: what it is called with. Tensors that are not distributed yet become Replicate.
        mesh: the devices: a mesh, or axis name -> size. By default that of the distributed tensors among
            target and arguments, else one device.
        device: what the devices are, a name of `dtorch.devices()`; not needed for a described mesh. Without
            any, calls are counted and have no time.
        plan: as of `dtorch.parallelize`, for a plain model; None is all Replicate.
        backward: whether a backward follows, from the output's `loss` if it has one, else from all it gives.
            None is only with an optimizer. Without one a model is called under no_grad; a function never is.
        optimizer: "adamw", "adam", "sgd", or what makes an optimizer of parameters; one step is priced.
        strict: refuse a program with operators of unknown price.
        roof: "achievable", or "theoretical" for the data sheet's peaks alone.
        title: of the report.

    Raises:
        DeviceError: an unknown device, or one beside a mesh of another.
        MeshError: a mesh that cannot be.
        UnsupportedError: the program asks for a value; or `strict`, and a price is unknown.
    """
    check_source(roof)
    there = _described(target, (args, kwargs), mesh, device)
    recording = Recording(base="forward")
    module = _module_of(target)
    backward = optimizer is not None if backward is None else backward
    graph = Graph.default_graph()
    with ExitStack() as stack:
        with dry_run(there):  # what it takes to lay things out is no part of the program
            if module is not None:
                stack.enter_context(laid_out(module, there, plan))
            args, kwargs = tree_map_only(torch.Tensor, lambda t: _on(t, there, graph), (args, kwargs))
        stack.enter_context(dry_run(there, into=recording))
        with torch.no_grad() if module is not None and not backward else nullcontext():
            output = target(*args, **kwargs)
        if backward:
            run_backward(output)
        stepping = None if optimizer is None else run_optimizer(optimizer, module)
        if stepping is not None:
            stepping.step()
        recording.finish()  # while the program still holds what it holds
    return report_of(recording, there, roof, title or title_of(target), strict)


def report_of(recording: Recording, mesh: DeviceMesh, roof: str, title: str, strict: bool = False) -> Report:
    """The report of a recording on a described mesh.

    Raises:
        UnsupportedError: `strict`, and a price is unknown.
    """
    assert mesh.description is not None
    device = mesh.description.device
    bounds: Roof | None = None if device is UNNAMED else roof_of(device, roof)
    found = tuple(entries(recording))
    timed = () if bounds is None else tuple(schedule(found, bounds, mesh))
    report = Report(title, mesh, bounds, found, timed, memory_of(recording))
    if strict and report.unknown:
        raise UnsupportedError(f"strict: the price of {', '.join(report.unknown)} is unknown")
    return report


# -- where it runs ------------------------------------------------------------------------------------------


def _described(
    target: Any, values: Any, mesh: DeviceMesh | Mapping[str, int] | None, device: str | Device | None
) -> DeviceMesh:
    kind = None if device is None else find_device(device)
    if mesh is None:
        mesh = _mesh_among(target, values)
    if mesh is None:
        return described_mesh(kind or UNNAMED, (1,))
    if isinstance(mesh, Mapping):
        mesh = init_device_mesh("cpu", tuple(mesh.values()), tuple(mesh))
    if not isinstance(mesh, DeviceMesh):
        raise MeshError(
            f'mesh={mesh!r} is neither a DeviceMesh nor axis names and sizes, {{"dp": 2, "tp": 8}}'
        )
    if mesh.description is None:
        kind = kind or UNNAMED
        return mesh.described(Description(kind, (kind.link,) * mesh.ndim))
    if kind is not None and kind != mesh.description.device:
        raise DeviceError(
            f"device={kind.name!r} and a mesh of {mesh.description.device.name!r}: give one of them"
        )
    return mesh


def _mesh_among(target: Any, values: Any) -> DeviceMesh | None:
    module = _module_of(target)
    held = [] if module is None else [*module.parameters(), *module.buffers()]
    found = [t for t in (*held, *tree_leaves(values)) if isinstance(t, Tensor)]
    return found[0].device_mesh if found else None


def _module_of(target: Any) -> nn.Module | None:
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def title_of(target: Any) -> str:
    """The title of a report on `target`, where none is given."""
    return type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", "program")


@contextmanager
def laid_out(module: nn.Module, mesh: DeviceMesh, plan: Plan | str | None = None) -> Iterator[None]:
    """Inside, a module's parameters and buffers are described ones; then its own are back."""
    kept = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    graph = Graph.default_graph()
    made: dict[int, Any] = {}
    try:
        for part, parameters, buffers in kept:
            for name, parameter in parameters.items():
                if parameter is not None:
                    part._parameters[name] = _twin(parameter, mesh, graph, made)
            for name, buffer in buffers.items():
                if buffer is not None:
                    part._buffers[name] = _twin(buffer, mesh, graph, made)
        if plan is not None:
            parallelize(module, mesh, plan)
        yield
    finally:
        for part, parameters, buffers in kept:
            part._parameters.clear()
            part._parameters.update(parameters)
            part._buffers.clear()
            part._buffers.update(buffers)


def _twin(tensor: torch.Tensor, mesh: DeviceMesh, graph: Graph, made: dict[int, Any]) -> Any:
    """The described tensor for a parameter or buffer; tied ones stay tied."""
    found = made.get(id(tensor))
    if found is None:
        found = _on(tensor, mesh, graph)
        if isinstance(tensor, nn.Parameter) and found is not tensor:
            found = nn.Parameter(found.detach(), requires_grad=tensor.requires_grad)
        made[id(tensor)] = found
    return found


def _on(tensor: torch.Tensor, mesh: DeviceMesh, graph: Graph) -> Tensor:
    """A tensor on the described mesh: laid out as it was, Replicate if it was plain; a leaf."""
    if isinstance(tensor, Tensor):
        spec = tensor._operand.spec
        if spec.mesh == mesh:
            return tensor
        layout = spec.layout if spec.layout.mesh_shape == mesh.shape else None
        with LocalWork():
            plain = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
            return distribute(plain, mesh, layout, graph, tensor.requires_grad)
    with LocalWork():
        return distribute(tensor, mesh, None, graph, tensor.requires_grad)


# -- what follows the forward -------------------------------------------------------------------------------


def run_backward(output: Any) -> None:
    """The backward from an output: from its `loss` if it has one, else from all it gives.

    Raises:
        UnsupportedError: nothing of it requires grad.
    """
    loss = getattr(output, "loss", None)
    tensors = [loss] if isinstance(loss, torch.Tensor) else tree_leaves(output)
    roots = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    if not roots:
        raise UnsupportedError("price(backward=True): the output has nothing that requires grad")
    torch.autograd.backward(roots, [None if t.numel() == 1 else torch.empty_like(t) for t in roots])


def run_optimizer(optimizer: Any, module: nn.Module | None) -> torch.optim.Optimizer:
    """The optimizer of a module's parameters, by name or as a function makes it.

    Raises:
        UnsupportedError: no module, or no optimizer of that name.
    """
    if module is None:
        raise UnsupportedError("price(optimizer=...) is for a module; a function calls its optimizer itself")
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise UnsupportedError(
                f"no optimizer {optimizer!r}; there are {', '.join(OPTIMIZERS)}, or a function"
            )
        optimizer = OPTIMIZERS[optimizer]
    return optimizer([p for p in module.parameters() if p.requires_grad])
