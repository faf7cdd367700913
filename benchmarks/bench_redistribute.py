"""Shard -> Replicate of 64 MiB on 4 devices of one process, beside a copy of the bytes it has to write.

The devices share storage, so replicas are one tensor and 64 MiB are written once. Both sides write into
memory they allocate, as a user's call does.
"""

from collections.abc import Iterator

import torch

from benchmarks.harness import Row, timed

NUM_BYTES = 64 * 2**20
NUM_DEVICES = 4


def rows() -> Iterator[Row]:
    import dtorch
    from dtorch import Replicate, Shard

    mesh = dtorch.DeviceMesh("cpu", list(range(NUM_DEVICES)))
    full = torch.randn(NUM_BYTES // 4 // 1024, 1024)
    sharded = dtorch.Tensor(full, device_mesh=mesh, placements=[Shard(0)])

    def gather() -> torch.Tensor:
        """Made and run: asking one device's part would add a copy to it, so wait for the graph instead."""
        replicated = sharded.redistribute(placements=[Replicate()])
        replicated.graph.sync()
        return replicated

    with torch.no_grad():
        if not torch.equal(gather().to_torch(), full):
            raise RuntimeError("Shard -> Replicate gave another value than it was made from")
    yield Row(
        name="redistribute Shard -> Replicate, 64 MiB, 4 devices",
        against="one copy of the bytes written",
        budget=1.3,
        ours=timed(torch.no_grad()(gather)),
        theirs=timed(full.clone),
    )
