"""What a pass is: a name and rows of (pattern, rewrite)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtorch.inductor.mode import MODES
from dtorch.plan.passes.draft import Change, Draft


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        pattern: of a draft and a node, what is found there, None for nothing.
        rewrite: of a draft, the node and what was found, changes the draft; gives the reason in words.
        nodes: of a draft, the node and what was found, the nodes that a listing shows.
    """

    pattern: Callable[[Draft, int], Any]
    rewrite: Callable[[Draft, int, Any], str]
    nodes: Callable[[Draft, int, Any], tuple[int, ...]] = lambda draft, node, found: (node,)


@dataclass(frozen=True)
class Pass:
    """A table of rewrites, tried at every node of a sequence.

    Attributes:
        name: by which it is switched.
        does: in a few words.
        rows: tried in order; what one has rewritten the next one sees.
        backwards: whether nodes are looked at from the last to the first.
        modes: of `dtorch.optimize` under which it runs; under "fast" alone where it changes rounding.
        when: whether a draft has anything that it could rewrite, for passes that look at much.
    """

    name: str
    does: str
    rows: tuple[Row, ...]
    backwards: bool = False
    modes: tuple[str, ...] = MODES
    when: Callable[[Draft], bool] = lambda draft: True

    def run(self, draft: Draft) -> None:
        """Rewrite what matches, by each row in turn."""
        if not self.when(draft):
            return
        for node in draft.order[::-1] if self.backwards else list(draft.order):
            for row in self.rows:
                found = row.pattern(draft, node) if node in draft.place else None
                if found is not None:
                    self._apply(draft, node, row, found)

    def _apply(self, draft: Draft, node: int, row: Row, found: Any) -> None:
        shown = row.nodes(draft, node, found)
        before = tuple(map(draft.operator, shown))
        why = row.rewrite(draft, node, found)
        after = tuple([draft.operator(n) for n in shown if n in draft.place])
        draft.changes.append(Change(self.name, node, before, after, why))
