"""Files of the report's page, and the colours that figures share with it."""

from __future__ import annotations

import re
from importlib import resources


def asset(name: str) -> str:
    """The text of a file in the folder `page`."""
    return resources.files("dtorch.report").joinpath("page", name).read_text(encoding="utf-8")


def light_colours() -> dict[str, str]:
    """Name -> colour of the page's light theme, which is the first block of its style."""
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", asset("page.css").partition("}")[0]))
