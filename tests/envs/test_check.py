"""`mileage env check`: every point, on environments that miss it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broken_envs
from mileage import errors
from mileage.cli import main
from mileage.contracts import EnvSpec
from mileage.envs import VecEnv, resolve
from mileage.envs.check import check

PLAIN = "runs in plain Python within its rows"
PLAYS = "plays on, with finite rewards and observations"


def problems(spec: EnvSpec, steps: int = 4000) -> dict[str, str]:
    return {point.name: point.problem for point in check(spec, steps=steps) if not point.ok}


def test_sound_environments_pass_every_point() -> None:
    assert problems(broken_envs.Sound) == {}
    assert problems(broken_envs.Obeying) == {}
    assert problems(resolve("Pendulum-v1")) == {}
    assert problems(resolve("FrozenLake-v1"), 400) == {}
    assert len(list(check(broken_envs.Sound, steps=400))) == 6


@pytest.mark.parametrize(
    ("name", "point", "said"),
    [
        ("RaisingAtOnce", PLAIN, "NotImplementedError: to be written"),
        ("Raising", PLAYS, "ValueError: too far"),
        ("RaisingReset", PLAYS, "RuntimeError: bad start"),
        ("Wide", PLAIN, "beyond a row"),
        ("LateWide", PLAYS, "IndexError"),
        ("NanObserve", PLAIN, "is nan in entry 0"),
        ("LateNan", PLAYS, "an entry of the observation is not finite"),
        ("LateInfinite", PLAYS, "the reward is not finite"),
        ("Wordy", "compiles", "cannot be compiled"),
        ("NumpyDraws", "compiles", "draw from its rng"),
        ("Printing", "compiles", "calls print()"),
    ],
)
def test_every_bug_is_found(name: str, point: str, said: str) -> None:
    found = problems(getattr(broken_envs, name), 40_000)
    assert said in found[point]


def test_an_endless_loop_is_found_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mileage.envs.check._PLAIN_SECONDS", 0.3)
    found = problems(broken_envs.make("EndlessAtOnce", step=broken_envs.endless_step, reset=_far), 400)
    assert "a loop that does not end?" in found[PLAIN]
    assert "broken_envs.py, line" in found[PLAIN]


def test_a_loop_that_starts_late_does_not_hang_the_check() -> None:
    """In a process of its own, as the loop goes on to its end."""
    program = (
        "import mileage.envs.check as check, broken_envs; check._ROUND_SECONDS = 1.0\n"
        "print([point.problem for point in check.check(broken_envs.LateEndless) if not point.ok])"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=Path(broken_envs.__file__).parent, capture_output=True, text=True, check=True)
    assert "in round 1001: a loop that does not end?" in done.stdout


def _far(state: Any, rng: Any) -> None:
    state[0] = 20.0
    state[1] = 0.0


def test_spaces_and_ends_are_points_of_their_own() -> None:
    found = problems(broken_envs.make("Bounded", obs_low=(0.0, 0.0), obs_high=(5.0, 1.0)))
    assert "which is not in 0 to" in found["keeps to its observation space"]

    def on(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        return 1.0, False

    found = problems(broken_envs.make("Unending", step=on, max_steps=0), 400)
    assert "give it max_steps" in found["ends its episodes"]


def test_mileage_check_looks_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str) -> None:
        vec = VecEnv(broken_envs.make(name, observe=broken_envs.late_nan_observe), 256)
        vec.reset()
        for _ in range(100):
            vec.step(np.zeros(256, np.int64))

    monkeypatch.setenv("MILEAGE_CHECK", "1")
    with pytest.raises(errors.EnvError, match=r"an entry of the observation is not finite"):
        run("WatchedNan")


def test_the_command_says_each_point_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(broken_envs.__file__)
    for arguments, code in (
        (["Wide"], 1),
        (["Sound", "--steps", "400"], 0),
        (["Sound", "--steps", "400", "--json"], 0),
    ):
        monkeypatch.setattr(sys, "argv", ["mileage", "env", "check", f"{file}:{arguments[0]}", *arguments[1:]])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr().out
        assert stop.value.code == code
        if "--json" in arguments:
            assert json.loads(output)["ok"]
        else:
            assert ("FAILED" in output) == (code == 1)
            assert "ok     compiles" in output
