"""Every error dtorch raises by itself. Each is also the built-in error that torch would raise there."""

from __future__ import annotations


class DtorchError(Exception):
    """Base of all errors that dtorch raises on purpose."""


class PlacementError(DtorchError, ValueError):
    """A placement or a layout that is not legal for the tensor, mesh or operator it is asked of."""


class MeshMismatchError(DtorchError, ValueError):
    """Distributed operands of one operator that live on different meshes."""


class ShapeError(DtorchError, ValueError):
    """Sizes that do not fit each other."""


class MeshError(DtorchError, ValueError):
    """A device mesh that cannot be: wrong ids, shape, names or device type."""


class AxisError(PlacementError, KeyError):
    """A mesh axis that is asked for by a name or an index the mesh does not have."""

    # KeyError prints the repr of its text; the text is a sentence here.
    __str__ = Exception.__str__


class OptionError(DtorchError, ValueError):
    """An environment variable or an option with a value that means nothing."""


class DeviceError(DtorchError, RuntimeError):
    """A device that this machine lacks, or one device asked of a mesh that has several."""


class UnsupportedError(DtorchError, RuntimeError):
    """Something torch has and dtorch refuses; the text says why and what to do instead."""


class OperatorError(DtorchError, RuntimeError):
    """An operator that is registered, built or priced wrongly."""


class ModelError(DtorchError, ValueError):
    """A model of cost was given sizes, times or ratios that cannot be, or that do not fit it."""


class SerializationError(DtorchError, ValueError):
    """A file of operators, graphs or plans that cannot be written, or is no such file, damaged or newer."""


class CaptureError(DtorchError, RuntimeError):
    """A function that cannot be captured, or a replay that would not be right; the text says why."""
