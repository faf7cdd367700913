"""Times: channels of one call, fixed costs, the ring formulas, two streams."""

import math

import pytest
import torch
from torch import nn

import dtorch
from dtorch import DeviceError, Partial, Replicate, Shard
from dtorch.perf.device import Device, Link
from dtorch.perf.roofline import (
    HOP_S,
    KERNEL_S,
    LAUNCH_S,
    LINK_FRACTION,
    MEMORY_FRACTION,
    NETWORK_HOP_S,
    roof_of,
)

LINK = Link("wire", 1e9)
SIMPLE = Device("simple", 1e12, 2e12, 4e12, 4e12, None, bandwidth=1e11, capacity=1e12, link=LINK)


def price(function, *args, roof: str = "theoretical", **options) -> dtorch.Report:
    return dtorch.price(function, *args, device=SIMPLE, roof=roof, **options)


def only(report: dtorch.Report):
    """Entry and time of the one call that launches a kernel."""
    (found,) = [(e, t) for e, t in zip(report.entries, report.timed) if e.facts.kernels]
    return found


@pytest.mark.parametrize(("dtype", "peak"), [(torch.float32, 1e12), (torch.bfloat16, 4e12)])
def test_compute_bounds_a_large_product(dtype: torch.dtype, peak: float) -> None:
    x = torch.empty(4096, 4096, dtype=dtype, device="meta")
    _, timed = only(price(torch.mm, x, x))
    assert timed.bound == "compute"
    assert timed.time_s == pytest.approx(2 * 4096**3 / peak)


def test_less_precise_float32_products_have_another_peak() -> None:
    x = torch.empty(4096, 4096, device="meta")
    torch.set_float32_matmul_precision("high")
    try:
        _, timed = only(price(torch.mm, x, x))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert timed.time_s == pytest.approx(2 * 4096**3 / 2e12)


def test_memory_bounds_a_thin_product_and_an_addition() -> None:
    x, w = torch.empty(1, 4096, device="meta"), torch.empty(4096, 4096, device="meta")
    _, timed = only(price(torch.mm, x, w))
    assert timed.bound == "memory"
    assert timed.time_s == pytest.approx(4 * (4096**2 + 2 * 4096) / 1e11)
    _, added = only(price(torch.add, w, w))
    assert added.time_s == pytest.approx(3 * w.nbytes / 1e11)


def test_views_take_no_time() -> None:
    report = price(lambda x: x.t().view(4, 1024)[1:], torch.empty(64, 64, device="meta").t())
    assert report.time == 0
    assert [t.bound for t in report.timed] == [None] * len(report.timed)


def test_the_achievable_roof_names_its_fractions() -> None:
    x = torch.empty(8192, 8192, device="meta")
    _, timed = only(price(torch.add, x, x, roof="achievable"))
    assert timed.time_s == pytest.approx(KERNEL_S + 3 * x.nbytes / (MEMORY_FRACTION * 1e11))
    small = torch.empty(4, device="meta")
    _, timed = only(price(torch.add, small, small, roof="achievable"))
    assert (timed.bound, timed.time_s) == ("launch", LAUNCH_S)


def test_measured_products_make_the_fraction() -> None:
    assert roof_of(dtorch.devices()["h100-sxm"], "achievable").compute == pytest.approx(794.5 / 989.4)
    assert roof_of(dtorch.devices()["h100-sxm"], "theoretical").compute == 1
    with pytest.raises(DeviceError, match="no roof 'guessed'; there are theoretical, achievable"):
        dtorch.price(torch.add, torch.ones(2), torch.ones(2), device="l4", roof="guessed")


