"""Matrices in batches, transforms, contractions: leading dims may be cut."""

import pytest
import torch
import torch.nn.functional as F

from dtorch.graph.graph import Graph
from dtorch.testing import Call, assert_rules
from tests.dist import assert_like_torch, communications, flat, over, place


def grad(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


def definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1]) * 3


A, RIGHT, VECTOR = grad(5, 3, 3), grad(5, 3, 2), grad(5, 3)
LINALG = {
    "cholesky": (lambda a: torch.linalg.cholesky(definite(a)), [A]),
    "inverse": (lambda a: torch.linalg.inv(definite(a)), [A]),
    "solve": (lambda a, b: torch.linalg.solve(definite(a), b), [A, RIGHT]),
    "solve a vector each": (lambda a, b: torch.linalg.solve(definite(a), b), [A, VECTOR]),
    "det": (lambda a: torch.linalg.det(a), [A]),
    "slogdet": (lambda a: torch.linalg.slogdet(definite(a)).logabsdet, [A]),
    "svdvals": (lambda a: torch.linalg.svdvals(a), [RIGHT]),
    "svd": (lambda a: torch.linalg.svd(a, full_matrices=False).S, [RIGHT]),
    "qr": (lambda a: torch.linalg.qr(a).R.abs(), [RIGHT]),
    "eigvalsh": (lambda a: torch.linalg.eigvalsh(definite(a)), [A]),
    "lu": (lambda a: torch.linalg.lu(definite(a)), [A]),
    "triangle": (
        lambda a, b: torch.linalg.solve_triangular(definite(a).triu(), b, upper=True),
        [A, RIGHT],
    ),
    "cholesky_solve": (
        lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky_ex(definite(a)).L),
        [A, RIGHT],
    ),
    "matrix_exp": (torch.linalg.matrix_exp, [A]),
    "cross": (lambda a, b: torch.linalg.cross(a, b), [VECTOR, grad(5, 3)]),
    "pinv": (torch.linalg.pinv, [RIGHT]),
}
OTHERS = {
    "fft": (lambda x: torch.fft.fft(x).abs(), [VECTOR]),
    "rfft and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=3), [VECTOR]),
    "fft2": (lambda x: torch.fft.fft2(x).real, [A]),
    "stft": (lambda x: torch.stft(x, 4, window=torch.ones(4), return_complex=True).abs(), [grad(3, 16)]),
    "outer": (torch.outer, [grad(5), grad(3)]),
    "addr": (lambda a, x, y: torch.addr(a, x, y, beta=2, alpha=3), [grad(5, 3), grad(5), grad(3)]),
    "addbmm": (lambda a, x, y: torch.addbmm(a, x, y, beta=0.5), [grad(3, 2), A, RIGHT]),
    "bilinear": (F.bilinear, [grad(5, 3), grad(5, 4), grad(2, 3, 4), grad(2)]),
    "einsum": (lambda x, w: torch.einsum("bld,dnh->blnh", x, w), [grad(2, 3, 5), grad(5, 4, 3)]),
    "einsum of three": (
        lambda x, y, z: torch.einsum("bi,bj,ijk->bk", x, y, z),
        [grad(5, 3), grad(5, 2), grad(3, 2, 4)],
    ),
    "einsum to a number": (lambda x, y: torch.einsum("ij,ij->", x, y), [VECTOR, grad(5, 3)]),
    "einsum diagonal": (lambda x: torch.einsum("bii->bi", x), [A]),
    "einsum batch": (
        lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y),
        [grad(2, 3, 4, 2), grad(2, 3, 5, 2)],
    ),
    "elu": (lambda x: F.elu(x) + F.hardswish(x) + F.mish(x) + F.logsigmoid(x), [VECTOR]),
    "prelu": (F.prelu, [grad(4, 3, 2), grad(3)]),
    "glu": (lambda x: F.glu(x, 1), [grad(5, 6)]),
}
CASES = LINALG | OTHERS


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 2))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


CHECKED = ("cholesky", "inverse", "solve", "solve a vector each", "pinv")


@pytest.mark.parametrize("name", [n for n in LINALG if n not in CHECKED])
def test_a_cut_batch_sends_nothing(name):
    fn, tensors = LINALG[name]
    assert communications(fn, tensors, (4,), [("S0",)] * len(tensors)) == []


