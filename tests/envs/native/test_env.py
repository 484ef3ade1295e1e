"""The @env decorator: what it compiles, when it recompiles, and what it says when it cannot."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.envs import NativeEnv, VecEnv, env, integers, normal, uniform
from mileage.envs.native.compile import compile_advance
from mileage.envs.native.functions import Sizes
from mileage.envs.native.rewrite import Portable
from mileage.errors import EnvCompileError, UsageError
from mileage.kernels.random import streams

STEP_SIZE = 0.1
TABLE = np.array([0.5, 0.25, 0.125])
CONSTANTS = types.ModuleType("constants")
CONSTANTS.OFFSET = 2.0  # type: ignore[attr-defined]


def decay(x: float) -> float:
    return x * (1.0 - STEP_SIZE)


def make(step: Any, *, reset: Any = None, observe: Any = None, **options: Any) -> NativeEnv:
    """An environment around one function, with a state of two numbers and two actions."""

    def start(state: Any, rng: Any) -> None:
        state[0] = 1.0
        state[1] = 0.0

    body = {"reset": reset or start, "step": step} | ({"observe": observe} if observe else {})
    settings = {"state_size": 2} | ({"actions": 2} if "action_low" not in options else {}) | options
    return env("Test-Native", **settings)(type("TestNative", (), body))


def one_step(spec: NativeEnv, action: Any = 1) -> tuple[Any, float, bool]:
    vec = VecEnv(spec, 1)
    vec.reset()
    obs, reward, terminated, _, _ = vec.step(np.array([action]))
    return obs[0].copy(), float(reward[0]), bool(terminated[0])


def test_helpers_constants_tables_modules_and_closures_are_compiled_along() -> None:
    bonus = 0.75

    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] = decay(state[0]) + TABLE[action]
        state[1] = CONSTANTS.OFFSET
        return bonus, state[0] > 2.0

    obs, reward, terminated = one_step(make(step))
    # 1 * (1 - 0.1) + 0.25 = 1.15
    np.testing.assert_allclose(obs, [1.15, 2.0], rtol=1e-6)
    assert reward == 0.75
    assert not terminated


def test_continuous_actions_arrive_as_a_row() -> None:
    def step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
        state[0] = action[0] + 2.0 * action[1]
        return action[1], False

    obs, reward, _ = one_step(make(step, action_low=(-1.0, -1.0), action_high=(1.0, 1.0)), [0.5, 0.25])
    assert obs[0] == 1.0
    assert reward == 0.25


def test_any_true_value_terminates() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, int]:
        return 0.0, 2 * action

    assert one_step(make(step), 1)[2] is True
    assert one_step(make(step), 0)[2] is False


def test_draws_are_those_of_the_stream_and_of_plain_python() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] = uniform(rng, -2.0, 3.0)
        state[1] = normal(rng)
        return integers(rng, 1000), False

    obs, reward, _ = one_step(make(step))
    rng = streams(0, 1, "env")[0]
    plain = np.zeros(2, np.float32)
    plain_reward, _ = step(plain, 1, rng)
    assert obs[0] == plain[0]
    # The normal draw goes through log and cos, which NumPy and the compiler round apart.
    np.testing.assert_allclose(obs[1], plain[1], rtol=1e-5)
    assert reward == plain_reward


def test_arithmetic_is_float32_though_literals_are_python_floats() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] = state[0] + 1e-9
        return (state[0] + 3e-8) - 1.0, False

    # In double precision the sum would differ from one, and the reward from zero.
    assert one_step(make(step))[1] == 0.0


@pytest.mark.parametrize("change", ["literal", "global", "helper", "table", "module", "closure", "sizes"])
def test_version_changes_with_everything_that_is_compiled_in(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(literal: float = 1.0, closed: float = 0.5, **options: Any) -> str:
        scope: dict[str, Any] = {"decay": decay, "TABLE": TABLE, "CONSTANTS": CONSTANTS, "closed": closed}
        exec(
            "def outer(closed):\n"
            "    def step(state, action, rng):\n"
            f"        return decay(state[0]) + TABLE[0] + CONSTANTS.OFFSET + closed + {literal}, False\n"
            "    return step\n",
            scope,
        )
        return make(scope["outer"](closed), **options).version

    before = build()
    assert build() == before
    if change == "literal":
        assert build(literal=2.0) != before
    elif change == "closure":
        assert build(closed=0.25) != before
    elif change == "sizes":
        assert build(actions=3) == before  # the number of actions is not compiled in
        assert build(state_size=3) != before
    elif change == "global":
        monkeypatch.setitem(decay.__globals__, "STEP_SIZE", 0.2)
        assert build() != before
    elif change == "helper":
        monkeypatch.setattr(decay, "__code__", (lambda x: x * 2.0).__code__)
        assert build() != before
    elif change == "table":
        TABLE[0] = 0.75
        after = build()
        TABLE[0] = 0.5
        assert after != before
    else:
        monkeypatch.setattr(CONSTANTS, "OFFSET", 3.0)
        assert build() != before


def uncompilable_attribute(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    return json.dumps(3), False  # type: ignore[return-value]


def uncompilable_construct(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    with open("file"):
        pass
    return 0.0, False


def bad_helper(x: float) -> float:
    return x.nonsense  # type: ignore[attr-defined,no-any-return]


def uncompilable_helper(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    return bad_helper(state[0]), False


@pytest.mark.parametrize(
    ("step", "culprit", "offset", "what"),
    [
        (uncompilable_attribute, uncompilable_attribute, 1, "'dumps'"),
        (uncompilable_construct, uncompilable_construct, 1, "context manager"),
        (uncompilable_helper, bad_helper, 1, "'nonsense'"),
    ],
)
def test_what_cannot_be_compiled_is_named_with_file_and_line(step: Any, culprit: Any, offset: int, what: str) -> None:
    with pytest.raises(EnvCompileError) as caught:
        VecEnv(make(step), 1)
    line = culprit.__code__.co_firstlineno + offset
    text = str(caught.value)
    assert f"{culprit.__name__}() in {__file__}, line {line}," in text
    assert what in text
    assert "use only" in text
    sentence, _, paste = text.partition("\n\n")
    assert "\n" not in sentence
    assert len(paste.splitlines()) == 2


def test_a_step_that_returns_one_value_is_explained() -> None:
    def step(state: Any, action: int, rng: Any) -> float:
        return 1.0

    with pytest.raises(EnvCompileError, match=r"step\(\) in .*test_env\.py, line \d+, must return two values"):
        VecEnv(make(step), 1)


def nothing(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    return 0.0, False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"actions": 0}, "either actions"),
        ({"actions": 2, "action_low": -1.0, "action_high": 1.0}, "either actions"),
        ({"action_low": (-1.0, -1.0), "action_high": 1.0}, "of one length"),
        ({"obs_size": 3}, "add observe"),
        ({"obs_high": (1.0, 2.0, 3.0)}, "obs_high must be one number or"),
        ({"state_size": 0}, "state_size .*must be at least 1, not 0"),
        ({"max_steps": -1}, "max_steps .*must be at least 0, not -1"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make(nothing, **options)


def test_functions_with_other_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"step\(state, action\).* must take \(state, action, rng\)"):
        make(two_parameters)
    with pytest.raises(UsageError, match="needs a plain function step"):
        make(math.sin)


def two_parameters(state: Any, action: int) -> tuple[float, bool]:
    return 0.0, False


SCRIPT = """
    import sys
    from mileage.envs import VecEnv, env
    import numpy as np

    GAIN = {gain}

    @env(state_size=1, actions=2)
    class Scripted:
        def reset(state, rng):
            state[0] = 0.0

        def step(state, action, rng):
            state[0] = state[0] + GAIN
            return state[0], False

    vec = VecEnv(Scripted, 2)
    vec.reset()
    print(vec.step(np.array([0, 1]))[1][0], Scripted._compiled.advance.cache_hits)
