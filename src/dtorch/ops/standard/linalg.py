"""Factorisations and solvers of matrices in batches: cholesky, inverse, solve, det, svd, qr, eigh and kin.

    each of the matrices x[..., :, :] for itself

Shapes      x [... n m] -> factors [... n m], values [... n], one number each [...]
FLOPs       of the order n^3 for each matrix, by the formulas of `counts.py`; a right side takes 2 n^2 for
            each column, a triangle n^2; matrix_exp takes as many products as the norm asks for: unknown
Placements  on one mesh axis, for every leading dim d; matrices are whole

    x       y
    R       R
    S(d)    S(d)

Solvers also let their right sides be cut by columns, and be P. Where A and B differ in leading dims solve
keeps everything whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch

from dtorch.op.call import OutputMeta, meta_of
from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule
from dtorch.op.operator import Dims, Local
from dtorch.op.signature import Row
from dtorch.ops.standard import counts
from dtorch.ops.standard.batched import Batched

_M = "[... n! m!]"


def _qr(m: int, n: int, given: Mapping[str, Any]) -> int:
    r, p = counts.householder_qr(m, n), min(m, n)
    mode = given["mode"]
    return r + (0 if mode == "r" else counts.form_q(m, m if mode == "complete" else p, p))


_MATRIX: Mapping[str, Callable[..., int]] = {
    "aten._linalg_det": lambda m, n, _: counts.lu(m, n),
    "aten._linalg_slogdet": lambda m, n, _: counts.lu(m, n),
    "aten._linalg_solve_ex": lambda m, n, _: counts.lu(m, n),
    "aten.linalg_lu": lambda m, n, _: counts.lu(m, n),
    "aten.linalg_lu_factor_ex": lambda m, n, _: counts.lu(m, n),
    "aten.linalg_inv_ex": lambda _, n, __: counts.inverse(n),
    "aten.cholesky": lambda _, n, __: counts.cholesky(n),
    "aten.linalg_cholesky_ex": lambda _, n, __: counts.cholesky(n),
    "aten.linalg_ldl_factor_ex": lambda _, n, __: counts.cholesky(n),
    "aten.cholesky_inverse": lambda _, n, __: 2 * counts.cholesky(n),
    "aten.geqrf": lambda m, n, _: counts.householder_qr(m, n),
    "aten.linalg_qr": _qr,
    "aten._linalg_eigh": lambda _, n, a: counts.symmetric_eigen(n, a["compute_v"]),
    "aten.linalg_eig": lambda _, n, __: counts.eigen(n, vectors=True),
    "aten._linalg_eigvals": lambda _, n, __: counts.eigen(n, vectors=False),
    "aten._linalg_svd": lambda m, n, a: counts.svd(m, n, a["compute_uv"], a["full_matrices"]),
}
"""FLOPs for one matrix of m x n, given the arguments."""

_SOLVED: Mapping[str, int] = {
    "aten._linalg_solve_ex": 2,
    "aten.cholesky_solve": 2,
    "aten.linalg_ldl_solve": 2,
    "aten.linalg_lu_solve": 2,
    "aten.linalg_solve_triangular": 1,
}
"""FLOPs for one element of the solution and one row of the matrix: two triangles, or one."""


_BY_COLUMNS: Mapping[str, int] = {"aten._linalg_svd": 2, "aten.linalg_eig": 1}
"""Which output has neighbours in a column side by side."""


class Linalg(Batched):
    """One dims line each."""

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten._linalg_det": Dims(f"A{_M} -> det[...], lu[... n m], pivots[... n]"),
        "aten._linalg_slogdet": Dims(f"A{_M} -> sign[...], log[...], lu[... n m], pivots[... n]"),
        "aten._linalg_eigh": Dims(f"A{_M} -> w[... n], v[... n m]"),
        "aten._linalg_eigvals": Dims(f"self{_M} -> w[... n]"),
        "aten._linalg_svd": Dims(f"A{_M} -> u[... n p], s[... q], v[... r m]"),
        "aten.cholesky": Dims(f"self{_M} -> y[... n m]"),
        "aten.cholesky_inverse": Dims(f"self{_M} -> y[... n m]"),
        "aten.geqrf": Dims(f"self{_M} -> a[... n m], tau[... p]"),
        "aten.linalg_cholesky_ex": Dims(f"self{_M} -> l[... n m], info[...]"),
        "aten.linalg_eig": Dims(f"self{_M} -> w[... n], v[... n m]"),
        "aten.linalg_inv_ex": Dims(f"A{_M} -> y[... n m], info[...]"),
        "aten.linalg_ldl_factor_ex": Dims(f"self{_M} -> ld[... n m], pivots[... n], info[...]"),
        "aten.linalg_lu": Dims(f"A{_M} -> p[... n p], l[... n q], u[... q m]"),
        "aten.linalg_lu_factor_ex": Dims(f"A{_M} -> lu[... n m], pivots[... p], info[...]"),
        "aten.linalg_matrix_exp": Dims(f"self{_M} -> y[... n m]"),
        "aten.linalg_qr": Dims(f"A{_M} -> q[... n p], r[... q m]"),
        "aten.lu_unpack": Dims(f"LU_data{_M}, LU_pivots[... p!] -> p[... n n], l[... n p], u[... p m]"),
    }

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's; kernels for the CPU lay some matrices out by columns, unlike meta kernels."""
        found = super().infer_output_meta_info()
        number = _BY_COLUMNS.get(self.name) if self.mesh.device_type == "cpu" else None
        meta = None if number is None else found[number]
        if number is not None and meta is not None and len(meta.shape) > 1:
            order = torch.empty_permuted(
                meta.shape,
                (*range(len(meta.shape) - 2), len(meta.shape) - 1, len(meta.shape) - 2),
                dtype=meta.dtype,
                device="meta",
            )
            found[number] = meta_of(order)
        return found

    def get_operator_cost(self) -> OperatorCost:
        """FLOPs; unknown where values decide how many steps are made."""
        if self.name == "aten.linalg_matrix_exp":
            return OperatorCost.unknown()
        return super().get_operator_cost()

    def flops(self) -> int | None:
        """The count of one matrix for each of the batch; of right sides by the size of what is solved."""
        shape = self.shapes[self.slot(self._matrix) or 0] or ()
        count = _MATRIX.get(self.name)
        each = 0 if count is None else count(*shape[-2:], self.arguments)
        solved = _SOLVED.get(self.name, 0)
        if count is None and not solved:
            return None
        y = self.outputs[0]
        right = solved * shape[-1] * prod(y.shape) if y is not None else 0
        return self.real_operations() * (prod(shape[:-2]) * each + right)

    @property
    def _matrix(self) -> str:
        """The argument that holds the matrices."""
        return next((name for name in ("LU", "LD", "input2", "A") if self.slot(name) is not None), "self")


