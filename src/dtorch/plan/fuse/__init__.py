"""Fusing: which calls of a sequence become one, at which price, and the operator that stands for them."""
