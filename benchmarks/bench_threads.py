"""Large products on 2 virtual devices, each on its device's thread, beside the same kernels in turn.

One torch thread each, so the second device needs a core of its own.
"""

from collections.abc import Iterator

import torch

from benchmarks.harness import Row, ran, timed

SIZE, PRODUCTS = 2048, 4


def rows() -> Iterator[Row]:
    import dtorch
    from dtorch import Shard

    x, w = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE) / SIZE**0.5
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    dx, dw = dtorch.Tensor(x, mesh, [Shard(0)]), dtorch.Tensor(w, mesh)

    def ours() -> torch.Tensor:
        y = dx
        for _ in range(PRODUCTS):
            y = y @ dw
        return ran(y)

    def serial() -> list[torch.Tensor]:
        halves = list(x.chunk(2))
        for _ in range(PRODUCTS):
            halves = [half @ w for half in halves]
        return halves

    with torch.no_grad():
        if not torch.equal(ours().to_torch(), torch.cat(serial())):
            raise RuntimeError("products on two threads are not those of one")
    yield Row(
        name=f"{PRODUCTS} matmuls of {SIZE} x {SIZE} on 2 devices, one torch thread each",
        against="the same kernels, serially",
        budget=0.65,
        ours=timed(torch.no_grad()(ours)),
        theirs=timed(serial),
        repeats=5,
        warmups=2,
    )
