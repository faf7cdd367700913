"""The command: what it prints and writes, and what it says of a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from dtorch.cli import app, main
from dtorch.perf import calibrate
from dtorch.perf.calibration import Calibration, Machine

ROOT = Path(__file__).parent.parent

PROGRAM = """
import torch
import dtorch

def build(mesh):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    if mesh.has_dim_name("tp"):
        dtorch.parallelize(model, mesh, {"0.*": {"tp": dtorch.Shard(0)}, "2.weight": {"tp": dtorch.Shard(1)}})
    return model, (torch.zeros(32, 64),)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "two_layers.py"
    path.write_text(PROGRAM)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: object) -> str:
    """What is said on stderr, in one line, of a command that fails."""
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    return result.stderr


def test_price_prints_tables_and_writes_files(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    files = {name: tmp_path / f"out.{name}" for name in ("html", "json", "trace")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    mesh = ("--device", "h100-sxm", "--mesh", "dp=2,tp=2", "--links", "ib-ndr,nvlink")
    result = run("price", program, *mesh, "--optimizer", "sgd", "--png", tmp_path / "png", *options)
    assert result.exit_code == 0, result.output
    assert "two_layers" in result.stdout
    assert "dp=2 x tp=2; h100-sxm, achievable roofs" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    report = json.loads(files["json"].read_text())
    assert {operator["phase"] for operator in report["operators"]} >= {"forward", "backward", "optimizer"}
    assert report["mesh"]["axis_links"] == ["ib-ndr", "nvlink"]
    assert files["html"].read_text().startswith("<!DOCTYPE html>")
    assert json.loads(files["trace"].read_text())["traceEvents"]
    assert {path.name for path in (tmp_path / "png").iterdir()} >= {"roofline.png", "memory.png"}
    for path in (*files.values(), tmp_path / "png" / "roofline.png"):
        assert f"wrote {path}" in result.stderr


def test_one_device_needs_no_mesh(program: Path) -> None:
    result = run("price", program, "--device", "l4", "--roof", "theoretical", "--title", "small")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("small")
    assert "l4, theoretical roofs" in result.stdout


def test_a_program_of_which_nothing_is_cut_is_noted(program: Path) -> None:
    words = ("price", program, "--device", "l4")
    assert "dtorch.parallelize" in run(*words, "--mesh", "dp=2").stderr
    assert "note:" not in run(*words, "--mesh", "tp=2").stderr
    assert "note:" not in run(*words).stderr


def test_a_backward_can_be_asked_for(program: Path, tmp_path: Path) -> None:
    phases = {}
    for flag in ("--backward", "--no-backward"):
        path = tmp_path / f"{flag}.json"
        assert run("price", program, "--device", "l4", flag, "--json", path).exit_code == 0
        phases[flag] = {operator["phase"] for operator in json.loads(path.read_text())["operators"]}
    assert phases == {"--backward": {"forward", "backward"}, "--no-backward": {"forward"}}


@pytest.mark.parametrize("mesh", ["2x8", "dp", "dp=2,dp=4", "dp=0", "=2"])
def test_a_mesh_written_otherwise_shows_how(program: Path, mesh: str) -> None:
    assert "such as dp=2,tp=8" in refused("price", program, "--device", "l4", "--mesh", mesh)


def test_an_unknown_name_brings_the_near_ones(program: Path) -> None:
    assert "did you mean h100-sxm" in refused("price", program, "--device", "h100-smx")
    words = ("--device", "l4", "--mesh", "tp=2")
    assert "did you mean" in refused("price", program, *words, "--links", "ib-nrd")
    assert "no optimizer 'adamx'" in refused("price", program, *words, "--optimizer", "adamx")
    assert "theoretical, achievable" in refused("price", program, *words, "--roof", "best")


def test_a_file_that_is_no_program_is_told(tmp_path: Path) -> None:
    assert "no such file" in refused("price", tmp_path / "absent.py", "--device", "l4")
    (tmp_path / "empty.py").write_text("")
    assert "no function build(mesh)" in refused("price", tmp_path / "empty.py", "--device", "l4")


@torch.library.custom_op("dtorch_cli_test::unpriced", mutates_args=())
def unpriced(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@unpriced.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_strict_fails_where_a_price_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "unknown.py"
    path.write_text(
        "import torch\n"
        "def build(mesh):\n"
        "    return (lambda x: torch.ops.dtorch_cli_test.unpriced(x)), (torch.zeros(8, 3),)\n"
    )
    result = run("price", path, "--device", "l4")
    assert result.exit_code == 0, result.output
    assert "Unknown prices" in result.stdout
    assert "the price of" in refused("price", path, "--device", "l4", "--strict")


@pytest.mark.parametrize(("option", "package"), [("--html", "plotly"), ("--png", "matplotlib")])
def test_a_missing_extra_says_what_to_install(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    said = refused("price", program, "--device", "l4", option, tmp_path / "out")
    assert f'{package} is not installed; it comes with: pip install "dtorch-mesh[report]"' in said


def test_the_users_own_mistake_keeps_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def build(mesh):\n    return 1 / 0\n")
    result = run("price", path, "--device", "l4")
    assert isinstance(result.exception, ZeroDivisionError)


def test_devices_are_listed_and_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "dtorch").mkdir()
    own = "[my-card]\nbf16 = 100e12\nbandwidth = 900e9\ncapacity = 24e9\n"
    (tmp_path / "dtorch" / "devices.toml").write_text(own)
    result = run("devices")
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if len(line.split()) > 8}
    assert rows["h100-sxm"][1:6] == ["67", "494.7", "989.4", "989.4", "1979"]
    assert rows["my-card"][3] == "100"
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_ops_lists_types_with_their_rules() -> None:
    everything = run("ops")
    assert everything.exit_code == 0
    for name in ("Matmul", "Sdpa", "Embedding", "BroadcastBinary"):
        assert name in everything.stdout
    assert max(map(len, everything.stdout.splitlines())) <= 100
    some = run("ops", "MATMUL").stdout
    assert "self[m k], mat2[k n] -> y[m n]" in some
    assert "Embedding" not in some
    assert "contains 'no such thing'" in run("ops", "no such thing").stdout


def test_it_is_a_command_and_a_module() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"dtorch": f"{main.__module__}:{main.__name__}"}
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, 'src'); sys.argv[1:] = ['--help'];"]
    command[-1] += "import runpy; runpy.run_module('dtorch', run_name='__main__')"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("price", "devices", "ops"):
        assert name in done.stdout


