"""A real browser for the tests of the page, and a report to show."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report import sample

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing(reason: str) -> None:
    """Skip with the reason; fail where a browser is required (DTORCH_REQUIRE_BROWSER=1)."""
    if os.environ.get("DTORCH_REQUIRE_BROWSER") == "1":
        pytest.fail(f"DTORCH_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


# A module's, not the session's: while Playwright is on its event loop is this thread's, and asyncio has none.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless chromium of the system, driven by Playwright."""
    path = os.environ.get("DTORCH_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing("there is no chromium (Debian: apt-get install chromium; or name one in DTORCH_BROWSER)")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed (requirements/dev.txt)")
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox to start.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def data() -> dict[str, Any]:
    return sample.report()


class Shown:
    """A page in the browser, and what must not happen on it."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        self.path = path

    def rows(self) -> list[list[str]]:
        """The texts of the rows of operators that are in the document."""
        script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        return self.page.eval_on_selector_all("#grid tbody tr[data-place]", script)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@contextmanager
def opening(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens pages in the browser; afterwards nothing was complained about, and nothing asked for."""
    shown: list[Shown] = []
    contexts: list[Any] = []

    def opener(content: str, **options: Any) -> Shown:
        path = folder / f"report{len(shown)}.html"
        path.write_text(content, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **options))
        shown.append(Shown(contexts[-1].new_page(), path))
        return shown[-1]

    yield opener
    for one in shown:
        assert one.complaints == []
        # Its own file, and what its icon and images hold themselves.
        outside = [url for url in one.requests if not url.startswith(("data:", "blob:"))]
        assert outside == [one.path.as_uri()]
    for context in contexts:
        context.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page for one test."""
    with opening(browser, tmp_path) as opener:
        yield opener


@pytest.fixture(scope="module")
def seen(browser: Any, tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> Iterator[Shown]:
    """The page of the sample, opened once, for tests that only look."""
    pytest.importorskip("plotly")
    from dtorch.report.html import page

    with opening(browser, tmp_path_factory.mktemp("seen")) as opener:
        yield opener(page(data))
