"""Laying a module out over a mesh: every parameter gets placements, the module itself stays as it is.

    parallelize(model, mesh, {"*.q_proj.weight": {"tp": Shard(0)}, "*.o_proj.weight": {"tp": Shard(1)}})
    parallelize(model, mesh, "auto")     # the tensor-parallel plan that a transformers model carries

Tied parameters stay tied, parameters stay `nn.Parameter`. `state_dict()` gathers to full plain tensors;
`load_state_dict()` takes full plain tensors (or distributed ones) and shards them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from dtorch.errors import AxisError, PlacementError, UnsupportedError
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.placement import Replicate, Shard
from dtorch.tensor import Tensor, distribute, layout_of

Plan = Mapping[str, Any]
"""Parameter-name pattern -> {axis: placement}, a list of placements, or a Layout."""


def parallelize(
    module: nn.Module, mesh: DeviceMesh, plan: Plan | str = "auto", *, axis: str | int = "tp"
) -> nn.Module:
    """Replace a module's parameters and buffers by distributed ones, in place.

    Args:
        module: any torch module; it is changed and returned.
        mesh: where it will live.
        plan: parameter-name patterns (fnmatch; the first match wins) to placements by axis name; axes and
            parameters that are not named are Replicate. A tied parameter is named by any of its names.
            "auto" reads the model's own `tp_plan`.
        axis: the axis that "auto" shards over.

    Raises:
        PlacementError: a pattern matches no parameter, or a placement does not fit one.
        AxisError: the mesh has no such axis.
        UnsupportedError: "auto" for a model without a plan, or with an entry that is not understood.
    """
    mesh.check_available()
    if isinstance(plan, str):
        if plan != "auto":
            raise UnsupportedError(f'a plan is "auto" or a mapping of parameter-name patterns, not {plan!r}')
        plan = auto_plan(module, mesh, axis)
    names = _names(module)
    patterns = _Patterns(plan)
    patterns.check([name for tied in names.values() for name in tied])
    graph = Graph.default_graph()
    made: dict[int, nn.Parameter] = {}
    for name, owner, key, parameter in _parameters(module):
        if id(parameter) not in made:
            placements = patterns.placements(names[id(parameter)], mesh)
            made[id(parameter)] = _distributed(name, parameter, mesh, placements, graph)
        owner._parameters[key] = made[id(parameter)]
    for owner in module.modules():
        for key, buffer in owner._buffers.items():
            if isinstance(buffer, Tensor) and buffer.device_mesh != mesh:
                owner._buffers[key] = buffer.redistribute(mesh, [Replicate()] * mesh.ndim)
            elif buffer is not None and not isinstance(buffer, Tensor):
                owner._buffers[key] = distribute(buffer, mesh, None, graph)
        _watch_state(owner)
    return module


distribute_module = parallelize


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    for prefix, owner in module.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None:
                yield f"{prefix}.{key}" if prefix else key, owner, key, parameter


def _names(module: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its id; a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


class _Patterns:
    """The patterns of a plan; those that are plain names, hundreds in a model's own plan, are looked up."""

    def __init__(self, plan: Plan) -> None:
        self.entries = list(plan.items())
        self.number = {pattern: number for number, pattern in enumerate(plan)}
        self.wild = [
            (number, pattern) for pattern, number in self.number.items() if any(c in pattern for c in "*?[")
        ]

    def matching(self, names: list[str]) -> set[int]:
        """Numbers of the entries whose patterns match one of the names."""
        found = {number for number, pattern in self.wild if any(fnmatchcase(n, pattern) for n in names)}
        return found.union(self.number[name] for name in names if name in self.number)

    def check(self, names: list[str]) -> None:
        """Refuse patterns that match nothing."""
        matched = self.matching(names)
        unmatched = [pattern for number, (pattern, _) in enumerate(self.entries) if number not in matched]
        if unmatched:
            raise PlacementError(
                f"no parameter matches {', '.join(map(repr, unmatched))}; there are {', '.join(names)}"
            )

    def placements(self, names: list[str], mesh: DeviceMesh) -> Any:
        """What the plan says of a parameter: the entry of the first pattern that matches one of its names."""
        matched = self.matching(names)
        if not matched:
            return None
        entry = self.entries[min(matched)][1]
        if not isinstance(entry, Mapping):
            return entry
        placements: list[Any] = [Replicate()] * mesh.ndim
        for axis, placement in entry.items():
            placements[mesh.axis(axis)] = placement
        return placements


def _distributed(
    name: str, parameter: nn.Parameter, mesh: DeviceMesh, placements: Any, graph: Graph
) -> nn.Parameter:
    try:
        layout_of(placements, mesh, parameter.shape)
    except PlacementError as error:
        raise PlacementError(f"parameter {name}: {error}") from error
    value = parameter.detach()
    if isinstance(value, Tensor):
        value = value.redistribute(mesh, placements)
    else:
        value = distribute(value, mesh, placements, graph)
    return nn.Parameter(value, requires_grad=parameter.requires_grad)


