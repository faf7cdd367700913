"""The command `dtorch`: prices of programs, this machine measured, the lab, devices, operators."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from dtorch.errors import DtorchError, OptionError
from dtorch.lab.run import chosen as chosen_experiments
from dtorch.lab.run import run as run_lab
from dtorch.lab.run import save as save_lab
from dtorch.lab.settings import load_settings
from dtorch.perf import calibrate as measuring
from dtorch.perf.device import THIS_MACHINE, calibration_path
from dtorch.perf.device import devices as known_devices
from dtorch.report import catalogue
from dtorch.report.extra import need
from dtorch.report.machine import machine_table, save_machine_png
from dtorch.report.program import parse_mesh, price_program
from dtorch.report.report import Report

app = typer.Typer(
    help="Ordinary PyTorch programs, priced on meshes of devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a fault of the user's program keeps its own traceback
)
# Tables are made for a hundred columns; a narrower terminal, or a file, gets them whole.
output = Console(width=max(100, Console().width))
errors = Console(stderr=True)


_WHOLE = (
    "note: every device does all the arithmetic, since nothing that takes part in it is cut over the mesh; "
    "lay the model out in build(mesh), with dtorch.parallelize, or make its arguments there with placements"
)


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with what dtorch refuses told in one line and exit code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except DtorchError as error:
            errors.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
            raise typer.Exit(1) from error

    return run


File = Annotated[Path, typer.Argument(help="A program with a function build(mesh) -> (model, arguments).")]


@app.command(
    epilog="For example: dtorch price examples/llama3.py --device h100-sxm --mesh dp=2,tp=8 --html out.html"
)
@friendly
def price(
    file: File,
    device: Annotated[str, typer.Option(help="What the devices are; `dtorch devices` lists them.")],
    mesh: Annotated[str, typer.Option(help="Axes of the mesh and their sizes: dp=2,tp=8.")] = "",
    links: Annotated[str, typer.Option(help="What joins each axis: ib-ndr,nvlink.")] = "",
    backward: Annotated[bool | None, typer.Option(help="Whether a backward follows.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="One step of adamw, adam or sgd.")] = None,
    roof: Annotated[str, typer.Option(help="achievable, or theoretical.")] = "achievable",
    strict: Annotated[bool, typer.Option(help="Fail where a price is unknown.")] = False,
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page for a browser.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write figures into this folder.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline for Perfetto.")] = None,
) -> None:
    """Price a program on devices that need not be here.

    The program is recorded once and nothing is computed. With an optimizer, a backward comes before its step.
    """
    # What would fail at the end fails at the start.
    for wanted, module in ((html, "plotly.offline"), (png, "matplotlib")):
        if wanted is not None:
            need(module)
    axes = parse_mesh(mesh) if mesh else None
    options = {"backward": backward, "optimizer": optimizer, "strict": strict, "roof": roof}
    if title is not None:
        options["title"] = title
    axis_links = [link.strip() for link in links.split(",")] if links else None
    with errors.status(f"recording {file}"):
        report = price_program(file, device=device, mesh=axes, axis_links=axis_links, **options)
    output.print(report)
    if report.mesh.size > 1 and report.flops and report.flops_max_device == report.flops:
        errors.print(Text(_WHOLE), soft_wrap=True)
    _save(report, html, png, json_file, trace)


def _save(
    report: Report, html: Path | None, png: Path | None, json_file: Path | None, trace: Path | None
) -> None:
    written = []
    if html is not None:
        report.save_html(html)
        written.append(html)
    if png is not None:
        written.extend(report.save_png(png))
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), allow_nan=False), encoding="utf-8")
        written.append(json_file)
    if trace is not None:
        report.save_trace(trace)
        written.append(trace)
    for path in written:
        errors.print(Text(f"wrote {path}"), soft_wrap=True)


@app.command()
@friendly
def devices() -> None:
    """List the devices that are known, your own included: their peaks, memory and links."""
    output.print(catalogue.devices_table(known_devices().values()))


@app.command()
@friendly
def ops(
    word: Annotated[str, typer.Argument(help="Only types and torch operators that contain this.")] = "",
) -> None:
    """List operator types, the torch operators they serve, and their rules."""
    output.print(catalogue.operators_table(word))


@app.command()
@friendly
def calibrate(
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32 unless given; may be given several times.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure the first CUDA device: `this-gpu`.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to save, if not where prices look for it.")] = None,
    seconds: Annotated[float, typer.Option(help="Time behind each number; more of it is steadier.")] = 0.03,
) -> None:
    """Measure this machine, in under two minutes; prices for `this-machine` use what was found."""
    dtypes, device = tuple(map(_dtype, dtype or ["float32"])), "cuda" if gpu else "cpu"
    measuring.check_device(device)  # what would fail after the bar has begun
    with Progress(console=errors, transient=True) as progress:
        task = progress.add_task("", total=measuring.steps(dtypes))

        def tick(about: str) -> None:
            progress.update(task, description=about, advance=1)

        found = measuring.calibrate(dtypes, seconds, tick, device)
    path = out or calibration_path("this-gpu" if gpu else THIS_MACHINE)
    found.save(path)
    output.print(machine_table(found))
    errors.print(Text(f"wrote {path}"), soft_wrap=True)
    if importlib.util.find_spec("matplotlib") is not None:
        picture = save_machine_png(found, path.with_suffix(".png"))
        errors.print(Text(f"wrote {picture}"), soft_wrap=True)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(f"--dtype {name}: no floating-point dtype of torch; float32, bfloat16, float16 are")
    return found


@app.command()
@friendly
def lab(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="A B C D E F1 F2 F3 F4; all unless given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers, figures and the page.")] = Path("lab"),
    settings: Annotated[Path | None, typer.Option(help="A TOML file with other sizes and times.")] = None,
) -> None:
    """Run the experiments on fusing and replaying on this machine, in under three minutes."""
    chosen, wanted = load_settings(settings), experiments or ["all"]
    order = chosen_experiments(wanted)
    with Progress(console=errors, transient=True) as progress:
        task = progress.add_task("", total=len(order))

        def tick(about: str) -> None:
            progress.update(task, description=about, advance=1)

        results = run_lab(wanted, chosen, tick)
    for letter in sorted(results):
        output.print(Text(f"[{letter}] {results[letter].title}", "bold"))
        for sentence in results[letter].conclusions:
            output.print(Text(f"  {sentence}"))
    for path in save_lab(results, chosen, out):
        errors.print(Text(f"wrote {path}"), soft_wrap=True)


def main() -> None:
    """Run the command."""
    app()
