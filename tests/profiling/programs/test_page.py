"""A watched program as a page and in other formats."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mileage.profiling.programs.page import FORMATS, export
from mileage.profiling.programs.report import WIDTH, lines
from mileage.profiling.programs.trace import StackFrame
from mileage.profiling.programs.watch import Watched
from mileage.profiling.traces import icicle, tree
from profiling.programs.made_up import MAIN, STEP, calls, process, watched

HOSTILE = '"><script>document.title="owned"</script><img src=x onerror=alert(1)>\x1b[31m'


def run() -> Watched:
    evil = StackFrame(f"/home/me/{HOSTILE}.py", HOSTILE, 3, 2)
    made = process(
        [([MAIN, STEP], "env.step", 3.0, 1.0), ([MAIN, evil], "", 1.0, 1.0), ([MAIN, STEP], "env.step", 2.0, 1.0)]
    )
    made.calls = calls(env_step=[0.001] * 100)
    return watched(made, ("python", HOSTILE), seconds=(0.0, 3.0, 6.0), rss_gb=(0.1, 0.2, 0.3))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    text = export(run(), "html")
    tags = Tags()
    tags.feed(text)
    names = [name for name, _ in tags.seen]
    assert ("meta", {"charset": "utf-8"}) in tags.seen
    assert any(attributes.get("name") == "viewport" for _, attributes in tags.seen)
    assert "prefers-color-scheme: dark" in text
    assert names.count("script") == 1
    assert not {"img", "link", "iframe", "object", "form"} & set(names)
    assert not re.search(r"(src|href|url\()\s*=?\s*['\"]?\s*(https?:)?//", text)
    assert not any(key.startswith("on") for _, attributes in tags.seen for key in attributes)
    policy = next(each["content"] for name, each in tags.seen if name == "meta" and "http-equiv" in each)
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"'sha256-{digest}'" in policy
    assert "\x1b" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_a_browser_shows_it_and_runs_nothing_of_others(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(export(run(), "html"), encoding="utf-8")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--window-size=390,800",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]  # fmt: skip
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "<title>Profile: python" in found
    assert "<title>owned" not in found
    assert found.count("<button") == len(icicle(tree(run().run)))  # type: ignore[arg-type]


def test_boxes_lie_within_their_callers() -> None:
    watched_run = run().run
    assert watched_run is not None
    boxes = icicle(tree(watched_run))
    assert [(each.box.name[:8], each.depth, round(each.width, 3)) for each in boxes[:2]] == [
        ("the prog", 0, 1.0),
        ("<module>", 1, 1.0),
    ]
    step = next(each for each in boxes if each.box.name == "Walk.step")
    assert (step.depth, step.left, round(step.width, 4)) == (2, 0.0, round(5 / 6, 4))


def test_the_trace_is_the_run_as_it_went() -> None:
    events = json.loads(export(run(), "trace"))["traceEvents"]
    steps = [each for each in events if each.get("name") == "Walk.step"]
    assert [(each["ts"], each["dur"]) for each in steps] == [(0.0, 3e6), (4e6, 2e6)]
    assert [each["dur"] for each in events if each.get("name") == "<module>"] == [6e6]
    assert [each["args"]["GB"] for each in events if each["ph"] == "C"] == [0.1, 0.2, 0.3]
    assert sum(each.get("name") == "env.step" and each["tid"] == 3 for each in events) == 100


def test_speedscope_has_every_sample_with_its_stack() -> None:
    found = json.loads(export(run(), "speedscope"))
    (profile,) = found["profiles"]
    names = [[found["shared"]["frames"][number]["name"] for number in stack] for stack in profile["samples"]]
    assert names[0] == names[2] == ["<module>", "Walk.step"]
    assert profile["weights"] == [3_000_000_000, 1_000_000_000, 2_000_000_000]
    assert profile["endValue"] == sum(profile["weights"])


def test_the_terminal_has_findings_first_within_eighty_columns() -> None:
    shown = lines(run())
    assert max(map(len, shown)) <= WIDTH
    assert shown[0].startswith("ENV-BOUND: 83% of the loop")
    assert shown.index("Where the time goes") > next(
        i for i, line in enumerate(shown) if line.startswith("1. ENV-BOUND")
    )
    assert not any("\x1b" in line for line in shown)
    assert "Where the time goes" not in lines(run(), 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_program_that_could_not_be_watched_has_a_report_too(kind: str) -> None:
    empty = watched(process([([MAIN], "", 1.0, 1.0)]))
    unseen = Watched(
        empty.command,
        empty.ended,
        0,
        type(empty.evidence)(1.0, 1.0, None, (), empty.evidence.resources, empty.evidence.settings),
    )
    text = export(unseen, kind)
    assert kind in ("trace", "speedscope") or "NOT WATCHED" in text
