"""What the guards of a graph put in place: torch's own factories make tensors on the guard's mesh."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dtorch import creation
from dtorch.graph.graph import Graph
from dtorch.tensor import Tensor, distribute

_NAMES = (
    "arange", "asarray", "as_tensor", "bartlett_window", "blackman_window", "empty", "empty_permuted",
    "empty_strided", "eye", "full", "hamming_window", "hann_window", "kaiser_window", "linspace", "logspace",
    "normal", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros",
)  # fmt: skip
_FACTORIES = {getattr(torch, name) for name in _NAMES} | {torch.fft.fftfreq, torch.fft.rfftfreq}
_PART_BY_PART = {
    torch.zeros: creation.zeros,
    torch.ones: creation.ones,
    torch.full: creation.full,
    torch.empty: creation.empty,
}


class FactoryMode(TorchFunctionMode):
    """Catches torch's factories while a guard is open.

    Args:
        graph: whose default mesh and default dtype count.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Make what a factory makes on the graph's mesh; everything else goes on as it is."""
        kwargs = kwargs or {}
        if func not in _FACTORIES:
            return func(*args, **kwargs)
        mesh = self.graph.default_device_mesh
        if mesh is None or _elsewhere(args, kwargs, mesh.device_type):
            with creation.default_dtype(
                None if kwargs.get("dtype") is not None else self.graph.default_dtype
            ):
                return func(*args, **kwargs)
        kwargs.pop("device", None)
        own = _PART_BY_PART.get(func)
        if own is not None:
            return own(*args, graph=self.graph, **kwargs)
        return self._whole(func, args, kwargs)

    def _whole(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Let torch make the tensor on the first device, then spread it."""
        mesh = self.graph.default_device_mesh
        assert mesh is not None
        mesh.check_available()
        requires_grad = kwargs.pop("requires_grad", False)
        if func is torch.tensor:
            return creation.from_values(*args, graph=self.graph, requires_grad=requires_grad, **kwargs)
        generator = kwargs.get("generator")
        device = mesh.first_device() if generator is None else generator.device
        with torch._C.DisableTorchFunction(), creation.default_dtype(self.graph.default_dtype):
            full = func(*args, **kwargs) if func is torch.normal else func(*args, device=device, **kwargs)
        return distribute(full, mesh, None, self.graph, requires_grad)


def _elsewhere(args: tuple, kwargs: dict, device_type: str) -> bool:
    """Whether a factory is asked for something that is not the guard's: another device, out=, no strides."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != device_type:
        return True
    if kwargs.get("out") is not None or kwargs.get("layout", torch.strided) is not torch.strided:
        return True
    first = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    return isinstance(first, Tensor)


Graph.factory_mode = FactoryMode
