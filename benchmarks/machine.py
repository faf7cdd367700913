"""What a result has to say about where it was measured."""

import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("dtorch-mesh", "torch", "transformers", "numpy")


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Largest resident memory of this process so far.

    Where the system has it, of this program alone: `ru_maxrss` begins with what started it held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_bytes() -> int | None:
    """Physical memory, bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def machine() -> dict[str, object]:
    """Processor, cores this process may use, memory, system, GPUs. No name of the host, no user."""
    import torch

    affinity = getattr(os, "sched_getaffinity", None)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "cpu": cpu_name(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpus": [torch.cuda.get_device_name(index) for index in range(gpus)],
        "torch_threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """Python and the packages that matter, those that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(root: Path) -> str | None:
    """The commit measured, with "+" where files differ from it; None outside a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
