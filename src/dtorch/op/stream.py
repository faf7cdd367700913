"""Names of streams: which device, and whether it computes or communicates."""

from __future__ import annotations

from typing import Literal, NamedTuple


class StreamKey(NamedTuple):
    """A stream runs kernels in order on one device."""

    device_type: str
    device_id: int
    kind: Literal["compute", "communicate"]
