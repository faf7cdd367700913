"""When threads of devices are made, and how many; what a forked process has of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Shard
from dtorch.runtime import threads

MESH = DeviceMesh("cpu", [0, 1])
SRC = Path(dtorch.__file__).parent.parent


def test_one_thread_a_device_for_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LARGE_SECONDS", 0.0)
    monkeypatch.setattr(threads, "_num_cores", lambda: 2)

    def ours() -> list[str]:
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("dtorch "))

    def use() -> None:
        graph = dtorch.Graph()
        x = dtorch.Tensor(torch.randn(4, 3), MESH, [Shard(0)], graph=graph)
        for _ in range(20):
            x = (x @ torch.eye(3)).relu()
        x.to_torch()

    use()
    before = ours()
    users = [threading.Thread(target=use) for _ in range(4)]
    [user.start() for user in users]
    [user.join() for user in users]
    use()
    assert ours() == before
    assert len(set(before)) == len(before)
    assert all(t.daemon for t in threading.enumerate() if t.name in before)


_PROGRAM = """
import os, threading, torch, dtorch
from dtorch import Shard
from dtorch.runtime import threads

torch.set_num_threads(1)
assert threading.active_count() == 1, "a thread before it is needed"
threads.LARGE_SECONDS, threads._num_cores = 0.0, lambda: 2
mesh = dtorch.DeviceMesh("cpu", [0, 1])

def run():
    x = dtorch.Tensor(torch.ones(4, 3), mesh, [Shard(0)])
    return (x @ torch.ones(3, 2)).sum().item()

assert run() == 24 and threading.active_count() == 3
child = os.fork()
if child == 0:
    ok = threading.active_count() == 1 and run() == 24 and threading.active_count() == 3
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0, "the forked process failed"
assert run() == 24
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_makes_its_own_threads() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr
