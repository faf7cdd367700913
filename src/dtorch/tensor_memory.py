"""What torch tensors tell of their memory, and hand out of it; a distributed tensor's is not one piece.

Values leave by `to_torch`, `to_local`, `numpy`, `item` and `__dlpack__`, all of them copies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dtorch.errors import UnsupportedError
from dtorch.tensor_state import read

if TYPE_CHECKING:
    from dtorch.tensor import Tensor


def as_bool(self: Tensor) -> bool:
    """The value of a tensor of one element, as torch converts it."""
    return bool(read(self))


def as_int(self: Tensor) -> int:
    """The value of a tensor of one element, as torch converts it."""
    return int(read(self))


def as_float(self: Tensor) -> float:
    """The value of a tensor of one element, as torch converts it."""
    return float(read(self))


def as_complex(self: Tensor) -> complex:
    """The value of a tensor of one element, as torch converts it."""
    return complex(read(self))


def as_index(self: Tensor) -> int:
    """The value of an integer tensor of one element, as torch converts it."""
    return read(self).__index__()


def share_memory_(self: Tensor) -> Tensor:
    """Move the parts to memory that other processes can map."""
    for part in self._graph.parts(self._operand):
        part.share_memory_()
    return self


def is_shared(self: Tensor) -> bool:
    """Whether other processes can map all parts."""
    return all(part.is_shared() for part in self._graph.parts(self._operand))


def data_ptr(self: Tensor) -> int:
    """Refused: there is no one memory to point to.

    Raises:
        UnsupportedError: always; but torch's recurrent modules, asking whether weights share memory, get 0.
    """
    if sys._getframe(1).f_globals.get("__name__") == "torch.nn.modules.rnn":
        return 0
    _refuse("data_ptr()")


def storage(self: Tensor) -> Any:
    """Refused: there is no one storage.

    Raises:
        UnsupportedError: always.
    """
    _refuse("storage()")


def untyped_storage(self: Tensor) -> Any:
    """Refused: there is no one storage.

    Raises:
        UnsupportedError: always.
    """
    _refuse("untyped_storage()")


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(
        f"{name}: a distributed tensor has no memory of its own, each device holds a part; "
        "x.to_torch() is the full value and x.to_local(position) one part, both plain tensors and copies. "
        "To save it with a library of plain tensors (safetensors), give it x.to_torch()"
    )


def new_tensor(
    self: Tensor,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """As torch: a leaf of these values with this tensor's dtype, Replicate on its mesh; elsewhere, plain."""
    from dtorch.creation import from_values

    dtype = self.dtype if dtype is None else dtype
    mesh = self.device_mesh
    if isinstance(data, type(self)):
        return data.detach().to(dtype, copy=True).requires_grad_(requires_grad)
    if device is not None and torch.device(device).type != mesh.device_type:
        return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
    return from_values(data, dtype=dtype, device_mesh=mesh, graph=self._graph, requires_grad=requires_grad)


def collate(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """How a DataLoader makes a batch of distributed samples, in a worker too."""
    return torch.stack(list(batch))
