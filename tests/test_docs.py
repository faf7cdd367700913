"""Runs every python block of README.md and docs/, and compares what it prints with the text block below it.

The blocks of a page share one namespace; each page runs in a process of its own, since pages
register operators.
`python -m tests.test_docs --write` puts what is printed now into the text blocks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import has_compiler

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A python block; the text block that follows after blank lines, if any, is what it prints.
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*```text\n(?P<text>.*?)^```$)?", re.MULTILINE | re.DOTALL
)

RUNNER = """
import contextlib, io, json, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", r"`torch\\.jit\\.script_method` is deprecated", DeprecationWarning)
page, blocks = json.load(sys.stdin)
namespace, printed = {"__name__": "__main__"}, []
for line, code in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\\n" * line + code, page, "exec"), namespace)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


class Block(NamedTuple):
    """One python block: the lines above it, its code, and the text said to be printed, None where none is."""

    line: int
    code: str
    text: str | None


def blocks_of(source: str) -> list[Block]:
    found = BLOCK.finditer(source)
    return [Block(source.count("\n", 0, m.start("code")), m["code"], m["text"]) for m in found]


def run(page: Path, blocks: list[Block]) -> list[str]:
    """What each block prints, without spaces at line ends."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([str(page.relative_to(ROOT)), [(block.line, block.code) for block in blocks]]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return [trimmed(text) for text in json.loads(done.stdout)]


def trimmed(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


WITH_CODE = [page for page in PAGES if blocks_of(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_prints_what_it_says(page: Path) -> None:
    blocks = blocks_of(page.read_text())
    if any("transformers" in block.code for block in blocks):
        pytest.importorskip("transformers")
    if any(".instantiate()" in block.code for block in blocks) and not has_compiler():
        pytest.skip("no C++ compiler")
    for block, printed in zip(blocks, run(page, blocks), strict=True):
        # A block without a text block prints nothing.
        assert printed == trimmed(block.text or ""), f"{page.name}, the block at line {block.line + 1}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("```python\na\n```\n", [("a\n", None)]),
        ("```python\na\n```\n\n```text\nb\n```\n", [("a\n", "b\n")]),
        ("```python\na\n```\n\nwords\n\n```text\nb\n```\n", [("a\n", None)]),
        ("```text\nb\n```\n\n```python\na\n```\n```python\nc\n```\n", [("a\n", None), ("c\n", None)]),
    ],
)
def test_blocks_are_found(source: str, expected: list[tuple[str, str | None]]) -> None:
    assert [(block.code, block.text) for block in blocks_of(source)] == expected


def test_a_failing_block_names_its_line() -> None:
    page = ROOT / "docs" / "page.md"
    with pytest.raises(AssertionError, match=r'page\.md", line 3'):
        run(page, blocks_of("words\n```python\n1 / 0\n```\n"))


def rewritten(source: str, printed: list[str]) -> str:
    """The page with each text block replaced by what is printed; none is added where nothing is."""
    texts = iter(printed)

    def block(match: re.Match[str]) -> str:
        text = next(texts)
        head = f"```python\n{match['code']}```\n"
        return f"{head}\n```text\n{text}```" if text else head + match[0][len(head) :]

    return BLOCK.sub(block, source)


def main() -> None:
    """Write what is printed now into every page, or into those named."""
    wanted = [ROOT / name for name in sys.argv[1:] if not name.startswith("-")] or WITH_CODE
    for page in wanted:
        source = page.read_text()
        page.write_text(rewritten(source, run(page, blocks_of(source))))


if __name__ == "__main__":
    if "--write" not in sys.argv:
        sys.exit("python -m tests.test_docs --write [page ...]")
    main()
