"""Space cut under sliding windows: each device fetches the rows it reads and lacks, those and no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Replicate, Shard
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.ops.standard.windows import Adaptive, Window
from tests.dist import assert_like_torch, flat, place, ways
from tests.support import cases, sample


def grad(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


class Slide(NamedTuple):
    """Sizes of one dim."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def window(self) -> Window:
        return Window(self.kernel, self.stride, self.padding, self.dilation)

    @property
    def places(self) -> int:
        return (self.size + 2 * self.padding - self.window.extent) // self.stride + 1


SLIDES = [
    Slide(8, 3, 1, 1),
    Slide(7, 3),
    Slide(9, 3, 2, 1),
    Slide(5, 4, 1, 3),
    Slide(10, 2, 2),
    Slide(11, 2, 4),
    Slide(6, 5, 1, 2),
    Slide(9, 3, 1, 2, 2),
    Slide(3, 3),
    Slide(2, 3, 3, 2),
    Slide(12, 3, 5, 1, 3),
]
MESHES = [(2,), (3,), (4,)]


def chunks(size: int, devices: int) -> list[set[int]]:
    """Which of `size` every device holds, by torch.chunk."""
    held = [set(piece.tolist()) for piece in torch.arange(size).chunk(devices)]
    return held + [set()] * (devices - len(held))


def rows_read(slide: Slide, places: Iterable[int]) -> set[int]:
    """Elements that places read, one by one."""
    read = {
        place * slide.stride - slide.padding + k * slide.dilation
        for place in places
        for k in range(slide.kernel)
    }
    span = set(range(min(read), max(read) + 1)) if read else set()
    return span & set(range(slide.size))


def halo_bytes(slide: Slide, devices: int, per_row: int) -> list[int]:
    """What each device lacks of the rows that its places read."""
    held = zip(chunks(slide.size, devices), chunks(slide.places, devices), strict=True)
    return [per_row * len(rows_read(slide, places) - rows) for rows, places in held]


def recorded(fn: Callable[[], Any]) -> Any:
    with Graph.default_graph().record() as graph, dtorch.strict():
        fn()
    return graph


