"""Operators whose kernels ask torch's grad mode, by the argument that stands for it here."""

from __future__ import annotations

ASKS_GRAD_MODE = {"aten.mkldnn_rnn_layer": "train"}
"""Whether grad mode is on decides how they round and what they keep for the backward; a plan runs later."""
