"""PyTorch's own operator database (`op_db`) tried on meshes: `make coverage` writes docs/coverage.md."""
