"""Programs that are files: build(mesh) -> (model, arguments)."""

from pathlib import Path

import pytest

from dtorch import MeshError, UnsupportedError
from dtorch.report.program import parse_mesh, price_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_meshes_as_text() -> None:
    assert parse_mesh("dp=2,tp=8") == {"dp": 2, "tp": 8}
    assert parse_mesh(" tp = 4 ") == {"tp": 4}


@pytest.mark.parametrize("text", ["", "tp", "tp=", "=3", "tp=0", "tp=-1", "tp=2,tp=4", "tp=2,", "tp=two"])
def test_wrong_meshes_as_text(text: str) -> None:
    with pytest.raises(MeshError, match="write axes as name=size"):
        parse_mesh(text)


def test_resnet() -> None:
    """4,089,184,256 multiply-adds an image, as torchvision counts; trained, 48,598,155,264 FLOPs for 2."""
    report = price_program(EXAMPLES / "resnet.py", device="a100-sxm-80gb", mesh={"dp": 8})
    assert report.title == "resnet"
    assert report.flops == 32 * 2 * 4089184256
    assert report.flops_max_device == report.flops // 8
    trained = price_program(EXAMPLES / "resnet.py", device="l4", backward=True)
    assert trained.flops == 16 * 48598155264


@pytest.mark.models
def test_llama3() -> None:
    pytest.importorskip("transformers")
    report = price_program(
        EXAMPLES / "llama3.py", device="h100-sxm", mesh={"dp": 2, "tp": 8}, axis_links=("ib-ndr", "nvlink")
    )
    assert report.flops == 2 * 70274254897152
    assert report.flops_max_device == report.flops // 16
    assert {link.name for link in report.mesh.description.links} == {"ib-ndr", "nvlink"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no function build"),
        ("def build(mesh): return 3", "arguments a tuple or a dict"),
        ("def build(mesh): return print, 3", "arguments a tuple or a dict"),
    ],
)
def test_files_that_are_no_programs(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    with pytest.raises(UnsupportedError, match=message):
        price_program(file, device="l4")


def test_no_such_file(tmp_path) -> None:
    with pytest.raises(UnsupportedError, match="no such file"):
        price_program(tmp_path / "none.py", device="l4")
