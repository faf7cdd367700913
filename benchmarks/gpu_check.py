"""The tests that need a CUDA device, within five minutes: `make gpu-check`.

Prints what it runs on, then runs `pytest tests/gpu`. Exit status: pytest's; 3 where there is no CUDA device,
since then nothing was checked; 124 where the time ran out.

It needs torch, pytest and what dtorch imports, and nothing of .venv:

    make gpu-check PY=python3
"""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
LIMIT_S = 300
NO_DEVICE = 3
TIMED_OUT = 124


def print_devices() -> None:
    """One line on the software, one on each device."""
    print(f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        gib = found.total_memory / 2**30
        print(
            f"cuda:{index} {found.name}, {gib:.0f} GiB, compute capability {found.major}.{found.minor}",
            flush=True,
        )


def main() -> int:
    start = time.monotonic()
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "for CPU only"
        print(
            f"gpu-check: NO CUDA DEVICE here (torch {torch.__version__}, built {build}). Nothing was checked."
        )
        return NO_DEVICE
    print_devices()
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "--durations=5", *sys.argv[1:]]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        status = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"gpu-check: stopped after {LIMIT_S} s; what ran so far stands above.")
        return TIMED_OUT
    print(f"gpu-check: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
