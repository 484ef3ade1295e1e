"""What a user's functions raise in compiled code, and what is refused before it is compiled."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broken_envs
from mileage import errors
from mileage.envs import VecEnv, make_vec, uniform


def step_on(vec: VecEnv, steps: int = 20) -> None:
    for _ in range(steps):
        vec.step(np.zeros(vec.num_envs, np.int64))


def play(spec: Any, n: int = 64, steps: int = 60) -> None:
    vec = VecEnv(spec, n)
    vec.reset()
    for _ in range(steps):
        _ = vec.masks
        vec.step(np.zeros(n, np.int64) if spec.n_actions else np.zeros((n, 1), np.float32))


@pytest.mark.parametrize(
    ("name", "said", "function", "cause", "where"),
    [
        ("Raising", "step() of 'Raising' raised ValueError: too far", "raising_step", ValueError, "in step 11"),
        ("RaisingAnywhere", "raised ValueError: too far", "raising_step", ValueError, "in step 11"),
        ("Asserting", "raised AssertionError: must stay below", "asserting_step", AssertionError, "in step 15"),
        (
            "RaisingReset",
            "reset() of 'RaisingReset' raised RuntimeError: bad start",
            "raising_reset",
            RuntimeError,
            "start",
        ),
        ("RaisingObserve", "observe() of 'RaisingObserve' raised KeyError", "raising_observe", KeyError, "in step 13"),
        (
            "RaisingMask",
            "mask() of 'RaisingMask' raised ValueError: cannot say",
            "raising_mask",
            ValueError,
            "in step 11",
        ),
    ],
)
def test_an_error_in_compiled_code_is_raised_with_its_line_environment_and_step(
    name: str, said: str, function: str, cause: type[Exception], where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.EnvError) as caught:
        play(getattr(broken_envs, name))
    text = str(caught.value)
    first = getattr(broken_envs, function).__code__.co_firstlineno
    lines = [line for _, _, line in getattr(broken_envs, function).__code__.co_lines() if line]
    line = int(text.partition("line ")[2].partition(")")[0])
    assert said in text
    assert first < line <= max(lines)
    assert where in text
    assert isinstance(caught.value.__cause__, cause)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("row", ["state", "action", "rng", "obs", "out", "an array of the user's"])
def test_a_write_beyond_a_row_is_an_error_of_its_line_however_late(row: str) -> None:
    table = np.zeros(2, np.float32)

    def touch(row: Any, state: Any) -> None:
        index = 7 if state[0] > 220.0 else 0
        row[index] = row[index]

    def step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
        state[0] += 1.0
        if row == "state":
            touch(state, state)
        if row == "action":
            touch(action, state)
        if row == "rng":
            touch(rng, state)
        return 1.0 if row != "an array of the user's" else table[7 if state[0] > 220.0 else 0], False

    def observe(state: Any, obs: Any) -> None:
        obs[0], obs[1] = state[0], state[1]
        if row == "obs":
            touch(obs, state)

    def mask(state: Any, out: Any) -> None:
        if row == "out":
            touch(out, state)

    kind = {"actions": 0, "action_low": -1.0, "action_high": 1.0} if row == "action" else {"mask": mask}
    spec = broken_envs.make(f"Late {row}", step=step, observe=observe, max_steps=300, **kind)
    with pytest.raises(errors.EnvError, match=r"IndexError: .*\(.*, line \d+\) in environment 0, in step 22[12] of"):
        play(spec, 2, 230)


def test_the_environment_named_is_the_first_that_failed() -> None:
    vec = VecEnv(broken_envs.Raising, 64)
    vec.reset()
    first = int(np.flatnonzero(vec.state[:, 1] > 0.5)[0])
    with pytest.raises(errors.EnvError, match=f"in environment {first}, in step 11"):
        step_on(vec)


def test_an_error_belongs_to_the_vector_it_happened_in_and_is_raised_once() -> None:
    failing, other = VecEnv(broken_envs.Raising, 8), VecEnv(broken_envs.Raising, 8)
    for vec in (failing, other):
        vec.reset()
    other.state[:, 1] = 0.0
    with pytest.raises(errors.EnvError):
        step_on(failing)
    step_on(other)
    failing.reset()
    failing.state[:, 1] = 0.0
    failing.step(np.zeros(8, np.int64))


def test_shards_on_other_threads_fail_like_the_first() -> None:
    n = 2 * 16_384
    vec = VecEnv(broken_envs.Raising, n, threads=2)
    vec.reset()
    vec.state[:, 1] = 0.0
    vec.state[n - 1] = (10.0, 0.97)
    with pytest.raises(errors.EnvError, match=f"in environment {n - 1}, in step 1 "):
        vec.step(np.zeros(n, np.int64))


def test_print_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(errors.EnvCompileError, match=r"printing_step\(\) in .*, line \d+, calls print\(\)") as caught:
        play(broken_envs.Printing)
    assert "\n" not in str(caught.value)


generator = np.random.default_rng(0)
shuffled = random.Random(0)
draw = random.random


@pytest.mark.parametrize("name", ["np.random", "random", "draw", "generator", "shuffled", "helper"])
def test_draws_that_no_seed_reaches_are_refused(name: str) -> None:
    def by_numpy(state: Any, rng: Any) -> None:
        state[0] = np.random.normal()

    def by_module(state: Any, rng: Any) -> None:
        state[0] = random.uniform(0.0, 1.0)

    def by_name(state: Any, rng: Any) -> None:
        state[0] = draw()

    def by_generator(state: Any, rng: Any) -> None:
        state[0] = generator.normal()

    def by_object(state: Any, rng: Any) -> None:
        state[0] = shuffled.random()

    def by_helper(state: Any, rng: Any) -> None:
        helper(state)

    def helper(state: Any) -> None:
        state[0] = np.random.normal()

    resets = {
        "np.random": by_numpy, "random": by_module, "draw": by_name, "generator": by_generator, "shuffled": by_object,
        "helper": by_helper,
    }  # fmt: skip
    spec = broken_envs.make("Drawing", reset=resets[name])
    with pytest.raises(
        errors.EnvCompileError, match=r"line \d+, uses .*: draw from its rng with uniform.*mileage\.envs"
    ):
        VecEnv(spec, 1)


def test_names_that_only_look_like_other_draws_are_fine() -> None:
    class Rates:
        random = 0.5

    def reset(state: Any, rng: Any) -> None:
        state[0] = np.sin(0.0)
        state[1] = uniform(rng, 0.0, share)

    share = Rates.random
    VecEnv(broken_envs.make("Sound2", reset=reset), 2).reset()


def test_what_cannot_be_compiled_names_the_line_and_two_lines_of_a_way_out(tmp_path: Any) -> None:
    with pytest.raises(errors.EnvCompileError) as caught:
        VecEnv(broken_envs.Wordy, 1)
    text = str(caught.value)
    first = broken_envs.wordy_step.__code__.co_firstlineno
    line = int(text.partition("line ")[2].partition(",")[0])
    assert first <= line <= first + 3
    paste = [each for each in text.splitlines() if each.startswith("    ")]
    assert len(paste) == 2
    body = (
        "    def reset(self, *, seed=None, options=None):\n        super().reset(seed=seed)\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n        return np.zeros(2, np.float32), 1.0, False, False, {}\n"
    )
    file = tmp_path / "mine.py"
    file.write_text("import gymnasium\nimport numpy as np\n" + "\n".join(each[4:] for each in paste) + "\n" + body)
    vec = make_vec(f"{file}:Wordy", 2)
    assert vec.reset()[0].shape == (2, 2)
    vec.close()


def test_a_function_that_calls_itself_is_one_sentence() -> None:
    def down(x: float) -> float:
        return x if x < 0.0 else down(x - 1.0)

    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        return down(state[0]), False

    with pytest.raises(errors.EnvCompileError, match=r"down\(\) in .*, line \d+, calls itself"):
        VecEnv(broken_envs.make("Recursive", step=step), 1)


MOVED = """
from mileage.envs import env, uniform

def helper(value):
    if value > 9.98:
        raise ValueError("moved")
    return value

@env("Moved-test", state_size=1, actions=2, max_steps=9)
class Moved:
    def reset(state, rng):
        state[0] = uniform(rng, 0.0, 1.0)

    def step(state, action, rng):
        state[0] = helper(state[0] + 1.0)
        return 1.0, False
"""


def test_a_file_that_was_moved_or_has_new_lines_is_named_as_it_is_now(tmp_path: Path) -> None:
    for name, above in (("first.py", 0), ("moved.py", 0), ("longer.py", 7)):
        path = tmp_path / name
        path.write_text("\n" * above + MOVED)
        with pytest.raises(errors.EnvError, match=rf"moved \({path}, line {6 + above}\)"):
            play(make_vec(f"{path}:Moved", 2).spec, n=512)
