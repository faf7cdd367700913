"""Rewrites of a recorded sequence, made once when its plan is written; `listed.py` has the list."""
