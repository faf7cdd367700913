"""The placement table in an operator file's docstring is the rules in use, row by row.

How a table is read: a header line names the columns, set apart by two spaces or more; each row below has one
role for each column, R, S(name), P, or alternatives `S(d)|P`; what stands right of the last column is a
remark. TABLES ties columns to the inputs and outputs of one call, in order, and names the dims of every
tensor: `x[m k]`. A name given as `d=m n` stands for each of these dims in turn. So every row becomes exact
roles, and the set of all of them must be the set of rules that the operator has for that call: a row too many
fails, and one too few.
"""

import re
from itertools import product
from pathlib import Path

import pytest

import dtorch.ops.fused
import dtorch.ops.standard
from dtorch.mesh import DeviceMesh
from dtorch.op.signature import Role
from dtorch.testing import Call
from dtorch.testing.local import Bench, roles_of
from dtorch.testing.oracle import Rules
from tests.docs_tables import TABLES, Table

PATHS = {
    path.name: path
    for package in (dtorch.ops.standard, dtorch.ops.fused)
    for path in Path(package.__path__[0]).glob("*.py")
    if path.name != "__init__.py"
}
Row = tuple[tuple[Role, ...], tuple[Role, ...]]


# Files whose table is prose in columns, with the reason; the judge (test_rules.py) covers their rules.
PROSE = {
    "batch_norm.py": "one column stands for several tensors",
    "broadcast_binary.py": "one line for each operator of many; test_rules judges all",
    "chunk.py": "layouts with factors, which a role cannot say",
    "create.py": "columns are operators of one input each",
    "cross_entropy.py": "rows depend on the reduction",
    "general.py": "any number of inputs",
    "group_norm.py": "one column stands for several tensors and (g c) for a dim of two",
    "base_math.py": "one line for each operator of many",
    "expand.py": "dims are renumbered",
    "masked.py": "one line for each operator of many",
    "permute.py": "dims are renumbered",
    "loss.py": "rows depend on the reduction",
    "normalization.py": "one column stands for several tensors",
    "optimizer.py": "one column stands for several tensors",
    "random.py": "columns are operators, cells are sentences",
    "set_item.py": "a column may be a number",
    "sdpa.py": "one column stands for several tensors and heads may be groups",
    "get_item.py": "layouts with factors, which a role cannot say",
    "squeeze.py": "dims are renumbered",
    "strided.py": "which dims move is the view's own",
}

ROLE = r"(?:R|P|S\([\w']+\))"
CELL = re.compile(rf"{ROLE}(?:\|{ROLE})*$")


def placements_text(docstring: str) -> list[str]:
    """Lines of the section Placements, up to a line that is no part of a table."""
    lines = docstring.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("Placements")), None)
    if start is None:
        return []
    body = []
    for line in lines[start + 1 :]:
        if line and not line.startswith("  "):
            break
        body.append(line)
    return body


def blocks(docstring: str) -> list[list[str]]:
    """Tables of a docstring: header and rows; a blank line ends one."""
    found: list[list[str]] = [[]]
    for line in placements_text(docstring):
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [block for block in found if len(block) > 1 and any(CELL.match(w) for w in block[1].split())]


def columns(header: str, wanted: list[str]) -> list[int] | None:
    """Where the wanted header words stand, left to right where one stands twice; None if one is missing."""
    found: list[int] = []
    for word in wanted:
        starts = [match.start() for match in re.finditer(r"\S+(?: \S+)*", header) if match[0] == word]
        if not starts:
            return None
        found.append(next((start for start in starts if not found or start >= found[-1]), starts[0]))
    return found


def cell(line: str, start: int) -> str:
    """What stands in a column; empty where the row has nothing there."""
    if line[start - 1 : start].strip() or not line[start : start + 1].strip():
        return ""
    return re.split(r"\s{2,}", line[start:])[0].strip()


def parse_columns(text: str) -> tuple[list[tuple[str, list[str]]], int]:
    """`x[m k], w[k] -> y[m]`: header word and dim names of each tensor, and how many are inputs."""
    sides = text.split(" -> ")
    found = [
        [(m[1].strip(), m[2].split()) for m in re.finditer(r"([^,\[]+)\[([^\]]*)\]", side)] for side in sides
    ]
    return [*found[0], *found[1]], len(found[0])