"""


def run(script: str, cache: Path, *, from_stdin: bool = False) -> str:
    """Run a script in a fresh process with its own kernel cache."""
    environment = os.environ | {"MILEAGE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-W", "error", *([] if from_stdin else ["-c", script])]
    result = subprocess.run(
        command, input=script if from_stdin else None, capture_output=True, text=True, env=environment, check=True
    )
    return result.stdout.strip()


def test_compiled_code_is_kept_and_a_changed_constant_recompiles(tmp_path: Path) -> None:
    script = textwrap.dedent(SCRIPT)
    assert run(script.format(gain=1.5), tmp_path) == "1.5 0"
    assert run(script.format(gain=1.5), tmp_path, from_stdin=True) == "1.5 1"
    assert run(script.format(gain=2.5), tmp_path) == "2.5 0"


def test_importing_environments_imports_neither_numba_nor_gymnasium() -> None:
    script = (
        "import sys, mileage.envs as e; e.registered(); e.native('CartPole-v1'); "
        "print([m for m in ('numba', 'gymnasium') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"])
def test_the_step_works_on_several_environments_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is loaded from the cache has no LLVM code to look at.
    monkeypatch.setenv("MILEAGE_CACHE_DIR", str(tmp_path))
    spec = VecEnv(name, 1).spec
    sizes = Sizes(spec.state_size, spec.obs_size, spec.action_size, spec.n_actions > 0)
    code = compile_advance(Portable(), spec.functions, sizes, "looked at").inspect_llvm()
    assert len(re.findall(r"= fmul (?:contract )?<\d+ x float>", code)) >= 5
    assert "mileage_note_failure" not in code  # nor does it look at an index that is a constant
