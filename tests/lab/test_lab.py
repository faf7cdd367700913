"""The lab: small runs of every experiment, sentences that follow the numbers, files that open anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest
import torch

from dtorch.errors import OptionError
from dtorch.lab import EXPERIMENTS, Result, Settings, chains, load_settings, run
from dtorch.lab.decode import decode
from dtorch.lab.result import Table
from dtorch.lab.run import chosen, save
from dtorch.lab.timelines import sweep, timeline
from dtorch.perf import measure

MIB = 1024**2
SMALL = Settings(
    chain_sizes=(64, 4096),
    tiles=(256, 1024),
    working_sets=(4096, 32 * MIB),
    call_sizes=(1, 4096, 16384),
    softmax_shape=(2, 64, 16),
    softmax_rows=16,
    layers=1,
    seconds_each=1e-4,
    compile=False,
    record=False,
)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Every function that is timed runs once; each takes a microsecond more than the one before."""

    reading = count(1)

    def seconds(function: Callable[[], object], at_least_s: float = 0.0, threads: int = 1) -> float:
        function()
        return 1e-6 * next(reading)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "seconds", seconds)
        return run(["all"], SMALL)


def test_a_real_clock() -> None:
    assert run(["A", "B"], SMALL)["B"].values["rho"] > 0


def test_every_experiment_gives_tables_and_sentences(results: dict[str, Result]) -> None:
    assert set(results) == set(EXPERIMENTS)
    assert all(result.tables and result.conclusions for result in results.values())


@pytest.mark.parametrize("letter", EXPERIMENTS)
def test_every_column_has_its_values_and_its_source(letter: str, results: dict[str, Result]) -> None:
    def complete(table: Table) -> bool:
        keys = [column.key for column in table.columns]
        return all(list(row) == keys or set(keys) <= set(row) for row in table.rows)

    assert all(complete(table) for table in results[letter].tables)


def test_what_an_experiment_stands_on_runs_first() -> None:
    assert chosen(["f4"]) == ["B", "D", "C", "F4"]
    assert sorted(chosen(["all"])) == sorted(EXPERIMENTS)
    with pytest.raises(OptionError, match="no experiment 'G'"):
        chosen(["G"])


def test_conclusions_follow_the_settings() -> None:
    longer = Settings(launch=Settings().launch.__class__(execution_us=20.0))
    assert "Replay is faster" in timeline(Settings(), {}).conclusions[0]
    assert "Launching one by one is faster" in timeline(longer, {}).conclusions[0]
    never = Settings(launch=Settings().launch.__class__(dispatch_us=5.0))
    assert sweep(never, {}).conclusions == ("With these times replaying never wins.",)


def test_tick_tells_what_is_about_to_run() -> None:
    told: list[str] = []
    run(["A", "F1"], SMALL, told.append)
    assert told == ["[A] byte ledgers", "[F1] timeline of launches"]


def test_saved_files(results: dict[str, Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra report")
    paths = save(results, SMALL, tmp_path / "new" / "folder")
    assert [path.suffix for path in paths] == [".json", *[".png"] * 5, ".html"]
    document = json.loads(paths[0].read_text())
    assert document["settings"]["steps"] == 8
    assert set(document["results"]) == set(EXPERIMENTS)
    page = paths[-1].read_text()
    assert not re.search(r"(src|href)=.https?:", page)
    assert page.count("data:image/png") == 5


def test_kernels_of_a_decode_step_by_hand() -> None:
    table = decode(Settings(record=False), {}).tables[0]
    assert table.column("unfused")[-1] == 1093
    assert table.column("fused")[-1] == 355


@pytest.mark.models
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_kernels_of_a_recorded_decode_step() -> None:
    pytest.importorskip("transformers")
    recorded = decode(Settings(layers=2), {}).tables[1]
    counts = dict(zip(recorded.column("kind"), recorded.column("kernels"), strict=True))
    assert counts["weight GEMM"] == 7 * 2 + 1
    assert counts["all"] == sum(counts.values()) - counts["all"]


def test_the_kernel_list_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text("layers = 3\nrecord = false\n[unfused]\nlayer = {a = 2, b = 3}\nonce = {c = 1}\n")
    assert decode(load_settings(path), {}).tables[0].column("unfused")[-1] == 16


def test_settings_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text("steps = 16\n[launch]\nexecution_us = 1.0\n")
    settings = load_settings(path)
    assert (settings.steps, settings.launch.execution_us, settings.launch.launch_us) == (16, 1.0, 3.0)
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "step = 16": "unknown field `step`",
        "steps = 'many'": "int",
        "steps = 0": "steps: has to be above 0",
        "tiles = []": "tiles",
        "steps = ": "lab.toml",
    }.items(),
)
def test_wrong_settings_are_explained(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=told):
        load_settings(path)
    with pytest.raises(OptionError, match="No such file"):
        load_settings(tmp_path / "other.toml")


@pytest.mark.compiler
def test_the_fused_chain_is_compiled() -> None:
    settings = msgspec.structs.replace(SMALL, compile=True)
    region = chains._region(settings, 4096)
    assert region.wait(240), region.why()
    x, fused, unfused = torch.linspace(-1, 1, 4096), torch.empty(4096), torch.empty(4096)
    region([x, fused])
    chains._steps(x, unfused, settings.steps, settings.scale, settings.shift)
    torch.testing.assert_close(fused, unfused)
    before = {"B": Result("B", "", (), (), {"rho": 2.0}), "D": Result("D", "", (), (), {"fixed_s": 1e-6})}
    table, *_ = chains.chains(settings, before).tables
    assert all(time is not None and time > 0 for time in table.column("fused"))


def test_a_chain_that_is_not_compiled_says_why() -> None:
    before = {"B": Result("B", "", (), (), {"rho": 2.0}), "D": Result("D", "", (), (), {"fixed_s": 1e-6})}
    result = chains.chains(SMALL, before)
    assert "Not fused by the compiler: the settings say not to." in result.conclusions
