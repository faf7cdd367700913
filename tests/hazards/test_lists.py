"""The lists on top of these files name tests that exist, every fault at least one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_tests_named_exist(path: Path) -> None:
    doc = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n", 1)[1]
    faults = re.split(r"\n(?=\S)", doc)
    assert len(faults) > 2
    for fault in faults:
        named = re.findall(r"`((?:tests/[\w/]*(?:\.py)?(?:::)?)?(?:test_\w+)?)(?:\[[^`]*)?`", fault)
        named = [name for name in named if name]
        assert named, fault
        for name in named:
            file, _, test = name.rpartition("::") if "/" in name else (str(path), "", name)
            if not file:
                file, test = test, ""
            where = ROOT / file
            assert where.exists(), name
            assert not test or test in functions(where), name
