from __future__ import annotations

import re
import xml.dom.minidom

import pytest

from mileage.report.axes import Area, Scale, compact, decades, legend, padded, seconds, ticks, usd
from mileage.report.bars import (
    Axis,
    BarSpan,
    Curve,
    Steps,
    curve_chart,
    interval_chart,
    ordered_phases,
    phase_bar,
    phase_bars,
    phase_class,
    phases_over_time,
    profile_chart,
    sparkline,
)
from mileage.report.markup import ARMS, theme


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 10.0, 5) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert ticks(-0.3, 1.1, 5) == pytest.approx([0.0, 0.5, 1.0])
    assert ticks(3.0, 3.0) == [3.0]
    assert decades(0.5, 30.0) == pytest.approx([0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
    assert decades(1e-3, 1e5) == pytest.approx([10.0**p for p in range(-3, 6)])


def test_scales_place_values() -> None:
    assert Scale(0.0, 10.0, 100.0, 200.0)(2.5) == 125.0
    assert Scale(1.0, 100.0, 0.0, 50.0, log=True)(10.0) == pytest.approx(25.0)
    assert Scale(5.0, 5.0, 0.0, 50.0)(5.0) == 25.0
    assert padded([1.0, 3.0], 0.5) == (0.0, 4.0)
    assert padded([]) == (0.0, 1.0)
    assert padded([float("nan"), 2.0]) == pytest.approx((1.8, 2.2))


def test_numbers_of_axes() -> None:
    assert [compact(value) for value in (500, 20_000, 1_500_000, 2e9)] == ["500", "20k", "1.5M", "2G"]
    assert [seconds(value) for value in (2.5, 660, 7200)] == ["2.5 s", "11 min", "2 h"]
    assert [usd(value) for value in (0, 1.5, 0.0025, 0.00003)] == ["$0", "$1.5", "$0.0025", "$0.00003"]


def points(svg: str, class_: str) -> list[tuple[float, float]]:
    """The places that a path of a class goes through."""
    found = re.search(rf'<path d="M([^"]*)" class="{class_}"', svg)
    assert found is not None, class_
    return [tuple(float(x) for x in pair.split(",")) for pair in found[1].rstrip("Z").split("L")]  # type: ignore[misc]


def test_a_curve_is_where_its_numbers_are() -> None:
    area = Area(height=140, left=20, top=20)
    curve = Curve("arm", ((0.0, 0.0), (100.0, 100.0)), (0.0, 90.0), (10.0, 110.0), reached=((100.0, 100.0),))
    svg = curve_chart([curve], Axis("steps"), Axis("return"), target=50.0, area=area)
    x, y = area.x(0.0, 102.0), area.y(-6.6, 116.6)
    expected = [(x(0.0), y(0.0)), (x(100.0), y(100.0))]
    assert points(svg, "curve c0") == [pytest.approx(point, abs=0.06) for point in expected]
    band = points(svg, "band c0")
    assert band[0] == pytest.approx((x(0.0), y(0.0)), abs=0.06)
    assert band[2] == pytest.approx((x(100.0), y(110.0)), abs=0.06)
    assert f'y1="{y(50.0):.1f}"' in svg.replace(".0", ".0")
    assert "first evaluation that met the target" in svg
    xml.dom.minidom.parseString(svg)


def test_names_of_others_do_nothing_in_a_chart() -> None:
    evil = "<script>x</script>\"'"
    curves = [Curve(evil, ((0.0, 1.0), (1.0, 2.0)))]
    charts = (
        curve_chart(curves, Axis(evil), Axis(evil)),
        phase_bars([(evil, {evil: 1.0, "learn": 2.0})]),
        interval_chart([BarSpan(evil, 1.0, 0.5, 2.0, ((1.0, True), (2.0, False)), evil)], evil, str),
        profile_chart([Steps(evil, (0.0, 1.0), (1.0, 0.0))], Axis(evil)),
        phases_over_time([(1.0, {evil: 1.0}), (2.0, {evil: 1.5, "learn": 0.5})]),
    )
    for svg in charts:
        xml.dom.minidom.parseString(svg)
        assert "<script" not in svg


def test_bars_are_as_long_as_their_seconds() -> None:
    svg = phase_bars([("arm", {"learn": 3.0, "eval": 1.0})])
    widths = {cls: float(w) for w, cls in re.findall(r'width="([\d.]+)" height="28" class="(p-[a-z]+)"', svg)}
    assert widths["p-learn"] == pytest.approx(3 * widths["p-eval"], rel=0.01)
    assert widths["p-learn"] + widths["p-eval"] == pytest.approx(720 - 150 - 18, abs=0.2)


def test_phases_are_in_the_order_of_a_run_and_other_is_last() -> None:
    assert ordered_phases([{"other": 1.0, "mine": 1.0, "eval": 1.0}, {"init": 1.0, "learn": 0.0}]) == [
        "init", "eval", "mine", "other",
    ]  # fmt: skip
    assert [phase_class(name) for name in ("env_step", "mine")] == ["p-env-step", "p-own"]


def test_an_interval_without_an_upper_end_reaches_the_edge() -> None:
    svg = interval_chart([BarSpan("a", 1.0, 0.5, None, said="1")], "cost", str)
    assert f'x2="{720 - 18}"' in svg


def test_a_failed_run_is_at_the_edge_whatever_it_spent() -> None:
    svg = interval_chart(
        [BarSpan("a", 10.0, samples=((10.0, True), (0.1, False), (0.2, False)), said="10")], "cost", str
    )
    assert svg.count('class="failed c0"') == 1
    assert f'd="M{720 - 18 - 3.5}' in svg
    assert "2 failed" in svg
    assert "logarithmic" not in svg  # nor does it stretch the axis


def test_an_arm_without_anything_to_draw_keeps_its_colour() -> None:
    curves = curve_chart([Curve("a", ()), Curve("b", ((0.0, 1.0), (1.0, 2.0)))], Axis("x"), Axis("y"))
    profiles = profile_chart([Steps("a", (), ()), Steps("b", (0.0, 1.0), (1.0, 0.0))], Axis("x"))
    for svg in (curves, profiles):
        assert "curve c1" in svg
        assert "curve c0" not in svg
    assert legend([("c0", ""), ("c1", "b")]).count("<li>") == 1


def test_sparkline() -> None:
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([1.0, None, float("nan")]) == "█  "
    assert sparkline([]) == ""
    assert len(sparkline(list(map(float, range(1000))), 40)) == 40
    assert sparkline(list(map(float, range(1000))), 40)[-1] == "█"


def test_a_phase_bar_is_always_as_long_as_asked() -> None:
    bar, said = phase_bar({"learn": 2.0, "eval": 1.0, "other": 1e-9}, 10)
    assert bar == "█" * 7 + "▓" * 3
    assert said == "█ learn 66.7 %  ▓ eval 33.3 %"
    assert phase_bar({}, 10) == ("", "")


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_seen_on_their_paper() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    for found in re.findall(r"color-scheme:(light|dark);([^}]*)}", theme()):
        colours = dict(re.findall(r"--([a-z0-9-]+):(#[0-9a-f]{6})", found[1]))
        for name in ("ink", "soft", "accent", "good", "bad", "wait", *(f"c{i}" for i in range(len(ARMS)))):
            for paper in ("paper", "back"):
                assert contrast(colours[name], colours[paper]) >= 4.5, (found[0], name, paper)
