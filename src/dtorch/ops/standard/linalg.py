"""Factorisations and solvers of matrices in batches: cholesky, inverse, solve, det, svd, qr, eigh and kin.

    each of the matrices x[..., :, :] for itself

Shapes      x [... n m] -> factors [... n m], values [... n], one number each [...]
FLOPs       of the order n^3 for each matrix, by a factor that depends on the matrix: unknown
Placements  on one mesh axis, for every leading dim d; matrices are whole

    x       y
    R       R
    S(d)    S(d)

Solvers that are given factors or a triangle also let their right sides be cut by columns, and be P. Where A
and B differ in leading dims solve keeps everything whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule
from dtorch.op.operator import Dims
from dtorch.ops.standard.batched import Batched

_M = "[... n! m!]"


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
        "aten.linalg_householder_product": Dims(f"input{_M}, tau[... p!] -> y[... n m]"),
        "aten.linalg_inv_ex": Dims(f"A{_M} -> y[... n m], info[...]"),
        "aten.linalg_ldl_factor_ex": Dims(f"self{_M} -> ld[... n m], pivots[... n], info[...]"),
        "aten.linalg_lu": Dims(f"A{_M} -> p[... n p], l[... n q], u[... q m]"),
        "aten.linalg_lu_factor_ex": Dims(f"A{_M} -> lu[... n m], pivots[... p], info[...]"),
        "aten.linalg_matrix_exp": Dims(f"self{_M} -> y[... n m]"),
        "aten.linalg_qr": Dims(f"A{_M} -> q[... n p], r[... q m]"),
        "aten.lu_unpack": Dims(f"LU_data{_M}, LU_pivots[... p!] -> p[... n n], l[... n p], u[... p m]"),
        "aten.ormqr": Dims(f"self{_M}, input2[... k!], input3[... p! q!] -> y[... p q]", ("input3",)),
    }

    def get_operator_cost(self) -> OperatorCost:
        """The traffic; nobody has said how many steps the kernels take."""
        return OperatorCost.unknown(traffic_bytes=self.traffic_bytes())


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


class SolveFactored(Linalg):
    """By factors or a triangle: right sides are solved for one by one."""

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
