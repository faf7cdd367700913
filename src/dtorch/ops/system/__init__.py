"""Operators that serve the engine itself."""