class Reflected(Linalg):
    """By Householder reflectors: Q itself, or Q times a matrix."""

    type = "Linalg"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.linalg_householder_product": Dims(f"input{_M}, tau[... k!] -> y[... n m]"),
        "aten.ormqr": Dims(f"self{_M}, input2[... k!], input3[... p! q!] -> y[... p q]", ("input3",)),
    }

    def flops(self) -> int:
        """By the sizes of the result and the number of reflectors."""
        y = self.outputs[0]
        assert y is not None
        tau = self.shapes[1] or ()
        m, n = y.shape[-2:]
        if self.name == "aten.ormqr":
            each = counts.apply_q(*((m, n) if self.arguments["left"] else (n, m)), tau[-1])
        else:
            each = counts.form_q(m, n, tau[-1])
        return self.real_operations() * (prod(y.shape[:-2]) * each)


class Solve(Linalg):
    """Factors of A come out beside the solution."""

    type = "Linalg"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten._linalg_solve_ex": Dims(
            f"A{_M}, B[... p! q!] -> y[... p q], lu[... n m], pivots[... n], info[...]"
        ),
    }

    def rule(self) -> Rule | None:
        """A right side that is a vector for each matrix, and one that is broadcast, keep all whole."""
        matrix, right = self.shapes[0] or (), self.shapes[1] or ()
        return super().rule() if matrix[:-2] == right[:-2] and len(matrix) == len(right) else None

    def pending_rows(self) -> Sequence[Row]:
        """The solution is linear in B and made column by column, factors do not know it."""
        found = [self.pending("B", outputs="PRRR")]
        if self.cached_rule is not None:
            columns = len(self.shapes[1] or ()) - (1 if self.arguments["left"] else 2)
            found.append(Row(("R", columns), (columns, "R", "R", "R")))
        return found

    def is_torch_call(self, local: Local) -> bool:
        """Unless a shard has no matrices; one without right sides has factors all the same."""
        matrix = self.inputs[0]
        return matrix is None or bool(matrix.layout.local_numel(local.coord)) or 0 in matrix.shape


class SolveFactored(Linalg):
    """By factors or a triangle: right sides are solved for one by one."""

    left_out = (("aten.linalg_solve_triangular", "unitriangular=True): P, ", "of one element, unread"),)

    type = "Linalg"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.linalg_solve_triangular": Dims(f"self{_M}, B[... n! k] -> y[... n k]", ("B",)),
        "aten.linalg_lu_solve": Dims("LU[... n! m!], pivots[... n!], B[... n! k] -> y[... n k]", ("B",)),
        "aten.linalg_ldl_solve": Dims("LD[... n! m!], pivots[... n!], B[... n! k] -> y[... n k]", ("B",)),
        "aten.cholesky_solve": Dims("self[... n! k], input2[... n! m!] -> y[... n k]", ("self",)),
    }

    def rule(self) -> Rule | None:
        """From the right, rows of B take the part of columns."""
        if self.arguments.get("left", True):
            return super().rule()
        dims = self.rules[self.name]
        return self.rule_from(
            Dims(dims.line.replace("B[... n! k] -> y[... n k]", "B[... k n!] -> y[... k n]"), dims.linear)
        )
