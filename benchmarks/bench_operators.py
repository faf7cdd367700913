"""Small operators, where the price of a call is all there is: ours and torch's DTensor, without a network.

DTensor runs on one rank of a fake group, so that neither side waits for anybody; on 4 devices it runs under
LocalTensorMode, which simulates the ranks in one process as we do.
"""

from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Measure, Row, ran, timed

CALLS = 200
CHAIN = 100
DEVICES = 4


def rows() -> Iterator[Row]:
    ours, theirs, theirs_cut = _ours(1), _fake_group(), _fake_group(cut=True)
    calls = {
        "add": (0.60, lambda x, y: torch.add(x, y), ours, theirs),
        "mm": (0.60, lambda x, y: torch.mm(x, y), ours, theirs),
        # The budget was set on a Shard, whose local sizes DTensor has to work out at each call.
        "view": (0.30, lambda x, y: x.view(64), ours, theirs_cut),
        "t": (0.75, lambda x, y: x.t(), ours, theirs),
    }
    for name, (budget, function, mine, other) in calls.items():
        yield Row(
            name=f"one {name}, no_grad",
            against="torch DTensor, fake group",
            budget=budget,
            ours=_calls(function, *mine),
            theirs=_calls(function, *other),
        )
    yield Row(
        name=f"chain of {CHAIN} adds, recorded and run, 1 device",
        against="torch DTensor",
        budget=0.75,
        ours=timed(_no_grad(_chain, *ours), 2),
        theirs=timed(_no_grad(_chain, *theirs), 2),
    )
    yield Row(
        name=f"chain of {CHAIN} adds, recorded and run, {DEVICES} devices of one process",
        against=f"DTensor under LocalTensorMode({DEVICES})",
        budget=0.045,
        ours=timed(_no_grad(_chain, *_ours(DEVICES)), 2),
        theirs=timed(_local_tensors()),
        repeats=9,
    )


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN):
        x = x + y
    return ran(x)


def _calls(function: Callable, x: torch.Tensor, y: torch.Tensor) -> Measure:
    """A measure of one call; what was recorded runs afterwards, and `no_grad` is entered before."""
    measure = timed(lambda: function(x, y), CALLS)

    def run() -> float:
        with torch.no_grad():
            seconds = measure()
        ran(x)
        return seconds

    return run


def _no_grad(function: Callable, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return function(x, y)

    return run


def _ours(num_devices: int) -> tuple[torch.Tensor, torch.Tensor]:
    import dtorch

    mesh = dtorch.DeviceMesh("cpu", list(range(num_devices)))
    placed = {"device_mesh": mesh, "placements": [dtorch.Shard(0)]}
    return dtorch.Tensor(torch.randn(8, 8), **placed), dtorch.Tensor(torch.randn(8, 8), **placed)


def _fake_group(cut: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    _start_fake_group()
    mesh, placement = DeviceMesh("cpu", [0]), Shard(0) if cut else Replicate()
    return tuple(distribute_tensor(torch.randn(8, 8), mesh, [placement]) for _ in range(2))


def _local_tensors() -> Callable[[], object]:
    """The chain on as many simulated ranks, rows of the matrices cut over them."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    _start_fake_group()
    mode = LocalTensorMode(DEVICES)
    with mode:
        mesh = DeviceMesh("cpu", list(range(DEVICES)))
        x, y = (distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]) for _ in range(2))

    def run() -> object:
        with mode, torch.no_grad():
            return _chain(x, y)

    return run


def _start_fake_group() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=DEVICES, store=FakeStore())
