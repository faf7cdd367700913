"""Distributed tensors on PyTorch, in one process."""
