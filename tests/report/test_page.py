"""The page in a real browser: figures drawn, filters and themes at work, users' names left text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from dtorch.report.html import page as html_of
from dtorch.report.quantity import quantity, share
from tests.report import sample
from tests.report.conftest import opening

FIGURES = ("roofline", "moves", "modules", "memory", "communication", "timeline")


@pytest.fixture(scope="module")
def content() -> str:
    return html_of(sample.report())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_drawn(show: Any, content: str, theme: str) -> None:
    shown = show(content, color_scheme=theme)
    for name in FIGURES:
        drawn = shown.page.locator(f"#{name}-figure .main-svg").first
        assert drawn.bounding_box()["height"] > 100
    assert shown.page.locator("#roofline-figure .points path").count() > 10
    assert shown.page.locator("#moves-figure .points path").count() > 2
    assert shown.page.locator("#modules-figure path.surface").count() > 10
    assert shown.page.locator("#memory-figure .scatterlayer .trace").count() == 6
    assert shown.page.locator("#communication-figure .point path").count() == 2
    assert shown.page.locator("#timeline-figure .point path").count() > 300
    assert shown.page.evaluate("document.documentElement.dataset.theme") == theme


def test_cards_say_the_numbers_of_the_report(seen: Any, data: dict[str, Any]) -> None:
    total = data["total"]
    cards = seen.text("#cards")
    for text in (
        quantity(total["time_s"], "s"),
        quantity(total["flops"]),
        quantity(total["peak_memory_bytes"], "B"),
        share(total["peak_memory_bytes"], data["device"]["capacity"]),
        quantity(total["communication_bytes_max_device"], "B"),
        str(total["kernels"]),
    ):
        assert text in cards
    assert "16 devices (dp=2 over ib-ndr, tp=8 over nvlink); h100-sxm, theoretical roofs" in seen.text(
        "#where"
    )


def test_the_roofline_names_roof_and_ridge(seen: Any) -> None:
    texts = seen.page.locator("#roofline-figure .annotation-text").all_text_contents()
    assert {"bf16 989 TFLOP/s", "ridge 295 FLOP/B", "3.35 TB/s"} <= {" ".join(text.split()) for text in texts}


def test_a_measured_point_above_its_roof_is_flagged(seen: Any) -> None:
    assert seen.text("#roofline-above").startswith("1 measured point above the roof")
    inside = """() => {
        const figure = document.getElementById("roofline-figure");
        const flagged = figure.data.find((trace) => trace.name === "measured above its roof");
        const [low, high] = figure.layout.yaxis.range;
        return flagged.y.every((rate) => low < Math.log10(rate) && Math.log10(rate) < high);
    }"""
    assert seen.page.evaluate(inside)


def test_a_marker_says_what_it_is_and_lists_its_operators(show: Any, content: str) -> None:
    shown = show(content)
    shown.page.locator("#roofline-figure").scroll_into_view_if_needed()
    box = shown.page.locator("#roofline-figure .points path").first.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = shown.page.locator("#roofline-figure .hovertext")
    hover.wait_for()
    for word in ("Matmul", "model.", "bfloat16[8192", "Shard(0)", "FLOP", "MB", "bound by compute"):
        assert word in hover.text_content()
    shown.page.mouse.down()
    shown.page.mouse.up()
    shown.page.locator("#filter-clear").wait_for()
    assert {row[1] for row in shown.rows()} == {"Matmul"}
    shown.page.click("#filter-clear")
    assert shown.text("#count").startswith("367 of 367")


def test_words_and_choices_filter(show: Any, content: str, data: dict[str, Any]) -> None:
    shown = show(content)
    shown.page.fill("#filter-text", "layers.3. MLP matmul")
    wanted = [o for o in data["operators"] if o["kind"] == "Matmul" and "layers.3.mlp" in o["module"]]
    assert shown.text("#count").startswith(f"{len(wanted)} of 367 operators")
    assert [int(row[0]) for row in shown.rows()] == [operator["index"] for operator in wanted]
    shown.page.select_option("#filter-phase", "backward")
    assert {row[3] for row in shown.rows()} == {"backward"}
    shown.page.fill("#filter-text", "no such word")
    assert shown.rows() == []
    shown.page.click("#filter-clear")
    shown.page.select_option("#filter-bound", "communication")
    assert {row[1] for row in shown.rows()} == {"Convert"}


def test_columns_sort(show: Any, content: str, data: dict[str, Any]) -> None:
    shown = show(content)
    times = sorted(data["operators"], key=lambda operator: (-operator["time_s"], operator["index"]))
    shown.page.click("th[data-key=time_s] button")
    assert [int(row[0]) for row in shown.rows()][:15] == [operator["index"] for operator in times[:15]]
    assert shown.page.get_attribute("th[data-key=time_s]", "aria-sort") == "descending"
    shown.page.click("th[data-key=time_s] button")
    assert shown.page.get_attribute("th[data-key=time_s]", "aria-sort") == "ascending"
    # What has no FLOPs stands last, either way.
    for _ in range(2):
        shown.page.click("th[data-key=flops_max_device] button")
        assert all(row[4] != "-" for row in shown.rows())
    shown.page.click("th[data-key=kind] button")
    assert shown.rows()[0][1] == "Activation"


def test_keys_move_through_the_table(show: Any, content: str, data: dict[str, Any]) -> None:
    shown = show(content)
    shown.page.focus("#grid")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        shown.page.keyboard.press(key)
    operator = data["operators"][2]
    assert f"2: {operator['describe']}" in shown.text("#detail")
    assert operator["source"] in shown.text("#detail")
    shown.page.keyboard.press("End")
    assert f"{len(data['operators']) - 1}: " in shown.text("#detail")
    assert shown.page.locator("tr[aria-selected=true]").is_visible()


def test_the_theme_button_changes_page_and_figures(show: Any, content: str) -> None:
    shown = show(content, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    font = "document.getElementById('roofline-figure').layout.font.color"
    before = shown.page.evaluate(f"[{ground}, {font}]")
    shown.page.click("#theme")
    after = shown.page.evaluate(f"[{ground}, {font}]")
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert shown.page.get_attribute("#theme", "aria-pressed") == "true"
    shown.page.click("#theme")
    assert shown.page.evaluate(f"[{ground}, {font}]") == before
    shown.page.emulate_media(color_scheme="dark")
    shown.page.locator("html[data-theme=dark]").wait_for()
    assert shown.page.evaluate(f"[{ground}, {font}]") == after


def test_layers_are_one_or_apart(show: Any, content: str) -> None:
    shown = show(content)
    ids = "document.getElementById('modules-figure').data[0].ids"
    assert "/model/layers.*/mlp/" in shown.page.evaluate(ids)
    shown.page.check("#apart")
    assert "/model/layers/3/mlp/" in shown.page.evaluate(ids)


def test_names_of_the_users_code_stay_text(show: Any, content: str) -> None:
    shown = show(content)
    shown.page.fill("#filter-text", "head.<script>")
    assert shown.rows()[0][2] == sample.HOSTILE_MODULE
    shown.page.focus("#grid")
    shown.page.keyboard.press("ArrowDown")
    assert sample.HOSTILE_SOURCE in shown.text("#detail")
    assert "General(<b>nonzero</b>)" in shown.text("#unknown-list")
    labels = shown.page.evaluate("document.getElementById('modules-figure').data[0].labels")
    assert any("&lt;script&gt;" in label for label in labels)
    assert shown.page.evaluate("window.broken") is None
    assert shown.page.locator("main img, main script").count() == 0


def test_the_title_stays_text(show: Any, data: dict[str, Any]) -> None:
    title = "</title></script><script>window.broken = 1</script>$css"
    shown = show(html_of({**data, "title": title}))
    assert shown.page.title() == title
    assert shown.text("#title") == title
    assert shown.page.evaluate("window.broken") is None


def test_thousands_of_operators_filter_and_sort(show: Any) -> None:
    shown = show(html_of(sample.report(115)))
    assert len(shown.rows()) < 100
    shown.page.evaluate("""() => {
        const input = document.getElementById("filter-text");
        input.value = "layers.9 matmul";
        input.dispatchEvent(new Event("input"));
        document.querySelector("th[data-key=time_s] button").click();
    }""")
    assert re.match(r"[\d,]+ of 5,\d{3} operators", shown.text("#count"))


def test_without_a_device_there_are_no_times(show: Any, data: dict[str, Any]) -> None:
    bare = {"time_s": None, "start_s": None, "bound": None, "measured_s": None}
    operators = [{**operator, **bare} for operator in data["operators"]]
    memory = [{**step, "t_s": None} for step in data["memory"]]
    total = {**data["total"], "time_s": None}
    shown = show(html_of({**data, "device": None, "operators": operators, "memory": memory, "total": total}))
    for name in ("roofline", "moves", "modules", "timeline"):
        assert shown.text(f"#{name}-figure") == "No device was named, so nothing has a time."
    assert shown.page.locator("#memory-figure .scatterlayer .trace").count() == 6
    assert shown.page.locator("#communication-figure .point path").count() == 2


def test_measured_times_of_no_device_are_a_timeline(show: Any, data: dict[str, Any]) -> None:
    bare = {"time_s": None, "start_s": None, "bound": None}
    operators = [{**operator, **bare} for operator in data["operators"]]
    measured = sum(operator["measured_s"] is not None for operator in operators)
    total = {**data["total"], "time_s": None}
    shown = show(html_of({**data, "device": None, "operators": operators, "memory": [], "total": total}))
    assert shown.page.locator("#timeline-figure .point path").count() == measured


def test_a_report_of_nothing_shows_nothing(show: Any, data: dict[str, Any]) -> None:
    empty = {"operators": [], "memory": [], "memory_peak_holders": [], "unknown": []}
    total = dict.fromkeys(data["total"], 0)
    shown = show(html_of({**data, **empty, "total": total}))
    assert "Nothing is held" in shown.text("#memory-figure")
    assert "None: every operator is priced" in shown.text("#unknown-list")


@pytest.mark.parametrize("unit", ["", "B", "s", "FLOP/s"])
def test_the_page_writes_numbers_as_the_tables_do(seen: Any, unit: str) -> None:
    values = [None, 0, 1, 12, 999.4, 999.6, 1000, 1234, 999_600, 5.5e7, 3.14159e9, 2e12, 9.894e14, 1e18]
    values += [794.5, 1.125, 12.25e3, 2.5, 999.5, 1e19]
    values += [0.5, 2.5e-3, 1.23456e-6, 7e-10] if unit == "s" else []
    written = seen.page.evaluate(
        "([values, unit]) => values.map((value) => quantity(value, unit))", [values, unit]
    )
    assert written == [quantity(value, unit) for value in values]


def test_the_page_writes_shares_as_the_tables_do(seen: Any) -> None:
    parts = [0, 1, 12.25, 33.35, 0.05, 99.95, 100, 250]
    written = seen.page.evaluate("(parts) => parts.map((part) => share(part, 100))", parts)
    assert written == [share(part, 100) for part in parts]


@pytest.mark.parametrize(
    "content",
    [
        "<script>console.error('a complaint')</script>",
        "<script>undefined_function()</script>",
        "<img src='http://127.0.0.1:9/picture.png'>",
    ],
)
def test_the_watch_over_a_page_can_fail(browser: Any, tmp_path: Path, content: str) -> None:
    with pytest.raises(AssertionError), opening(browser, tmp_path) as opener:
        opener(f"<!DOCTYPE html><link rel='icon' href='data:,'>{content}").page.wait_for_timeout(200)
