"""The process that has other libraries: in this interpreter, whose NumPy is always there."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.errors import UsageError
from mileage.profiling.bench.cases import Way
from primitives import arms as peer_arms
from primitives import worker
from primitives.arms import Peer
from primitives.process import PeerGoneError, PeerLibraries, ProcessChannel

GAE = {"primitive": "gae", "params": {"n_envs": 3, "horizon": 5, "threads": 1}}


def install(monkeypatch: pytest.MonkeyPatch, name: str, *ways: Way) -> None:
    """Give GAE a library called `name` with these ways to do it."""

    class Fake(Peer):
        def arms(self, params: Any) -> list[Way]:
            return list(ways)

    peers = (*peer_arms.PEERS["gae"], Fake(name, (), ""))
    monkeypatch.setitem(peer_arms.PEERS, "gae", peers)


def test_a_conversation() -> None:
    requests = [
        {"do": "hello"},
        {"do": "build", "key": "a", "library": "NumPy", **GAE},
        {"do": "sample", "key": "a", "repeats": 2},
        {"do": "drop"},
        {"do": "sample", "key": "a", "repeats": 2},
        {"do": "dance"},
    ]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(each) + "\n" for each in requests)), answers)
    hello, built, sample, dropped, gone, unknown = map(json.loads, answers.getvalue().splitlines())
    assert "NumPy" in hello["libraries"]
    assert hello["versions"]["NumPy"] == np.__version__
    assert built == {"label": "", "units": 1}
    assert sample["wall"] > 0.0
    assert dropped == {}
    assert gone == {"absent": "KeyError: 'a'"}
    assert unknown == {"absent": "KeyError: 'dance'"}


def test_a_wrong_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Way(lambda: (np.zeros((5, 3)), np.zeros((5, 3))), answer=tuple)
    install(monkeypatch, "Sloppy", wrong)
    answer = worker.Worker().reply({"do": "build", "key": "a", "library": "Sloppy", **GAE})
    assert answer == {"absent": "its answer differs from NumPy's"}


def test_the_fastest_way_stands_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def way(label: str) -> Way:
        return Way(lambda: calls.append(label), label=label, units=3)

    install(monkeypatch, "Swift", way("slow"), way("quick"))
    monkeypatch.setattr(worker, "_quick_seconds", lambda each: {"slow": 2.0, "quick": 1.0}[each.label])
    asked = worker.Worker()
    assert asked.reply({"do": "build", "key": "a", "library": "Swift", **GAE}) == {"label": "quick", "units": 3}
    asked.reply({"do": "sample", "key": "a", "repeats": 4})
    assert calls == ["quick"] * 4


def test_a_library_that_cannot_do_the_job_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "Mute")
    answer = worker.Worker().reply({"do": "build", "key": "a", "library": "Mute", **GAE})
    assert answer == {"absent": "does not do this"}


@pytest.fixture
def channel() -> Iterator[ProcessChannel]:
    opened = ProcessChannel(sys.executable)
    yield opened
    opened.close()


def test_another_process_times_arms_and_is_heard_when_it_ends(channel: ProcessChannel) -> None:
    libraries = PeerLibraries(channel, threads=1)
    assert "NumPy" in libraries.libraries
    (arm,) = libraries.arms("GAE", "gae", {"n_envs": 3, "horizon": 5}, set(libraries.libraries) - {"NumPy"})
    timer = arm.subject.timer
    assert timer is not None
    assert timer(3)[0] > 0.0
    libraries.drop()
    with pytest.raises(UsageError, match="GAE/NumPy failed while it was timed"):
        timer(1)
    channel._process.kill()
    with pytest.raises(PeerGoneError, match="has ended"):
        libraries.drop()


def test_what_is_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot start .*nowhere.*--peer-python"):
        ProcessChannel(tmp_path / "nowhere")