def test_lab_says_and_writes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run("lab", "A", "F1", "F2", "--out", tmp_path / "lab")
    assert result.exit_code == 0, result.output
    assert "[F2] Where replaying stops paying" in result.stdout
    assert "Replaying wins for kernels shorter than 2.499 us" in result.stdout
    assert {path.name for path in (tmp_path / "lab").iterdir()} >= {"lab.json", "index.html", "1_traffic.png"}


def test_lab_and_calibrate_refuse(tmp_path: Path) -> None:
    assert "no experiment 'G': there are all, A, B" in refused("lab", "G", "--out", tmp_path)
    if not torch.cuda.is_available():
        assert "no CUDA device" in refused("calibrate", "--gpu", "--out", tmp_path / "x.json")
    assert "float32, bfloat16" in refused("calibrate", "--dtype", "int8", "--out", tmp_path / "x.json")


def test_calibrate_saves_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Calibration(
        machine=Machine("a processor", 1, "2.13.0", "2026-01-01"),
        peaks={"float32": 1e11},
        bandwidths=((2**20, 100e9), (2**25, 20e9)),
        fixed_s=1e-6,
        element_s=1e-10,
        points={},
        sent=((1000, 1e-6),),
        cache_bytes=2**20,
    )
    monkeypatch.setattr(
        calibrate, "calibrate", lambda dtypes, seconds, tick, device: tick("products") or found
    )
    result = run("calibrate", "--out", tmp_path / "machine.json")
    assert result.exit_code == 0, result.output
    assert "100 GFLOP/s" in result.stdout
    assert Calibration.load(tmp_path / "machine.json") == found
