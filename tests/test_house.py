"""The house: who may import whom, how long a file may be, what `import dtorch` loads, what is pinned."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "dtorch"

# From the ground (what everything stands on) to the roof (what a user calls). A file imports only from its
# own floor and the floors listed before it. A name is a module or a folder directly under src/dtorch; `mesh`
# stands for mesh_*.py too.
FLOORS = (
    ("errors", "options", "future", "version", "hidden", "native"),
    ("inductor",),
    ("mesh", "placement", "layout", "spec", "redistribute"),
    ("op",),
    ("ops",),
    ("graph",),
    ("plan",),
    ("runtime",),
    ("autograd", "dispatch", "tensor", "creation", "policy", "foreach", "explanation"),
    ("nn", "operators", "cuda", "compiled_op"),
    ("perf",),
    ("replay",),
    ("report",),
    ("lab",),
    ("testing",),
    ("cli",),
    ("__init__", "__main__"),
)
LEVELS = {name: level for level, names in enumerate(FLOORS) for name in names}

MAX_LINES = 400

# Loaded by `import dtorch` none of these: they belong to an extra, or take half a second.
HEAVY = (
    "transformers",
    "safetensors",
    "plotly",
    "matplotlib",
    "pytest",
    "hypothesis",
    "expecttest",
    "ray",
    "torchvision",
    "torch.distributed.tensor",
)


def floor_of(path: Path) -> str:
    """The module or folder directly under src/dtorch that `path` belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def level_of(name: str) -> int | None:
    """The height of a module or folder; None if it has no floor."""
    return LEVELS.get(name, LEVELS.get(name.partition("_")[0]))


def python_files() -> list[Path]:
    folders = (ROOT / name for name in ("src", "tests", "benchmarks", "examples", "docs"))
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


SOURCES = [path for path in python_files() if SRC in path.parents]


def is_type_checking(node: ast.AST) -> bool:
    """Whether `node` is `if TYPE_CHECKING:`; what stands under it is not imported."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, dotted name as a tuple) of each import in `tree`, also those inside functions.

    `package` is the package the file lies in; relative imports start there.
    """
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from ((node.lineno, (*base, alias.name)) for alias in node.names)
        todo.extend(node.orelse if is_type_checking(node) else ast.iter_child_nodes(node))


def upward(source: str, path: Path) -> list[str]:
    """The imports of the file at `path` with text `source` that the floors forbid, one message each."""
    package = ("dtorch", *path.relative_to(SRC).parent.parts)
    here = floor_of(path)
    height = level_of(here)
    assert height is not None, f"{here}: name its floor in FLOORS"
    roof = LEVELS["__init__"]
    found = []
    for line, name in imported(ast.parse(source), package):
        if name[0] != "dtorch":
            continue
        # `from dtorch import x`, where x is no module: the public face, which stands on the roof.
        target = level_of(name[1]) if len(name) > 1 else None
        if (roof if target is None else target) > height:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {'.'.join(name)}, a floor above {here}")
    return found


def test_every_file_has_a_floor() -> None:
    homeless = sorted({name for name in map(floor_of, SOURCES) if level_of(name) is None})
    assert not homeless, f"{homeless}: name their floor in FLOORS"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_come_from_below(path: Path) -> None:
    assert upward(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("file", "source", "forbidden"),
    [
        ("mesh.py", "from dtorch.op.cost import OperatorCost", True),
        ("mesh.py", "from .tensor import Tensor", True),
        ("mesh.py", "from . import tensor", True),
        ("mesh.py", "import dtorch", True),
        ("op/param.py", "from ..ops import matmul", True),
        ("op/param.py", "def f():\n    from dtorch.ops.matmul import Matmul", True),
        ("op/param.py", "if TYPE_CHECKING:\n    from dtorch.ops.matmul import Matmul", False),
        ("op/param.py", "from .cost import OperatorCost\nfrom ..mesh import DeviceMesh", False),
        ("ops/standard/matmul.py", "from ...layout import Layout", False),
        ("ops/standard/matmul.py", "from ...graph.constructor import add", True),
        ("layout/layout.py", "import torch.nn, sys", False),
        ("layout/views.py", "from ..tensor import Tensor", True),
        ("spec.py", "from .layout.views import view_dims", False),
    ],
)
def test_the_import_rule_can_fail(file: str, source: str, forbidden: bool) -> None:
    assert bool(upward(source, SRC / file)) is forbidden


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < MAX_LINES, f"{lines} lines; two files would be clearer"


