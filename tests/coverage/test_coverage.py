"""Operators out of PyTorch's own database, in every form, on [1], [4] and [2, 2], equal plain torch.

A seeded sample; DTORCH_CASES raises it, `make coverage` tries everything and writes docs/coverage.md.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from dtorch.layout import Layout
from dtorch.placement import Shard
from tests.coverage import __main__ as command
from tests.coverage import report
from tests.coverage.database import (
    CANNOT,
    ELIGIBILITY,
    KINDS,
    database,
    forms_of,
    name_of,
    refused,
    samples_of,
)
from tests.coverage.examine import examine
from tests.coverage.records import Record, append, load
from tests.coverage.reference import Reference, as_precise, differ, reference
from tests.coverage.rows import could_stay_cut, in_a_child
from tests.coverage.trial import MESHES, attempt
from tests.support import sample

PAIRS = [(op, kind) for op in database() for kind in KINDS if refused(op, kind) is None]


def entry(name: str) -> Any:
    return next(op for op in database() if name_of(op) == name)


@pytest.mark.parametrize(
    ("op", "kind"), [pytest.param(*pair, id=f"{name_of(pair[0])}-{pair[1]}") for pair in sample(PAIRS, 50)]
)
def test_as_plain_torch(op: Any, kind: str) -> None:
    record = examine(op, kind, samples=2)
    if record.ineligible is not None:
        pytest.skip(f"{record.name} {kind}: {record.ineligible}; {ELIGIBILITY}")
    assert not record.failed, "\n".join(record.faults)


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_work_is_listed_with_its_reason(name: str) -> None:
    record = examine(entry(name), "float32", samples=12, meshes=["[4]"])
    assert record.listed > 0, f"{name} works now: take it off the list"
    assert not record.failed, "\n".join(record.faults)


def one(name: str, number: int = 0) -> tuple[Any, Any, Reference]:
    op = entry(name)
    form, case = forms_of(op)[0], samples_of(op, "float32", 6, 0)[number]
    return form, case, reference(form, case, 0)


def off(wanted: Reference, **changed: list[Any]) -> Reference:
    """A reference with other outputs or gradients, which nothing else vouches for."""
    spoiled = Reference(wanted.form, wanted.sample, wanted.seed, [], wanted.run._replace(**changed))
    spoiled.__dict__.update(as_subclass=spoiled.run, precise=None)
    return spoiled


def test_the_comparison_can_fail() -> None:
    form, case, wanted = one("exp")
    outputs, gradients = wanted.run.outputs, wanted.run.gradients
    assert attempt(form, case, wanted, MESHES["[4]"], "first", 0).forward is None
    found = attempt(form, case, off(wanted, outputs=[outputs[0] * 1.01]), MESHES["[4]"], "first", 0)
    assert "values differ" in str(found.forward)
    found = attempt(form, case, off(wanted, gradients=[-gradients[0]]), MESHES["[4]"], "first", 0)
    assert "values differ" in str(found.backward)
    near = torch.nextafter(outputs[0], outputs[0] + 1)
    assert attempt(form, case, off(wanted, outputs=[near]), MESHES["[4]"], "first", 0).forward is None
    found = attempt(form, case, off(wanted, outputs=[near]), MESHES["[1]"], "whole", 0)
    assert "values differ" in str(found.forward)


def test_double_precision_vouches_for_rounding_alone() -> None:
    precise = torch.tensor([1.0, 1e4], dtype=torch.float64)
    theirs = precise.float() + torch.tensor([2e-4, 0.0])
    assert as_precise(precise.float() - torch.tensor([4e-4, 0.0]), theirs, precise)
    assert not as_precise(precise.float() + torch.tensor([3.0, 0.0]), theirs, precise)
    assert not as_precise(precise.float() + 1e3, theirs + 1e3, precise), "another function"


@pytest.mark.parametrize(
    ("ours", "why"),
    [(None, "instead of a tensor"), (torch.ones(3), "says shape"), (torch.ones(2).double(), "dtype")],
)
def test_kinds_of_difference(ours: Any, why: str) -> None:
    assert why in str(differ(ours, torch.ones(2), None))


def test_a_missing_row_is_found_where_there_is_one() -> None:
    form, case, wanted = one("exp")
    mesh = MESHES["[4]"]
    rows = [Layout.from_placements(mesh.shape, x.shape, [Shard(0)]) for x in wanted.run.leaves]
    assert could_stay_cut(form, case, rows, mesh, wanted.run.outputs)
    form, case, wanted = one("cumsum")
    assert case.args == (0,)
    assert not could_stay_cut(form, case, rows, mesh, wanted.run.outputs)


@pytest.mark.parametrize(
    ("function", "answer"),
    [(lambda: True, True), (lambda: False, False), (os.abort, False), (lambda: 1 / 0, False)],
)
def test_a_kernel_that_dies_is_no_row(function: Any, answer: bool) -> None:
    assert in_a_child(function) is answer


def test_records_survive_a_stopped_run(tmp_path: Path) -> None:
    first, second = (
        Record("add", "float32", cases=Counter(function=3)),
        Record("add", "bool", ineligible="no"),
    )
    append(tmp_path / "0-of-2.jsonl", first)
    append(tmp_path / "1-of-2.jsonl", second)
    with (tmp_path / "1-of-2.jsonl").open("a") as file:
        file.write('{"name": "mul", "ki')
    assert load(tmp_path) == {("add", "float32"): first, ("add", "bool"): second}


def test_records_of_an_earlier_version_tell_no_bytes(tmp_path: Path) -> None:
    append(
        tmp_path / "0-of-1.jsonl", Record("add", "float32", cases=Counter(function=3), sent=Counter(get=1))
    )
    file = tmp_path / "0-of-1.jsonl"
    file.write_text(file.read_text().replace(', "sent_bytes": {}', ""))
    (record,) = load(tmp_path).values()
    assert "| get 1 |" in report.page([record])
    assert not record.sent_bytes


def test_the_page_names_everything() -> None:
    good = Record("add", "float32", cases=Counter(function=3), cut=2, whole=1, sent=Counter(all_gather=1))
    good.sent_bytes = Counter(all_gather=1500)
    bad = Record("mul", "float32", cases=Counter(out=1))
    bad.add_fault("forward", "values differ")
    text = report.page([good, bad, Record("empty", "float32", ineligible="uninitialised memory")])
    for line in (
        "| `add` | 3 |  |  |  |  |  | 1 of 2 |  | all_gather 1 (1.5 kB) |",
        "| `empty` | uninitialised memory |",
        "- `mul` float32: values differ",
    ):
        assert line in text.splitlines()


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["coverage", "exp", "sin", "--kinds", "float32", "--samples", "1", "--folder", str(tmp_path)]
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", [*arguments, "--page", str(page)])
    (tmp_path / "0-of-1.now").write_text("sin\tfloat32")  # a process died there
    tried: list[str] = []

    def noted(op: Any, *args: Any) -> Record:
        tried.append(op.name)
        return examine(op, *args)

    monkeypatch.setattr(command, "examine", noted)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            command.main()
        assert stopped.value.code
        assert tried == ["exp"]
    assert "- `sin` float32: the process died" in page.read_text().splitlines()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--failed"])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert not stopped.value.code
    assert tried == ["exp", "sin"]
    assert "2 entries of 2 are eligible in float32, 2 with a backward" in capsys.readouterr().out
