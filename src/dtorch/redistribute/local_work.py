"""Local work: plain torch calls on the parts of a tensor, as if nothing surrounded them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from dtorch.inductor.listing import PRESENT

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh

_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_Keys = torch._C._ForceDispatchKeyGuard
_NoFunctions = torch._C.DisableTorchFunction  # the user's function modes, torch.device(...) among them


def _hidden() -> torch._C.DispatchKeySet:
    """The dispatch keys of what must not see local work."""
    none = _excluded() - _excluded()
    with (
        _Keys(none, none),
        torch._C._AutoDispatchBelowADInplaceOrView(),  # no history; inference tensors may be written
        torch._C._DisableFuncTorch(),  # a part must not become a transform's tensor
        torch._C._DisableAutocast(),
        torch._C._DisableTorchDispatch(),  # the user's dispatch modes
    ):
        return _excluded()


_HIDDEN = _hidden()
_SHOWN = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate).add(torch._C.DispatchKey.Negative)
"""Parts that are lazily conjugated or negated are resolved, also where a dispatch has left that behind."""


class LocalWork:
    """Context in which torch calls on plain tensors see neither autograd, autocast nor modes."""

    __slots__ = ("_entered",)

    def __enter__(self) -> None:
        self._entered: tuple[Any, ...] = ()
        if PRESENT.listing:
            return
        keys = _Keys(_included(), (_excluded() | _HIDDEN) - _SHOWN)
        keys.__enter__()
        functions = _NoFunctions()  # works from here on
        functions.__enter__()
        self._entered = functions, keys

    def __exit__(self, *error: Any) -> None:
        for guard in self._entered:
            guard.__exit__(*error)


def unseen(mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Context for making the plain tensors of a mesh's values: on described devices no dry run sees them."""
    return LocalWork() if mesh.description is not None else nullcontext()