def documented(table: Table, docstring: str) -> set[Row]:
    """Exact rows of the one table that has all the columns."""
    tensors, n_inputs = parse_columns(table.columns)
    words = [name for name, _ in tensors]
    block, places = next(
        ((block, places) for block in blocks(docstring) if (places := columns(block[0], words)) is not None),
        ([], []),
    )
    assert places, f"no table of {table.file} has the columns {words}"
    rows: set[Row] = set()
    for line in block[1:]:
        cells = [cell(line, start) for start in places]
        if not any(cells) or any(part in line for part in table.leave_out):
            continue
        assert all(CELL.match(c) for c in cells), (
            f"{table.file}: not a role in every column: `{line.strip()}`"
        )
        remark = line[max(places) :]
        names = dict(table.names)
        for part, meant in table.where.items():
            names.update(meant if part in remark else {})
        rows |= expanded(cells, [dims for _, dims in tensors], n_inputs, names)
    return rows


def expanded(cells: list[str], dims: list[list[str]], n_inputs: int, names: dict[str, str]) -> set[Row]:
    """A written row for every alternative and every dim that its names stand for."""
    rows: set[Row] = set()
    used = {name for c in cells for name in re.findall(r"S\(([\w']+)\)", c)}
    stands = {name: names.get(name, name).split() for name in used}
    for chosen in product(*stands.values()):
        meant = dict(zip(stands, chosen, strict=True))
        for options in product(*(c.split("|") for c in cells)):
            roles = [role(option, meant, d) for option, d in zip(options, dims, strict=True)]
            if "absent" not in roles:
                rows.add((tuple(roles[:n_inputs]), tuple(roles[n_inputs:])))
    return rows


def role(text: str, meant: dict[str, str], dims: list[str]) -> Role:
    if not text.startswith("S("):
        return text
    name = meant[text[2:-1]]
    # A dim that this tensor lacks: the row is about another one (`d is kept`, `d is reduced`).
    return dims.index(name) if name in dims else "absent"


def in_use(call: Call) -> set[Row]:
    """The rules that the operator has, on one axis of 2 devices."""
    bench = Bench(call, DeviceMesh("cpu", [0, 1]))
    rules = Rules(bench)
    found: set[Row] = set()
    for roles in product(*(roles_of(x, x is not None and x.is_floating_point()) for x in call.inputs)):
        outputs = rules.outputs(roles, bench.layouts([(r,) for r in roles]))
        if outputs is not None:
            found.add((roles, tuple(layout.role(0) for layout in outputs)))
    return found


def docstring_of(file: str) -> str:
    text = PATHS[file].read_text(encoding="utf-8")
    return text.split('"""')[1]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t.file}-{t.call.param.op}")
def test_the_table_is_the_rules_in_use(table: Table) -> None:
    written, used = documented(table, docstring_of(table.file)), in_use(table.call)
    assert written - used == set(), "written, but no rule"
    assert used - written == set(), "a rule, but not written"


FILES = sorted(name for name in PATHS if blocks(docstring_of(name)))


@pytest.mark.parametrize("file", FILES)
def test_every_table_is_compared_or_said_to_be_prose(file: str) -> None:
    compared = {table.file for table in TABLES}
    assert (file in compared) != (file in PROSE), f"{file}: give it a line in TABLES, or its reason in PROSE"


def test_prose_is_not_stale() -> None:
    assert PROSE.keys() <= set(FILES)


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (("P       R       P", "P       R       R"), {(("P", "R"), ("R",))}),
        (("S(m)    R       S(m)", "S(k)    R       S(m)"), {((1, "R"), (0,))}),
        (("R       S(n)    S(n)\\n", ""), set()),
    ],
)
def test_a_wrong_table_is_seen(change: tuple[str, str], written: set[Row]) -> None:
    table = TABLES[0]
    text = docstring_of(table.file)
    changed = text.replace(change[0].replace("\\n", "\n"), change[1], 1)
    assert changed != text
    found, used = documented(table, changed), in_use(table.call)
    assert found - used == written
    assert used - found != set()
