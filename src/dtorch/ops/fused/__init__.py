"""Operators of dtorch's own that are one compiled kernel on local tensors: one file each."""
