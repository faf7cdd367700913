"""`dtorch.record()` lists the calls of a captured function too, though a replay makes none."""

from __future__ import annotations

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError

pytestmark = pytest.mark.recorded


def test_a_recorder_sees_the_calls_of_a_captured_function() -> None:
    mesh = dtorch.init_device_mesh("cpu", (2,))
    x = dtorch.randn(4, 3, device_mesh=mesh, placements=[Shard(0)])
    total = torch.zeros(3)
    seen = dtorch.Tensor(total, device_mesh=mesh)

    @dtorch.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return (x * 2 + torch.rand(3)).sum(0)

    step.capture(x)
    calls = int(seen[0].item())
    torch.manual_seed(5)
    expected = step(x)
    assert step.why().startswith("replayed")
    torch.manual_seed(5)
    with dtorch.record() as recorded:
        listed = step(x)
        with pytest.raises(CaptureError, match=r"record\(\) is open, and a replay makes no calls"):
            step.replay(x)
    assert step.why() == "called as it is: dtorch.record() is open, and a replay makes no calls to list"
    assert [c.kind for c in recorded.communications()] == ["all_reduce"]
    assert torch.equal(listed.to_torch(), expected.to_torch())
    step(x)
    assert step.why().startswith("replayed"), "what was recorded before still holds"
    assert seen[0].item() == calls + 3
    assert step.stats().captures == 2
