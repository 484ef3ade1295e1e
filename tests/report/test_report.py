from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run
from shown_runs import exam
from typer.testing import CliRunner

import extras
import mileage
from browser import CHROMIUM
from mileage.cli.app import app
from mileage.errors import UsageError
from mileage.ledger.rows import Run
from mileage.ledger.store import Store
from mileage.report import plot, report
from mileage.report.compare import compare_selections
from mileage.report.replay import DRAWINGS, play, saved
from mileage.report.report import report_of, report_on

LARGEST = 1_500_000


class Elements(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def html(ledger: Path, *selections: str) -> str:
    with Store(ledger) as store:
        return str(report_on(store, selections, replay=False, now=0.0).html())


def test_a_report_asks_nobody_and_names_its_script_by_hash(runs: dict[str, Run], ledger: Path) -> None:
    page = html(ledger, "fast", "slow")
    assert len(page) < LARGEST
    elements = Elements(page).found
    policies = [
        a["content"] for tag, a in elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policies[0]
    fetched = [a for _, a in elements for name in ("src", "href", "action") if (a.get(name) or "#")[0] not in "#d"]
    assert fetched == []
    assert not re.search(r"url\(|@import", page)


def test_words_of_others_are_shown_and_do_nothing(runs: dict[str, Run], ledger: Path) -> None:
    with Store(ledger) as store:
        found = report_on(store, [runs["evil"].run_id, "fast"], replay=False)
    page, said = str(found.html()), found.markdown()
    elements = Elements(page).found
    assert {tag for tag, _ in elements} & {"img", "iframe", "object"} == set()
    assert sum(tag == "script" for tag, _ in elements) == 1
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert "DROP TABLE" in page  # it is shown
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "<script" not in said


def test_the_numbers_of_a_report_are_those_of_the_ledger(runs: dict[str, Run], ledger: Path) -> None:
    page = html(ledger, "fast", "slow")
    with Store(ledger) as store:
        verdict = compare_selections(store, "fast", "slow").verdict
    assert verdict in page
    assert "5 seeds, 4 reached, 1 failed" in page
    for way in ("environment steps", "wall-clock since the start", "dollars billed"):
        assert way in page


def test_different_exams_are_shown_apart_and_refused_in_words(runs: dict[str, Run], ledger: Path) -> None:
    page = html(ledger, "fast", "pendulum")
    assert "Runs that sat different exams are not compared" in page
    assert page.count("<h2>Learning curve</h2>") == 2


def test_builds_and_findings_have_their_sections(runs: dict[str, Run], ledger: Path) -> None:
    page = html(ledger, "builds", "fast")
    assert "Builds as KPIs" in page
    assert "Raw samples" in page
    assert "LEARN-BOUND" in page
    assert "learner_bound" in page


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_writes_what_the_name_ends_with(runs: dict[str, Run], tmp_path: Path) -> None:
    made = json.loads(run_cli("report", "fast", "-o", str(tmp_path / "deep" / "r.html"), "--json"))
    assert made == {"runs": 5, "files": [str(tmp_path / "deep" / "r.html")]}
    assert (tmp_path / "deep" / "r.html").read_text().startswith("<!doctype html>")
    run_cli("report", "fast", "slow", "-o", str(tmp_path / "r.md"))
    assert "## Cost to target" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize("arguments", [("fast", "-o", "r.txt"), ("nobody",), ("fast", "-o", "/proc/nowhere/r.html")])
def test_a_mistake_is_one_sentence(runs: dict[str, Run], arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt install chromium)")
def test_a_picture_of_the_page_is_as_high_as_the_page(runs: dict[str, Run], tmp_path: Path) -> None:
    heights = []
    for number, selections in enumerate((["pendulum"], ["fast", "slow", "pendulum"])):
        run_cli("report", *selections, "-o", str(tmp_path / f"{number}.png"))
        width, height = struct.unpack(">II", (tmp_path / f"{number}.png").read_bytes()[16:24])
        assert width == 1200
        heights.append(height)
    assert heights[1] > heights[0] + 1000
    assert heights[1] > 2400


@extras.needs("figures", "matplotlib")
def test_no_label_of_a_figure_overprints_another(runs: dict[str, Run], ledger: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with Store.reader(ledger) as store:
        (found,) = report_on(store, ["fast", "slow"]).exams
    with rc_context(plot._STYLE):
        for draw in plot._charts(found).values():
            drawn = Figure(figsize=(plot._WIDTH, plot._HEIGHT), layout="constrained")
            axes = drawn.subplots()
            draw(axes)
            drawn.draw_without_rendering()
            shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert all(one.x1 < other.x0 for one, other in itertools.pairwise(shown))


@extras.needs("figures", "matplotlib")
def test_figures_are_written_in_three_formats_and_the_same_twice(runs: dict[str, Run], tmp_path: Path) -> None:
    out = str(tmp_path / "r.html")
    for name in ("one", "two"):
        run_cli("report", "fast", "slow", "-o", out, "--figures", str(tmp_path / name))
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    kinds = ("cost", "curve-dollars", "curve-seconds", "curve-steps", "phases", "profile")
    stem = "cartpole-v1-target-mean-return-475-0"
    assert names == sorted(f"{stem}-{kind}.{end}" for kind in kinds for end in ("pdf", "png", "svg"))
    for name in (name for name in names if name.endswith("svg")):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_episode_is_played_again_as_it_was_recorded(tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    agent = mileage.PPO("CartPole-v1", seed=0, n_envs=2, n_steps=64, minibatch=64, preset="none")
    panel = mileage.Panel.default("CartPole-v1", 7)
    agent.learn(256, panel=panel, eval_every=128, checkpoint=tmp_path / "c.safetensors", ledger=str(ledger), name="p")
    with Store(ledger) as store:
        (run,) = report.loaded(store, report.select(store, ["p"]))
    median, worst = play(run)
    returns = sorted(e.episode_return for e in run.episodes if e.episode_return is not None)
    assert (median.played, worst.played) == (returns[3], returns[0])
    assert len(worst.states) == worst.played  # a reward of one for every step
    page = str(report_of([run]).html())
    assert page.count('class="replay"') == 2
    assert "when it was recorded" not in page
    (tmp_path / "c.safetensors").write_bytes(b"another file")
    assert saved(run) is None  # not the file that the run wrote


def test_a_checkpoint_that_is_the_ledger_itself_is_left_alone(tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    run = make_run(name="self", **exam())
    with Store(ledger) as store:
        rows = [run, make_checkpoint(run, 1, path=str(ledger), sha256="0" * 64), make_end(run)]
        store.deliver(rows)
        (found,) = report.loaded(store, report.select(store, ["self"]))
        assert report_of([found]).sections


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_drawings_are_of_environments_that_are_there(name: str) -> None:
    from mileage.envs.registry import native

    drawing = DRAWINGS[name]
    moved = drawing.place([0.1] * native(name).state_size)
    assert len(moved) == len(drawing.parts)
    assert all(f'data-part="{part}"' in drawing.moving for part in drawing.parts)