# Bytes that the busiest device receives, of a tensor of n bytes over k devices.
@pytest.mark.parametrize(
    ("source", "target", "share", "rounds"),
    [
        (Partial(), Replicate(), lambda k: 2 * (k - 1) / k, 2),
        (Shard(0), Replicate(), lambda k: (k - 1) / k, 1),
        (Partial(), Shard(0), lambda k: (k - 1) / k, 1),
        (Shard(0), Shard(1), lambda k: (k - 1) / k**2, 1),
    ],
)
@pytest.mark.parametrize("roof", ["theoretical", "achievable"])
def test_ring_formulas(source, target, share, rounds: int, roof: str) -> None:
    k = 4
    mesh = dtorch.described_mesh("h100-sxm", (k,), axis_links=("ib-ndr",))
    x = dtorch.zeros(1024, 1024, device_mesh=mesh, placements=[source])
    report = dtorch.price(lambda x: x.redistribute(placements=[target]), x, roof=roof)
    (timed,) = report.timed
    fixed = KERNEL_S + rounds * (k - 1) * NETWORK_HOP_S if roof == "achievable" else 0
    fraction = LINK_FRACTION if roof == "achievable" else 1
    assert (timed.bound, timed.stream) == ("communication", "communicate")
    assert timed.time_s == pytest.approx(fixed + share(k) * x.nbytes / (fraction * 50e9))


def test_the_slowest_link_that_is_crossed_counts() -> None:
    mesh = dtorch.described_mesh(
        "h100-sxm", (2, 2), axis_links=("ib-hdr", "nvlink"), mesh_dim_names=("dp", "tp")
    )

    def time(*placements) -> float:
        x = dtorch.zeros(1024, 1024, device_mesh=mesh, placements=list(placements))
        return dtorch.price(lambda x: x.redistribute(placements=["R", "R"]), x, roof="theoretical").time

    half = 1024 * 1024 * 4 / 2
    assert time(Shard(0), Replicate()) == pytest.approx(half / 25e9)
    assert time(Replicate(), Shard(0)) == pytest.approx(half / 450e9)
    assert time(Shard(0), Shard(1)) == pytest.approx(1.5 * half / 25e9)
    assert math.isclose(HOP_S["nvlink"], 1e-6)


def test_communication_hides_behind_what_does_not_wait_for_it() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,), mesh_dim_names=("dp",))
    x = dtorch.zeros(2048, 2048, device_mesh=mesh, placements=[Partial()])
    y = dtorch.zeros(2048, 2048, device_mesh=mesh, placements=[Replicate()])

    def beside(x, y):
        whole = x.redistribute(placements=[Replicate()])
        return whole, y @ y

    def after(x, y):
        return x.redistribute(placements=[Replicate()]) @ y

    sent, product = dtorch.price(beside, x, y, roof="theoretical").timed
    assert (sent.start_s, product.start_s) == (0, 0)
    waited = dtorch.price(after, x, y, roof="theoretical")
    assert waited.timed[1].start_s == waited.timed[0].time_s
    assert waited.time == pytest.approx(sum(t.time_s for t in waited.timed))


def test_gradients_are_reduced_beside_the_backward() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (8,), mesh_dim_names=("dp",))
    x = dtorch.zeros(64, 4096, device_mesh=mesh, placements=[Shard(0)])
    model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(4)])
    report = dtorch.price(model, x, mesh=mesh, backward=True)
    total = sum(t.time_s for t in report.timed)
    sent = sum(t.time_s for t in report.timed if t.stream == "communicate")
    assert sent > 0
    assert report.time < total


def test_each_device_does_its_share() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (4,))
    x = dtorch.zeros(4096, 4096, dtype=torch.bfloat16, device_mesh=mesh, placements=[Shard(0)])
    w = dtorch.zeros(4096, 4096, dtype=torch.bfloat16, device_mesh=mesh, placements=[Replicate()])
    report = dtorch.price(torch.mm, x, w, roof="theoretical")
    assert report.flops == 2 * 4096**3
    assert report.flops_max_device == report.flops // 4
    assert report.time == pytest.approx(report.flops / 4 / 989.4e12)


def test_an_uneven_share_takes_as_long_as_the_largest() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (4,))
    x = dtorch.zeros(5 * 1024, 4096, device_mesh=mesh, placements=[Shard(0)])
    w = dtorch.zeros(4096, 4096, device_mesh=mesh, placements=[Replicate()])
    assert dtorch.price(torch.mm, x, w).flops_max_device == 2 * 1280 * 4096**2
