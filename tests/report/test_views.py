"""What is shown of a report: groups add up to the whole, points lie where the formulas put them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dtorch.report import roofline, views
from dtorch.report.quantity import quantity, share
from tests.report import sample


def total(data: dict[str, Any], name: str) -> float:
    return sum(operator[name] or 0 for operator in data["operators"])


@pytest.mark.parametrize("grouped", [views.by_kind, views.by_phase, views.by_module])
def test_groups_add_up_to_the_whole(data: dict[str, Any], grouped: Any) -> None:
    rows = grouped(data)
    assert sum(row.uses for row in rows) == len(data["operators"])
    assert sum(row.flops for row in rows) == total(data, "flops_max_device")
    assert sum(row.sent for row in rows) == total(data, "sent_bytes_max_device")
    assert sum(row.time for row in rows) == pytest.approx(total(data, "time_s"))
    assert sum(sum(row.by_bound.values()) for row in rows) == pytest.approx(total(data, "time_s"))
    whole = views.merged(rows, "all")
    assert (whole.uses, whole.flops) == (len(data["operators"]), total(data, "flops_max_device"))


def test_phases_keep_their_order(data: dict[str, Any]) -> None:
    assert [row.name for row in views.by_phase(data)] == ["forward", "backward", "optimizer"]


def test_layers_are_taken_together_as_deep_as_rows_allow(data: dict[str, Any]) -> None:
    names = [row.name for row in views.by_module(data)]
    assert "model.layers.*.mlp.gate_proj" in names
    assert [row.name for row in views.by_module(data, rows=3) if row.name.startswith("model")] == ["model"]
    assert all(len(views.by_module(data, rows=rows)) <= rows for rows in (4, 6, 10, 20))


def named(data: dict[str, Any], calls: list[tuple[str, str]]) -> list[str]:
    """The names under which calls, each (module, kind), are taken together."""
    operators = [{**data["operators"][1], "module": module, "kind": kind} for module, kind in calls]
    found = views.together({**data, "operators": operators})
    return [".".join(found[module]) for module, _ in calls]


def test_only_alike_numbered_modules_are_taken_together(data: dict[str, Any]) -> None:
    assert named(data, [("0", "Conv"), ("1", "BatchNorm"), ("2", "ReLU")]) == ["0", "1", "2"]
    assert named(data, [("a.0", "Conv"), ("a.1", "ReLU"), ("a.2", "Conv")]) == ["a.0,2", "a.1", "a.0,2"]
    assert named(data, [(f"{n}.f", "Add") for n in range(3)]) == ["*.f"] * 3
    assert named(data, [*((f"m.{n}", "Add") for n in (11, 4, 9, 8)), ("m.5", "Mul")])[3:] == [
        "m.4,8,..,11",
        "m.5",
    ]
    nested = [(f"b.{n}.s.{m}", kind) for n in range(2) for m, kind in enumerate(("Conv", "ReLU"))]
    assert named(data, nested) == ["b.*.s.0", "b.*.s.1"] * 2
    assert named(data, [("only.3", "Add"), ("", "Mul")]) == ["only.3", ""]


def test_the_tree_of_modules_holds_all_time(data: dict[str, Any]) -> None:
    for apart in (False, True):
        nodes = views.module_tree(data, apart=apart)
        leaves = [node for node in nodes if node["leaf"]]
        assert sum(node["time"] for node in leaves) == pytest.approx(total(data, "time_s"))
        seen = {""}
        for node in nodes:
            assert node["parent"] in seen
            assert node["id"] not in seen
            seen.add(node["id"])


def test_a_module_named_like_a_kind_is_not_mixed_up_with_it(data: dict[str, Any]) -> None:
    first = {**data["operators"][2], "module": "a", "kind": "b"}
    second = {**first, "module": "a.b", "kind": "b"}
    nodes = views.module_tree({**data, "operators": [first, second]})
    assert [node["id"] for node in nodes] == ["/", "/a/", "/a/b#", "/a/b/", "/a/b/b#"]


def test_exchanges_are_told_apart_by_kind_axes_and_choice(data: dict[str, Any]) -> None:
    rows = views.exchanges(data)
    assert [(row.axes, row.chosen, row.cause, row.times) for row in rows] == [
        ("tp", "implicit", "BroadcastBinary", 32),
        ("dp", "asked for", "gradient or user", 8),
    ]
    assert sum(row.bytes for row in rows) == data["total"]["communication_bytes_max_device"]


def test_a_roof_meets_its_bandwidth_at_the_ridge(data: dict[str, Any]) -> None:
    (roof,) = roofline.roofs(data)
    assert (roof.name, roof.peak) == ("bf16", 989.4e12)
    assert roof.ridge == 989.4e12 / 3350e9
    assert roof.at(roof.ridge / 2) == pytest.approx(roof.peak / 2)
    assert roof.at(roof.ridge * 2) == roof.peak


def test_one_roof_per_dtype_in_use(data: dict[str, Any]) -> None:
    float32 = [{**operator, "peak": operator["peak"] and "fp32"} for operator in data["operators"][:20]]
    found = roofline.roofs({**data, "operators": [*float32, *data["operators"][20:]]})
    assert [roof.name for roof in found] == ["bf16", "fp32"]
    assert roofline.roofs({**data, "device": None}) == []


def test_no_predicted_point_is_above_its_roof(data: dict[str, Any]) -> None:
    tops = {roof.name: roof for roof in roofline.roofs(data)}
    points = roofline.points(data)
    assert all(point.rate <= tops[point.roof].at(point.x) * 1.001 for point in points)
    with_flops = [o for o in data["operators"] if o["flops_max_device"] and o["time_s"]]
    assert sum(len(point.indices) for point in points) == len(with_flops)


def test_what_has_no_flops_stands_by_its_bytes(data: dict[str, Any]) -> None:
    tops = {roof.name: roof for roof in roofline.byte_roofs(data)}
    assert {name: roof.peak for name, roof in tops.items()} == {"memory": 3350e9, "link": 450e9}
    moves = roofline.moves(data)
    assert all(point.rate <= tops[point.roof].at(point.x) * 1.001 for point in moves)
    timed = [o for o in data["operators"] if o["time_s"] and not o["flops_max_device"]]
    assert sum(len(point.indices) for point in moves) == len(timed)
    everything = sum(point.time for point in roofline.points(data) + moves)
    assert everything == pytest.approx(total(data, "time_s"))


def test_a_measured_point_above_its_roof_is_kept_and_flagged(data: dict[str, Any]) -> None:
    (flagged,) = [point for point in roofline.points(data) if point.above]
    assert flagged.measured_rate == pytest.approx(flagged.rate / 0.8)
    quiet = roofline.points(sample.report(measured=False))
    assert not any(point.above or point.measured_rate for point in quiet)


def test_one_point_measured_below_its_roof_does_not_hide_one_above(data: dict[str, Any]) -> None:
    above = {**data["operators"][2], "measured_s": data["operators"][2]["time_s"] / 2}
    below = {**above, "index": 3, "measured_s": above["time_s"] * 2}
    (point,) = roofline.points({**data, "operators": [above, below]})
    assert point.above
    assert point.indices == [2, 3]


def test_the_timeline_has_every_operator_that_takes_time(data: dict[str, Any]) -> None:
    segments = views.timeline(data)
    timed = [operator for operator in data["operators"] if operator["time_s"]]
    streams = Counter(segment.stream for segment in segments)
    assert streams["compute"] + streams["communicate"] == len(timed)
    assert streams["measured"] == sum(operator["measured_s"] is not None for operator in data["operators"])
    assert [segment.start for segment in segments] == sorted(segment.start for segment in segments)


def test_a_long_timeline_is_shortened_and_loses_no_operator() -> None:
    data = sample.report(60)
    short, full = views.timeline(data, limit=200), views.timeline(data, limit=None)
    assert len(short) < len(full)
    assert sum(segment.count for segment in short) == len(full)
    for stream in ("compute", "communicate"):
        ends = [max(s.start + s.time for s in found if s.stream == stream) for found in (short, full)]
        assert ends[0] == pytest.approx(ends[1])


def test_the_peak_is_the_fullest_step(data: dict[str, Any]) -> None:
    peak = views.memory_peak(data)
    assert peak is not None
    assert sum(peak["bytes"].values()) == data["total"]["peak_memory_bytes"]
    assert views.memory_peak({**data, "memory": []}) is None


def test_utilisation_is_of_the_highest_roof_in_use(data: dict[str, Any]) -> None:
    total_ = data["total"]
    expected = total_["flops_max_device"] / total_["time_s"] / 989.4e12
    assert roofline.utilisation(data) == pytest.approx(expected)
    assert roofline.utilisation({**data, "device": None}) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "B", "-"),
        (0, "B", "0 B"),
        (999, "", "999"),
        (1000, "B", "1 kB"),
        (999_600, "B", "1 MB"),
        (999.6, "", "1 k"),
        (1234567, "B", "1.23 MB"),
        (9.894e14, "FLOP/s", "989 TFLOP/s"),
        (3.1e18, "", "3.1 E"),
        (2.5e-3, "s", "2.5 ms"),
        (1.3e-5, "s", "13 µs"),
        (4e-10, "s", "4e-10 s"),
        (90.0, "s", "90 s"),
        (0.25, "FLOP/B", "0.25 FLOP/B"),
    ],
)
def test_numbers_have_units(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_share_of_nothing_is_a_dash() -> None:
    assert share(1, 8) == "12.5 %"
    assert share(0, 0) == "-"