@pytest.mark.parametrize("slide", SLIDES, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_convolution_receives_its_halo(slide: Slide, mesh: tuple[int, ...]) -> None:
    x, w = grad(2, 3, slide.size, 5), grad(4, 3, slide.kernel, 2)
    placed = [place(x, mesh, ("S2",)), place(w, mesh, ("R",))]
    options = {"stride": (slide.stride, 1), "padding": (slide.padding, 0), "dilation": (slide.dilation, 1)}
    graph = recorded(lambda: F.conv2d(*placed, None, **options))
    (conv,) = [op for op in graph.operators if op.type == "Conv"]
    wanted = halo_bytes(slide, mesh[0], 2 * 3 * 5 * 4)
    assert conv.outputs[0].spec.placements == (Shard(2),)
    assert (conv.price().sent_bytes, conv.price().sent_bytes_max) == (sum(wanted), max(wanted))
    assert [conv.local_price((i,)).sent_bytes for i in range(mesh[0])] == wanted
    assert graph.cost().sent_bytes == sum(wanted)
    sent = [(c.kind, c.axes, c.implicit, c.bytes) for c in graph.communications()]
    assert sent == ([("halo", "0", False, sum(wanted))] if sum(wanted) else [])


@pytest.mark.parametrize("slide", SLIDES, ids=str)
@pytest.mark.parametrize("mesh", [*MESHES, (2, 2)], ids=str)
def test_every_slide_is_like_torch(slide: Slide, mesh: tuple[int, ...]) -> None:
    x, w, b = grad(2, 3, slide.size, 7), grad(4, 3, slide.kernel, 3), grad(4)
    options = {"stride": (slide.stride, 2), "padding": (slide.padding, 1), "dilation": (slide.dilation, 1)}
    places = [("S2", "S3")[: len(mesh)], *[("R",) * len(mesh)] * 2]
    assert_like_torch(lambda x, w, b: F.conv2d(x, w, b, **options), [x, w, b], mesh, places)


@pytest.mark.parametrize("slide", SLIDES, ids=str)
@pytest.mark.parametrize("mesh", [*MESHES, (2, 2)], ids=str)
def test_every_transposed_slide_is_like_torch(slide: Slide, mesh: tuple[int, ...]) -> None:
    x, w, b = grad(2, 4, slide.size, 3), grad(4, 3, slide.kernel, 2), grad(3)
    more = max(slide.stride, slide.dilation) - 1
    padding = min(slide.padding, slide.window.extent // 2)
    options = {
        "stride": (slide.stride, 2),
        "padding": (padding, 1),
        "output_padding": (more, 1),
        "dilation": (slide.dilation, 1),
    }
    places = [("S2", "S3")[: len(mesh)], *[("R",) * len(mesh)] * 2]
    assert_like_torch(lambda x, w, b: F.conv_transpose2d(x, w, b, **options), [x, w, b], mesh, places)


X = grad(2, 3, 9, 8)
CASES: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "conv of groups": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2),
        [grad(3, 4, 7, 5), grad(6, 2, 3, 3), grad(6)],
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, None, 2, 1, groups=3), [X, grad(3, 1, 3, 3)]),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), [grad(3, 4, 9), grad(5, 4, 4)]),
    "conv3d": (
        lambda x, w: F.conv3d(x, w, padding=1, stride=2),
        [grad(2, 3, 5, 6, 3), grad(4, 3, 3, 2, 2)],
    ),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), [X, grad(4, 3, 5, 3)]),
    "circular": (lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), w), [X, grad(4, 3, 3, 3)]),
    "transposed groups": (
        lambda x, w: F.conv_transpose2d(x, w, None, 2, groups=2),
        [grad(3, 4, 5, 4), grad(4, 3, 3, 3)],
    ),
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [X]),
    "max, dilated, up": (lambda x: F.max_pool2d(x, 3, 2, 1, 2, True, return_indices=True), [X]),
    "max with gaps": (lambda x: F.max_pool2d(x, 2, 4, return_indices=True), [X]),
    "max of nothing": (
        lambda x: F.max_pool2d(torch.full_like(x, -torch.inf), 3, 2, 1, return_indices=True),
        [X],
    ),
    "max of nan": (lambda x: F.max_pool2d((x - 1).sqrt(), 3, 2, 1, return_indices=True), [X.detach()]),
    "max of whole numbers": (
        lambda x: F.max_pool2d((x * 9).long(), 3, 2, 1, return_indices=True),
        [X.detach()],
    ),
    "max 3d": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), [grad(2, 3, 4, 6, 4)]),
    "max, channels last": (
        lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 3, 2, 1),
        [X],
    ),
    "avg": (lambda x: F.avg_pool2d(x, 3, 2, 1), [X]),
    "avg, up": (lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True), [X]),
    "avg without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, count_include_pad=False), [X]),
    "avg over seven": (lambda x: F.avg_pool2d(x, 2, 3, 1, divisor_override=7), [X]),
    "avg in bfloat16": (lambda x: F.avg_pool2d(x.bfloat16(), 3, 2, 1).float(), [X.detach()]),
    "avg with gaps": (lambda x: F.avg_pool2d(x, 1, 4), [X]),
    "avg with gaps and padding": (lambda x: F.avg_pool2d(x, 2, 5, 1), [grad(2, 3, 13, 11)]),
    "avg 3d": (lambda x: F.avg_pool3d(x, 2, 1), [grad(2, 3, 4, 6, 4)]),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), [X]),
    "adaptive avg": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), [X]),
    "adaptive avg of more": (lambda x: F.adaptive_avg_pool2d(x, (11, 10)), [X]),
    "adaptive 3d": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 3)), [grad(2, 3, 4, 6, 4)]),
}