@pytest.mark.parametrize(("left", "way", "sizes"), [(True, "S1", (3, 7)), (False, "S0", (7, 3))])
def test_right_sides_of_solve_may_be_cut_by_columns(left, way, sizes):
    tensors, places = [definite(torch.randn(3, 3)), torch.randn(sizes)], [("R",), (way,)]

    def fn(a, b):
        return torch.ops.aten._linalg_solve_ex.default(a, b, left=left)

    assert communications(fn, tensors, (4,), places) == []
    assert_like_torch(fn, tensors, (4,), places)
    # 2 + 2 + 2 + 1 + 0 + 0 columns: a device that has none has factors all the same.
    assert_rules(Call.of(torch.ops.aten._linalg_solve_ex.default, *tensors, left=left), meshes=((6,),))


@pytest.mark.parametrize("name", ["fft", "rfft and back", "fft2", "bilinear", "elu", "glu"])
def test_others_too(name):
    fn, tensors = OTHERS[name]
    places = [("S0",), ("S0",), ("R",), ("R",)][: len(tensors)]
    assert communications(fn, tensors, (4,), places) == []


def test_errors_of_a_member_are_torchs():
    x = torch.eye(3).repeat(4, 1, 1)
    x[2] = -x[2]
    with pytest.raises(torch.linalg.LinAlgError, match="Batch element 2"):
        torch.linalg.cholesky(place(x, (4,), ("S0",))).to_torch()


def flops_of(fn, tensors, places):
    with Graph.default_graph().record() as graph:
        fn(*[place(t, (2,), p) for t, p in zip(tensors, places, strict=True)])
    return sum(op.get_operator_cost().flops or 0 for op in graph.operators)


@pytest.mark.parametrize("placed", ["R", "S0"])
def test_flops(placed):
    with torch.inference_mode():
        assert flops_of(torch.outer, [torch.randn(6), torch.randn(4)], [(placed,), ("R",)]) == 24
    x, y, w = torch.randn(6, 3), torch.randn(6, 4), torch.randn(2, 3, 4)
    wanted = 2 * 6 * 2 * 3 * 4 + 2 * 6 * 2 * 4
    assert flops_of(F.bilinear, [x, y, w], [(placed,), (placed,), ("R",)]) == wanted
    a, b, c = torch.randn(4, 2), torch.randn(6, 4, 3), torch.randn(6, 3, 2)
    assert flops_of(torch.addbmm, [a, b, c], [("R",), (placed,), (placed,)]) == 2 * 6 * 4 * 3 * 2
    q, k = torch.randn(6, 2, 4, 3), torch.randn(6, 2, 5, 3)

    def scores(x, y):
        return torch.einsum("bhqd,bhkd->bhqk", x, y)

    assert flops_of(scores, [q, k], [(placed,), (placed,)]) == 2 * 6 * 2 * 4 * 5 * 3


def test_price_of_a_matrix_exponential_is_unknown():
    with Graph.default_graph().record() as graph:
        torch.linalg.matrix_exp(place(A, (2,), ("S0",)))
    (cost,) = [op.get_operator_cost() for op in graph.operators if op.type == "Linalg"]
    assert not cost.known


@pytest.mark.parametrize("name", CASES)
def test_one_device_is_bit_equal(name):
    fn, tensors = CASES[name]
    found = flat(fn(*[place(t, (1,), ("R",)) for t in tensors]))
    for ours, plain in zip(found, flat(fn(*tensors)), strict=True):
        assert torch.equal(ours.to_torch(), plain)


@pytest.mark.parametrize("places", ["S0", "S1", "S2", "R"])
def test_integer_products_take_whole_factors(places: str) -> None:
    """So torch has it; where a shard has nothing to sum its kernel would refuse a fraction."""
    u, v, a = (torch.randint(-9, 9, shape) for shape in ((5, 3, 5), (5, 5, 2), (1,)))
    found = torch.addbmm(place(a, (4,), ("R",)), place(u, (4,), (places,)), v, beta=2.6, alpha=1.2)
    assert torch.equal(found.to_torch(), torch.addbmm(a, u, v, beta=2.6, alpha=1.2))
