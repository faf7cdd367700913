"""`import dtorch` beyond `import torch`: each in a fresh interpreter, timed inside it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Measure, Row

SRC = Path(__file__).parent.parent / "src"


def import_time(modules: str) -> Measure:
    """A measure of the seconds that `import modules` takes in an interpreter of its own."""
    code = f"import time; start = time.perf_counter(); import {modules}; print(time.perf_counter() - start)"
    # Users have compiled files; where the environment forbids writing them, every import would compile anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(SRC)

    def measure() -> float:
        command = [sys.executable, "-c", code]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(printed.stdout)

    return measure


def rows() -> Iterator[Row]:
    yield Row(
        name="import dtorch beyond import torch",
        against="import torch",
        budget=0.150,
        compare="beyond",
        ours=import_time("torch, dtorch"),
        theirs=import_time("torch"),
        repeats=9,
    )
