"""Capturing a whole call, a training step for one, and replaying it without running its Python.

`Capture` is what `dtorch.capture` returns. A call is recorded by the graph as ever (`recording.py`); what
plain tensors and floats do beside it is taped (`tape.py`, `traced.py`); what the function reaches is watched
(`roots.py`); all that a replay needs is a `Program`.
"""

from dtorch.replay.capture import Capture, CaptureStats, capture

__all__ = ["Capture", "CaptureStats", "capture"]