def spatial_ways(name: str) -> list[Any]:
    fn, tensors = CASES[name]
    found = []
    for mesh in (*MESHES, (2, 2)):
        for way in sample(ways(tensors[0].ndim, mesh), 4, seed=len(name)):
            found.append(pytest.param(fn, tensors, mesh, way, id=f"{name}-{mesh}-{''.join(way)}"))
    return found


@pytest.mark.parametrize(
    ("fn", "tensors", "mesh", "way"), list(itertools.chain.from_iterable(map(spatial_ways, CASES)))
)
def test_like_torch(fn: Any, tensors: Any, mesh: tuple[int, ...], way: Any) -> None:
    whole = [("R",) * len(mesh)] * (len(tensors) - 1)
    assert_like_torch(fn, tensors, mesh, [way, *whole])


GAPS = [Slide(8, 1, 4), Slide(13, 2, 5, 1), Slide(11, 2, 4), Slide(14, 3, 6, 1), Slide(9, 1, 3)]


@pytest.mark.parametrize("slide", GAPS, ids=str)
@pytest.mark.parametrize("devices", [2, 3, 4, 5, 7])
def test_devices_whose_elements_lie_in_a_gap(slide: Slide, devices: int) -> None:
    x, w = grad(1, 2, slide.size), grad(2, 2, slide.kernel)
    sizes = slide.kernel, slide.stride, slide.padding
    for pool in (F.avg_pool1d, F.max_pool1d):
        assert_like_torch(lambda x, pool=pool: pool(x, *sizes), [x], (devices,), [("S2",)])
    places = [("S2",), ("R",)]
    for convolve in (F.conv1d, F.conv_transpose1d):
        fn = lambda x, w, convolve=convolve: convolve(x, w, None, *sizes[1:])  # noqa: E731
        assert_like_torch(fn, [x, w], (devices,), places)


POOLED = {
    name: case
    for name, case in CASES.items()
    if name.startswith(("max", "avg", "adaptive")) and " of " not in name
}


@pytest.mark.parametrize("name", POOLED)
def test_a_pool_stays_cut_and_converts_nothing(name: str) -> None:
    fn, (x,) = POOLED[name]
    placed = place(x.detach(), (2, 2), ("S2", "S3"))
    with Graph.default_graph().record() as graph, dtorch.strict():
        outputs = flat(fn(placed))
    assert all(list(y.placements) == [Shard(2), Shard(3)] for y in outputs)
    assert {sent.kind for sent in graph.communications()} <= {"halo"}


def test_corners_are_fetched_too() -> None:
    """3 x 3 rows of 8 x 8 on 2 x 2: each device lacks a row, a column, and the corner between."""
    x, w = place(grad(1, 1, 8, 8), (2, 2), ("S2", "S3")), place(grad(1, 1, 3, 3), (2, 2), ("R", "R"))
    graph = recorded(lambda: F.conv2d(x, w, padding=1))
    assert [(c.kind, c.axes, c.bytes) for c in graph.communications()] == [("halo", "0+1", 4 * 9 * 4)]


def test_backward_receives_halos_and_reduces_the_weight() -> None:
    """Rows 4 + 4 of 8, kernel 3: dx takes a row of dy from the neighbour, dw one of x; dw is a sum."""
    x, w = place(grad(1, 2, 8, 5), (2,), ("S2",)), place(grad(3, 2, 3, 1), (2,), ("R",))
    y = F.conv2d(x, w, padding=(1, 0))
    dy = place(torch.ones(y.shape), (2,), ("S2",))
    with Graph.default_graph().record() as graph, dtorch.strict():
        y.backward(dy)
    row_of_x, row_of_dy = 2 * 5 * 4, 3 * 5 * 4
    assert [(c.kind, c.bytes) for c in graph.communications()] == [
        ("halo", 2 * (row_of_x + row_of_dy)),
        ("all_reduce", 2 * 3 * 2 * 3 * 4),
    ]
    assert (list(x.grad.placements), list(w.grad.placements)) == ([Shard(2)], [Replicate()])


