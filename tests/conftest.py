"""Every test starts alike: one torch thread, seeded, offline; and runs only where it can."""

import contextlib
import importlib.util
import os
import random
import signal

# Before anything imports transformers: no test downloads.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

import dtorch
from tests.support import has_compiler

# A machine lent for its GPU may have torch and pytest only; its tests need no hypothesis.
with contextlib.suppress(ImportError):
    import hypothesis

    from tests.support import cases

    # derandomize: the same examples in every run, so a failure is there again. No deadline: the first call
    # of an operator infers it, later ones do not.
    hypothesis.settings.register_profile(
        "dtorch", derandomize=True, deadline=None, max_examples=cases(100), print_blob=True
    )
    hypothesis.settings.load_profile("dtorch")

torch.set_num_threads(1)

# What a shell starts in the background ignores Ctrl-C; the tests of interrupts press it all the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SEED = 20240

# mark -> (is it here?, why not)
_NEEDS = {
    "compiler": (has_compiler, "no C++ compiler"),
    "recorded": (lambda: not dtorch.default_graph.constructor.eager, "DTORCH_EAGER=1 records nothing"),
    "gpu": (torch.cuda.is_available, "no CUDA device; make gpu-check runs it where there is one"),
    "models": (lambda: importlib.util.find_spec("transformers") is not None, "transformers is not installed"),
    "cluster": (lambda: importlib.util.find_spec("ray") is not None, "ray is not installed"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason."""
    missing = {mark: reason for mark, (present, reason) in _NEEDS.items() if not present()}
    for item in items:
        for mark, reason in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def seed_everything(seed: int = _SEED) -> None:
    """Seed Python's and torch's random numbers."""
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Seed before each module is imported: the data it draws depends on no other module."""
    if isinstance(collector, pytest.Module):
        seed_everything()


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """Seed before each test: its numbers depend neither on order nor on worker."""
    seed_everything()


@pytest.fixture
def graph() -> dtorch.Graph:
    """A graph that records, also under DTORCH_EAGER=1."""
    found = dtorch.Graph()
    found.constructor.eager = False
    return found
