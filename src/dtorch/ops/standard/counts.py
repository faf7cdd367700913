"""Operation counts of dense linear algebra, for one matrix: the usual ones, by their leading terms.

Sources: [G] Golub and Van Loan, Matrix Computations, 4th edition, chapters 3 to 8. [L] LAPACK Working Note 41
(Blackford and Dongarra, 1999), appendix C, by the names of the routines. A multiply-add is 2. Terms of lower
order are left out, and a fraction of an operation that is left over. Complex matrices take 4 times as many.
"""

from __future__ import annotations

from math import log2


def lu(m: int, n: int) -> int:
    """Gaussian elimination with row exchanges of an m x n matrix: q p^2 - p^3 / 3, p the smaller size.

    [L] xGETRF; 2/3 n^3 where square ([G] 3.2).
    """
    p, q = min(m, n), max(m, n)
    return (3 * q * p * p - p**3) // 3


def cholesky(n: int) -> int:
    """n^3 / 3: [G] 4.2, [L] xPOTRF; the symmetric indefinite form (LDL, [L] xSYTRF) the same."""
    return n**3 // 3


def householder_qr(m: int, n: int) -> int:
    """R and the reflectors of an m x n matrix: 2 q p^2 - 2/3 p^3, p < q ([G] 5.2, [L] xGEQRF)."""
    p, q = min(m, n), max(m, n)
    return (6 * q * p * p - 2 * p**3) // 3


def form_q(m: int, n: int, k: int) -> int:
    """n columns of Q from k reflectors of length m: 4 m n k - 2 (m + n) k^2 + 4/3 k^3 ([L] xORGQR)."""
    return (12 * m * n * k - 6 * (m + n) * k * k + 4 * k**3) // 3


def apply_q(n: int, others: int, k: int) -> int:
    """k reflectors of length n on `others` vectors: 4 n others k - 2 others k^2 ([L] xORMQR)."""
    return 4 * n * others * k - 2 * others * k * k


def inverse(n: int) -> int:
    """By its LU factors: 2 n^3 ([L] xGETRF and xGETRI)."""
    return 2 * n**3


def symmetric_eigen(n: int, vectors: bool) -> int:
    """Symmetric QR: 4/3 n^3 for values alone, 9 n^3 with vectors ([G] 8.3)."""
    return 9 * n**3 if vectors else 4 * n**3 // 3


def eigen(n: int, vectors: bool) -> int:
    """Unsymmetric QR: 10 n^3 for values alone, 25 n^3 with vectors ([G] 7.5)."""
    return 25 * n**3 if vectors else 10 * n**3


def svd(m: int, n: int, vectors: bool, full: bool = False) -> int:
    """Golub-Reinsch, q the larger size and p the smaller ([G] 8.6, table of the SVD's work).

    Values alone 4 q p^2 - 4/3 p^3; with thin vectors 14 q p^2 + 8 p^3; with all of them
    4 q^2 p + 8 q p^2 + 9 p^3.
    """
    p, q = min(m, n), max(m, n)
    if not vectors:
        return (12 * q * p * p - 4 * p**3) // 3
    return 4 * q * q * p + 8 * q * p * p + 9 * p**3 if full else 14 * q * p * p + 8 * p**3


def fft(n: int, real: bool) -> int:
    """One transform of n points in all: 5 n log2 n real operations, half where one side is real.

    The radix-2 count, by which FFTW's benchFFT rates transforms of any size (fftw.org/speed); rounded.
    """
    return round((2.5 if real else 5.0) * n * log2(n)) if n > 1 else 0
