"""Instructions of a training step early and late in a run, counted by valgrind: they should be the same.

    python -m benchmarks.steady          three to five minutes

Three runs of the loop of tests/plan/test_leaks.py, 50 steps of warm-up and 0, 20 and 40 more: the
differences are two windows of 20 steps. Exit status 1 if the second differs from the first by 1 % or more,
2 without valgrind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
WARM, WINDOW = 50, 20
MAX_DIFFERENCE = 0.01


def instructions(steps: int) -> int:
    """Instructions of a process that trains so many steps; strings hash the same in each."""
    code = (
        "import gc, torch; torch.set_num_threads(1); "
        "from tests.plan.test_leaks import training; step = training(); gc.disable()\n"
        f"for _ in range({steps}): step()"
    )
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.search(r"I\s+refs:\s+([\d,]+)", ran.stderr)[1].replace(",", ""))  # type: ignore[index]


def main() -> None:
    """Count, print, and compare."""
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; it is the package `valgrind` of your distribution")
        sys.exit(2)
    counts = [instructions(WARM + i * WINDOW) for i in track(range(3), "three runs under valgrind")]
    early, late = counts[1] - counts[0], counts[2] - counts[1]
    print(f"{WINDOW} steps: {early / 1e6:.2f} million instructions, the next {late / 1e6:.2f} million")
    sys.exit(abs(late - early) >= MAX_DIFFERENCE * early)


if __name__ == "__main__":
    main()
