"""Local work: plain torch calls on the parts of a tensor, as if nothing surrounded them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dtorch.inductor.listing import PRESENT

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh

_GUARDS = (
    torch._C._AutoDispatchBelowADInplaceOrView,  # no history, and parts made in inference mode may be written
    torch._C._DisableFuncTorch,  # a part must not become a transform's tensor
    torch._C._DisableAutocast,
    torch._C._DisableTorchDispatch,  # the user's dispatch modes
    torch._C.DisableTorchFunction,  # the user's function modes, torch.device(...) among them
)


class LocalWork:
    """Context in which torch calls on plain tensors see neither autograd, autocast nor modes."""

    __slots__ = ("_entered",)

    def __enter__(self) -> None:
        self._entered: list[Any] = []
        if PRESENT.listing:
            return
        for kind in _GUARDS:
            guard = kind()  # made when its turn has come, since some work from here on
            guard.__enter__()
            self._entered.append(guard)

    def __exit__(self, *error: Any) -> None:
        for guard in reversed(self._entered):
            guard.__exit__(*error)


def unseen(mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Context for making the plain tensors of a mesh's values: on described devices no dry run sees them."""
    return LocalWork() if mesh.description is not None else nullcontext()
