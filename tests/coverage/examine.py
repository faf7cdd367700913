"""An entry of the database in one kind of dtype: every sample, form, mesh and way to spread."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.coverage.database import CANNOT, Ineligible, forms_of, name_of, refused, samples_of
from tests.coverage.records import Record
from tests.coverage.reference import reference
from tests.coverage.trial import CHOICES, MESHES, Outcome, attempt

LIMIT = 300
"""Seconds for one entry in one kind."""


def examine(op: Any, kind: str, samples: int, seed: int = 0, meshes: Sequence[str] = tuple(MESHES)) -> Record:
    """Try an entry in a kind of dtype, on every mesh, in every form."""
    record = Record(name_of(op), kind)
    start = time.perf_counter()
    try:
        with time_limit(LIMIT):
            why = refused(op, kind)
            if why is not None:
                raise Ineligible(why)
            for number, sample in enumerate(samples_of(op, kind, samples, seed)):
                for form in forms_of(op):
                    _examine(record, form, sample, number, seed, meshes)
            if not record.cases:
                raise Ineligible("; ".join(record.reasons) or "no samples")
    except Ineligible as reason:
        record.ineligible = str(reason)
    except TimeoutError as late:
        record.add_fault("forward", str(late))
    record.seconds = time.perf_counter() - start
    return record


def _examine(record: Record, form: Any, sample: Any, number: int, seed: int, meshes: Sequence[str]) -> None:
    try:
        wanted = reference(form, sample, seed + number)
    except Ineligible as reason:
        record.reasons[str(reason)] += 1
        return
    for mesh in meshes:
        # One device has one way; forms other than the function share its operators, so two ways are enough.
        choices = CHOICES[2:3] if mesh == "[1]" else CHOICES if form.name == "function" else CHOICES[::3]
        for choice in choices:
            outcome = attempt(form, sample, wanted, MESHES[mesh], choice, seed + number)
            _count(record, outcome, form.name, f"sample {number}, {mesh} {choice} {outcome.placements}")


def _count(record: Record, outcome: Outcome, form: str, where: str) -> None:
    refusal = CANNOT.get(record.name)
    record.cases[form] += 1
    record.backwards += outcome.has_backward
    record.sent.update(kind for kind, sent in outcome.sent.items() if sent)
    record.sent_bytes.update(outcome.sent)
    if refusal and refusal.form in ("", form) and refusal.text in f"{outcome.forward} {outcome.backward}":
        record.listed += 1
        return
    if outcome.forward is not None:
        record.add_fault("forward", f"{form}, {where}: {outcome.forward}")
    elif outcome.cut:
        record.cut += 1
        record.whole += outcome.whole
        record.missed += outcome.missed
    if outcome.backward is not None:
        record.add_fault("backward", f"{form}, {where}: backward: {outcome.backward}")


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