def test_a_kernel_longer_than_shards_reaches_beyond_the_neighbours() -> None:
    """Five rows on as many devices, a kernel of five: everyone reads four rows, or fewer at the ends."""
    x, w = place(grad(1, 1, 5, 1), (5,), ("S2",)), place(grad(1, 1, 5, 1), (5,), ("R",))
    graph = recorded(lambda: F.conv2d(x, w, padding=(2, 0)))
    (conv,) = graph.operators
    assert [conv.local_price((i,)).sent_bytes for i in range(5)] == [8, 12, 16, 12, 8]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_axes_on_one_dim_keep_their_order(order: tuple[int, int]) -> None:
    layout = Layout.from_placements((2, 2), (2, 3, 10, 4), [Shard(2), Shard(2)], order)
    whole = Layout.replicate((2, 2), (4, 3, 3, 2))
    assert_like_torch(
        lambda x, w: F.conv2d(x, w, stride=2), [grad(2, 3, 10, 4), grad(4, 3, 3, 2)], (2, 2), [layout, whole]
    )


def test_rows_cut_otherwise_are_brought_into_chunks() -> None:
    """Every second row on one device: no window reads that, so rows move first, visibly."""
    layout = Layout.of((2,), [((2, ()),), ((3, ()),), ((4, ()), (2, (0,))), ((4, ()),)])
    x, w = place(grad(2, 3, 8, 4), (2,), layout), place(grad(4, 3, 3, 2), (2,), ("R",))
    with Graph.default_graph().record() as graph:
        y = F.conv2d(x, w)
    torch.testing.assert_close(y.to_torch(), F.conv2d(x.to_torch(), w.to_torch()))
    assert list(y.placements) == [Shard(2)]
    assert [c.kind for c in graph.communications()][-1] == "halo"


def test_a_described_mesh_prices_the_halo() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (4,))
    with dtorch.dry_run(mesh) as run:
        x = dtorch.zeros(1, 8, 1024, 1024, device_mesh=mesh, placements=[Shard(2)])
        w = dtorch.zeros(8, 8, 3, 3, device_mesh=mesh)
        y = F.conv2d(x, w, padding=1)
    assert list(y.placements) == [Shard(2)]
    assert [(c.kind, c.bytes) for c in run.communications()] == [("halo", 6 * 8 * 1024 * 4)]


DRAWN = [
    Window(kernel, stride, padding, dilation)
    for kernel, stride, padding, dilation in itertools.product((1, 2, 3, 5), (1, 2, 4), (0, 1, 3), (1, 2))
]


@pytest.mark.parametrize("window", sample(DRAWN, cases(40)), ids=str)
def test_window_arithmetic(window: Window) -> None:
    read = {
        t: {t * window.stride - window.padding + k * window.dilation for k in range(window.kernel)}
        for t in range(-9, 30)
    }
    for start, stop in itertools.combinations(range(8), 2):
        wanted = set().union(*(read[t] for t in range(start, stop)))
        assert window.reads((start, stop)) == (min(wanted), max(wanted) + 1)
        first, end = window.read_by((start, stop))
        readers = {t for t, elements in read.items() if elements & set(range(start, stop))}
        assert readers <= set(range(first, end))
        assert window.reads((first, end))[0] <= start
    assert window.reads((3, 3)) == window.read_by((3, 3)) == (0, 0)


@pytest.mark.parametrize(("elements", "places"), [(8, 3), (5, 5), (4, 7), (9, 1)])
def test_adaptive_arithmetic(elements: int, places: int) -> None:
    window = Adaptive(elements, places)
    x = torch.eye(elements)[None]
    read = F.adaptive_avg_pool1d(x, places)[0] > 0  # [element, place]
    for start, stop in itertools.combinations(range(places + 1), 2):
        wanted = read[:, start:stop].any(1).nonzero().flatten().tolist()
        assert window.reads((start, stop)) == (wanted[0], wanted[-1] + 1)
    for start, stop in itertools.combinations(range(elements + 1), 2):
        wanted = read[start:stop].any(0).nonzero().flatten().tolist()
        assert window.read_by((start, stop)) == (wanted[0], wanted[-1] + 1)
