"""Compiling ahead of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mileage.algorithms.rollouts import NativeOnPolicy
from mileage.kernels import rollout
from mileage.kernels.machine import precompile as ahead
from mileage.kernels.machine.jit import CACHE_ENV

NATIVE_RUN, BRIDGED_RUN = NativeOnPolicy.kernels(True), NativeOnPolicy.kernels(False)


def test_what_training_calls_is_what_was_compiled_ahead() -> None:
    import mileage

    ahead.load([*NATIVE_RUN, *BRIDGED_RUN])
    names = sorted({*NATIVE_RUN, *BRIDGED_RUN})
    before = {name: len(ahead.signature(name)[0].overloads) for name in names}
    for env in ("CartPole-v1", "FrozenLake-v1"):
        with mileage.PPO(env, preset="none", n_envs=2, n_steps=4, threads=2) as agent:
            agent.learn(8, panel=agent.default_panel(episodes=2))
    assert {name: len(ahead.signature(name)[0].overloads) for name in names} == before
    assert ahead.missing(names) == []


def test_missing_looks_at_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, args = ahead.signature("values")
    ahead.load(["values"])
    assert dispatcher._cache.holds(args, dispatcher.targetctx.codegen())
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    assert not dispatcher._cache.holds(args, dispatcher.targetctx.codegen())
    assert ahead.missing(["values"]) == []
    monkeypatch.setattr(dispatcher, "overloads", {})
    assert ahead.missing(["values"]) == ["values"]


class Started:
    """A process that compiles, as far as `loading` can tell."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command, self.killed = command, False
        Started.last = self

    last: Started

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names in the order they were loaded; nothing is compiled, three kernels are missing, and there are two cores."""
    names: list[str] = []
    monkeypatch.setattr(ahead, "load", lambda each: names.extend(each))
    monkeypatch.setattr(ahead, "missing", lambda names: [name for name in names if name != "evaluate"])
    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    return names


def test_half_of_the_missing_kernels_are_compiled_by_another_process(loaded: list[str]) -> None:
    with ahead.loading(NATIVE_RUN):
        assert loaded == []
    assert Started.last.command[1:] == ["-m", "mileage.kernels.machine.precompile", "update"]
    assert loaded == ["gae", "rollout", "evaluate", "update"]
    assert not Started.last.killed


def test_the_other_process_is_ended_when_the_body_fails(loaded: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), ahead.loading(NATIVE_RUN):
        raise KeyboardInterrupt
    assert Started.last.killed
    assert loaded == []


def test_one_core_or_one_missing_kernel_needs_no_other_process(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no process was needed")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with ahead.loading(["evaluate", "update"]):
        pass
    monkeypatch.setattr(ahead, "usable_cores", lambda: 1)
    with ahead.loading(["rollout", "update"]):
        pass
    assert loaded == ["evaluate", "update", "rollout", "update"]


def test_frames_have_no_field_twice() -> None:
    for frame in (rollout.ROLLOUT, rollout.EVALUATE, rollout.ACT):
        assert len(set(frame.names or ())) == len(frame.names or ()) > 20


def test_a_kernel_brings_no_other_learner_along() -> None:
    code = "import sys; from mileage.kernels.machine.precompile import signature; signature('update');"
    code += "sys.exit(any(f'mileage.kernels.{name}' in sys.modules for name in ('dqn', 'sac', 'td3')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