def test_import_loads_no_extra() -> None:
    code = "import sys, json, dtorch; print(json.dumps(sorted(sys.modules)))"
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import sys; sys.path.insert(0, {str(SRC.parent)!r}); {code}",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    loaded = set(json.loads(printed.stdout))
    assert loaded.isdisjoint(HEAVY), sorted(loaded.intersection(HEAVY))


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_import_leaves_the_collector_as_it_was(before: str) -> None:
    """Import pauses it."""
    code = f"import gc; gc.{before}(); import dtorch; print(gc.isenabled())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == f"{before == 'enable'}\n"


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def documented_steps() -> dict[str, set[str]]:
    """Class name -> its methods that have a docstring, over all of src/dtorch."""
    steps: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in classes(ast.parse(path.read_text(encoding="utf-8"))):
            steps.setdefault(node.name, set()).update(m.name for m in methods(node) if ast.get_docstring(m))
    return steps


def undocumented(source: str, steps: dict[str, set[str]]) -> list[str]:
    """Public methods of public classes without a docstring, unless they fill in a documented one of a base.

    ruff asks for the docstrings of modules, classes and functions; it cannot see what a base documents.
    A property's setter and an overload are described where the name is first defined.
    """
    inherited = set().union(*steps.values()) if steps else set()
    found = []
    for node in classes(ast.parse(source)):
        described = inherited if node.bases else steps.get(node.name, set())
        for method in methods(node):
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in method.decorator_list}
            private = method.name.startswith("_") or node.name.startswith("_")
            if not (private or marks & {"setter", "overload"} or method.name in described):
                found.append(f"{node.name}.{method.name}, line {method.lineno}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_public_methods_have_a_docstring(path: Path) -> None:
    assert undocumented(path.read_text(encoding="utf-8"), documented_steps()) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("class A:\n    def f(self): pass", 1),
        ("class A:\n    def f(self): 'does it'", 0),
        ("class A(Base):\n    def step(self): pass", 0),
        ("class A(Base):\n    def other(self): pass", 1),
        ("class A:\n    def step(self): pass", 1),
        ("class _A:\n    def f(self): pass", 0),
    ],
)
def test_the_docstring_rule_can_fail(source: str, count: int) -> None:
    steps = {"Base": {"step"}}
    for node in classes(ast.parse(source)):
        steps[node.name] = {method.name for method in methods(node) if ast.get_docstring(method)}
    assert len(undocumented(source, steps)) == count


# ---- the pinned versions


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package_name(requirement: str) -> str:
    """The normalised name of the package in a requirement line."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def pinned(file: str) -> dict[str, str]:
    """Package -> version of a file in requirements/; every line must be an exact pin, without a hash."""
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9A-Za-z.]+", line)] == []
    return {package_name(line): line.partition("==")[2] for line in pins}


def pin_files() -> list[str]:
    return sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("extra", ["core", "models", "report", "dev"])
def test_direct_dependencies_are_pinned(extra: str) -> None:
    wanted = project()["dependencies"] if extra == "core" else project()["optional-dependencies"][extra]
    missing = (
        {package_name(line) for line in wanted} - pinned(f"{extra}.txt").keys() - pinned("torch.txt").keys()
    )
    assert not missing


def test_pins_agree() -> None:
    versions: dict[str, set[str]] = {}
    for file in pin_files():
        for name, version in pinned(file).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
    assert "torchvision" not in versions
