"""Operators of torch, one file a family."""