# -- the plan a transformers model carries --------------------------------------------------------------


def auto_plan(module: nn.Module, mesh: DeviceMesh, axis: str | int = "tp") -> dict[str, Any]:
    """Placements of every parameter that the model's own tensor-parallel plan names.

    `colwise_gather_output` leaves the output sharded: later operators gather it only if they must.

    Raises:
        UnsupportedError: the model carries no plan, or an entry of it is not understood.
        AxisError: the mesh has no such axis.
    """
    styles = getattr(module, "_tp_plan", None) or getattr(module, "tp_plan", None)
    if not styles:
        raise UnsupportedError(
            f"{type(module).__name__} carries no tensor-parallel plan; give parallelize() a plan of its own, "
            'such as {"*.q_proj.weight": {"tp": Shard(0)}, "*.o_proj.weight": {"tp": Shard(1)}}'
        )
    if isinstance(axis, str) and not mesh.has_dim_name(axis):
        raise AxisError(f'plan "auto" shards over axis {axis!r}, which {mesh} lacks; name one with axis=')
    place = mesh.axis(axis)
    plan: dict[str, Any] = {}
    for name, owner, key, parameter in _parameters(module):
        style = _style_of(name, styles)
        if style is not None:
            plan[name] = _by_style(style, name, owner, key, parameter, mesh, place)
    return plan


def _style_of(name: str, styles: Mapping[str, str]) -> str | None:
    """The plan's entry for a parameter: it names modules, or parameters themselves."""
    module_name = name.rpartition(".")[0]
    for pattern, style in styles.items():
        if fnmatchcase(module_name, pattern) or fnmatchcase(name, pattern):
            return style
    return None


def _by_style(
    style: str,
    name: str,
    owner: nn.Module,
    key: str,
    parameter: nn.Parameter,
    mesh: DeviceMesh,
    place: int,
) -> Any:
    placements: list[Any] = [Replicate()] * mesh.ndim
    transposed = type(owner).__name__ == "Conv1D"  # transformers' Conv1D holds [in, out], nn.Linear [out, in]
    last, other = parameter.ndim - 1, max(parameter.ndim - 2, 0)
    out_dim, in_dim = (last, other) if transposed else (other, last)
    if style in ("replicate", "replicated_with_grad_allreduce"):
        return placements
    if style in ("colwise", "colwise_gather_output", "embedding_rowwise"):
        placements[place] = Shard(out_dim)
    elif style in ("rowwise", "rowwise_split_input", "packed_rowwise", "embedding_colwise"):
        if parameter.ndim > 1:
            placements[place] = Shard(in_dim)
    elif style == "packed_colwise":
        return _packed(parameter, out_dim, mesh, place)
    else:
        raise UnsupportedError(f"{name}: the model's plan says {style!r}, which dtorch does not know")
    return placements


def _packed(parameter: nn.Parameter, dim: int, mesh: DeviceMesh, place: int, pieces: int = 2) -> Layout:
    """Two matrices stacked in one (gate and up): each is cut, not the stack."""
    size = parameter.shape[dim]
    if size % pieces:
        raise PlacementError(f"a packed dim of {size} does not hold {pieces} equal pieces")
    whole = Layout.replicate(mesh.shape, parameter.shape)
    return whole.with_dim(dim, ((pieces, ()), (size // pieces, (place,))))


# -- state dicts ----------------------------------------------------------------------------------------


def _watch_state(owner: nn.Module) -> None:
    if not owner._parameters and not owner._buffers:
        return
    if getattr(owner, "_dtorch_state", False):
        return
    owner._dtorch_state = True  # type: ignore[assignment]
    owner.register_state_dict_post_hook(_gather)
    owner.register_load_state_dict_pre_hook(_shard)


def _gather(owner: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for key in (*owner._parameters, *owner._buffers):
        value = state.get(prefix + key)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            state[prefix + key] = value.to_torch()


def _shard(owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Bring full values to the layouts of the module's own, so that `assign=True` keeps it distributed."""
    for key in (*owner._parameters, *owner._buffers):
        mine = owner._parameters.get(key, owner._buffers.get(key))
        value = state.get(prefix + key)
        if not isinstance(mine, Tensor) or not isinstance(value, torch.Tensor) or value.shape != mine.shape:
            continue
        spec = mine._operand.spec
        if isinstance(value, Tensor):
            state[prefix + key] = value.redistribute(spec.mesh, spec.layout)
        else:
            state[prefix + key] = distribute(value.detach(), spec.mesh, spec.layout, mine._graph)
