"""Prices against a device: what devices there are, dry runs, rooflines, memory."""
