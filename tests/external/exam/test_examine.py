"""Policies of every make sit the same exam, in a process of its own, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

import mileage
from extras import ONNX, TORCH
from mileage.cli.app import app
from mileage.errors import CheckpointError, MissingExtraError, UsageError
from mileage.external.exam import Actor, Examiner, PolicySource, examine, find_panel
from mileage.external.exam.sources import SourceKind
from mileage.types import I64, Array
from waiting import until

PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "begin" in message:
        print("hello", file=sys.stderr)
    if "end" in message:
        break
    if "act" in message:
        print(json.dumps({"actions": [int(o[2] + o[3] > 0) for o in message["act"]["observations"]]}), flush=True)
"""


def lean(obs: Array) -> Array:
    """Push to where the pole falls."""
    return np.asarray(obs[:, 2] + obs[:, 3] > 0).astype(np.int64)


def by_hand(panel: mileage.Panel) -> list[float]:
    """What Gymnasium's own environment says of the same policy, one episode after the other."""
    returns = []
    env = gymnasium.make(panel.env_id)
    for seed in panel.seeds:
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(lean(obs[None])[0]))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def test_a_function_here_a_function_there_and_a_program_get_the_same_marks(tmp_path: Path) -> None:
    panel = find_panel("CartPole-v1", 12)
    file = tmp_path / "policies.py"
    file.write_text(
        "import numpy as np\ndef act(obs):\n    return np.stack([-obs[:, 2] - obs[:, 3], 0 * obs[:, 2]], 1)\n"
    )
    program = tmp_path / "serve.py"
    program.write_text(PROGRAM)
    with Examiner(panel) as examiner:
        here = examiner.examine(lean)
        scored = examiner.examine(f"{file}:act")
        spoken = examiner.examine(f"program: {sys.executable} {program}")
    assert here.seeds.tolist() == list(panel.seeds)
    for other in (scored, spoken):
        np.testing.assert_array_equal(here.returns, other.returns)
        np.testing.assert_array_equal(here.lengths, other.lengths)


def test_the_exam_plays_what_gymnasium_plays() -> None:
    # Acrobot would do as well; MountainCarContinuous with options is one that only Gymnasium steps.
    panel = find_panel("CartPole-v1", 5, env_kwargs={"sutton_barto_reward": False})
    assert examine(lean, panel).returns.tolist() == by_hand(panel)


class Counting(Actor):
    """Answers by how often an episode was seen: right only if it is told which is which, and when they begin."""

    remembers = True

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.begun: list[tuple[int, bool]] = []

    def begin(self, episodes: int, deterministic: bool) -> None:
        self.seen = {}
        self.begun.append((episodes, deterministic))

    def act(self, observations: Array, episodes: I64) -> list[int]:
        for episode in episodes:
            self.seen[int(episode)] = self.seen.get(int(episode), 0) + 1
        return [self.seen[int(episode)] % 2 for episode in episodes]


def test_a_policy_with_a_memory_is_told_episodes_and_sees_each_step_once() -> None:
    panel = find_panel("CartPole-v1", 40)
    actor = Counting()
    with Examiner(panel) as examiner:
        first, again = examiner.examine(actor), examiner.examine(actor)
    assert actor.begun == [(40, True), (40, True)]
    assert [actor.seen[episode] for episode in range(40)] == first.lengths.tolist()
    np.testing.assert_array_equal(first.returns, again.returns)


@ONNX
def test_our_policies_exported_to_onnx_choose_the_same_actions(tmp_path: Path) -> None:
    from mileage.external.exam.sources import OnnxActor

    rng = np.random.default_rng(0)
    for agent in (
        mileage.PPO("CartPole-v1", normalise_observations=True),
        mileage.PPO("Pendulum-v1"),
        mileage.SAC("Pendulum-v1"),
        mileage.TD3("MountainCarContinuous-v0"),
        mileage.DQN("CartPole-v1", dueling=True),
    ):
        arrays = agent.policy.live_arrays()
        arrays["params"][:] = rng.normal(0, 0.3, arrays["params"].shape)
        arrays["obs_mean"][:] = 0.1
        arrays["obs_scale"][:] = 1.5
        path = tmp_path / f"{agent.name}-{agent.env_id}.onnx"
        agent.export(path)
        obs = rng.normal(0, 1, (64, agent.policy.obs_size)).astype(np.float32)
        expected = agent.policy.actions(obs)
        answer = OnnxActor(path).act(obs, np.arange(64))
        if agent.policy.n_actions:
            assert (answer == expected).mean() > 0.98  # ties within rounding
        else:
            np.testing.assert_allclose(answer, expected, atol=2e-5)


@ONNX
def test_a_checkpoint_and_its_onnx_file_get_the_same_marks(tmp_path: Path) -> None:
    agent = mileage.PPO("CartPole-v1", seed=3, n_envs=4, n_steps=64, minibatch=64, preset="none")
    agent.learn(2048, eval_every=0)
    agent.save(tmp_path / "policy.safetensors")
    agent.export(tmp_path / "policy.onnx")
    panel = agent.default_panel(episodes=20)
    assert find_panel("CartPole-v1", 20).panel_id == panel.panel_id
    own = agent.evaluate(panel)
    with Examiner(panel) as examiner:
        read, exported = (examiner.examine(tmp_path / f"policy.{kind}") for kind in ("safetensors", "onnx"))
    np.testing.assert_array_equal(own.returns, read.returns)
    np.testing.assert_array_equal(own.returns, exported.returns)


@TORCH
def test_a_torchscript_file_sits_the_exam(tmp_path: Path) -> None:
    import torch

    class Lean(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return (obs[:, 2] + obs[:, 3] > 0).long()

    path = tmp_path / "policy.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have another format
        torch.jit.save(torch.jit.trace(Lean(), torch.zeros(2, 4)), str(path))
    panel = find_panel("CartPole-v1", 8)
    with Examiner(panel) as examiner:
        np.testing.assert_array_equal(examiner.examine(path).returns, examiner.examine(lean).returns)


def test_actions_are_clipped_scaled_where_asked_and_refused_if_they_are_no_numbers() -> None:
    panel = find_panel("Pendulum-v1", 3)
    with Examiner(panel) as examiner:
        full = examiner.examine(lambda obs: np.full((len(obs), 1), 2.0))
        np.testing.assert_array_equal(full.returns, examiner.examine(lambda obs: np.full((len(obs), 1), 7.0)).returns)
        unit = examiner.examine(lambda obs: np.full((len(obs), 1), 1.0), unit_actions=True)
        np.testing.assert_array_equal(full.returns, unit.returns)
        half = examiner.examine(lambda obs: np.full((len(obs), 1), 1.0))
        assert (half.returns != full.returns).any()
        with pytest.raises(UsageError, match="finite"):
            examiner.examine(lambda obs: np.full((len(obs), 1), np.nan))


def test_discrete_observations_reach_a_policy_as_the_environment_shows_them() -> None:
    seen: list[Array] = []

    def act(obs: Array) -> Array:
        seen.append(obs)
        return np.zeros(len(obs), np.int64)

    examine(act, mileage.Panel.default("Taxi-v4", 2, max_episode_steps=3))
    assert seen[0].dtype.kind == "i"
    assert seen[0].shape == (2,)
    assert [
        int(gymnasium.make("Taxi-v4").reset(seed=seed)[0]) for seed in mileage.Panel.default("Taxi-v4", 2).seeds
    ] == (seen[0].tolist())


def test_a_wrong_answer_is_one_sentence_and_the_next_policy_may_sit() -> None:
    wrong: list[tuple[Callable[[Array], object], str]] = [
        (lambda obs: obs, "by their numbers, or score all 2"),
        (lambda obs: [1], "with 2 actions"),
        (lambda obs: [5] * len(obs), "from 0 to 1"),
        (lambda obs: [0.5] * len(obs), "by their numbers"),
        (lambda obs: "left", "numbers, not str"),
    ]
    with Examiner(mileage.Panel.default("CartPole-v1", 2)) as examiner:
        for act, said in wrong:
            with pytest.raises(UsageError, match=said):
                examiner.examine(act)
        with pytest.raises(ZeroDivisionError):
            examiner.examine(lambda obs: 1 // 0)
        assert len(examiner.examine(lean)) == 2


def test_a_program_that_talks_rubbish_dies_or_hangs_is_one_sentence(tmp_path: Path) -> None:
    from mileage.external.exam.protocol import ProgramActor

    obs, episodes = np.zeros((1, 4), np.float32), np.zeros(1, np.int64)
    cases = {"import sys; print('rubbish', flush=True); sys.stdin.read()": "must answer",
             "import sys; sys.exit(3)": "exit code 3", "pass": "exit code 0",
             "import time; time.sleep(60)": "has not answered for 0.3 s"}  # fmt: skip
    for code, said in cases.items():
        actor = ProgramActor([sys.executable, "-S", "-c", code], patience=300.0 if "time" not in code else 0.3)
        try:
            with pytest.raises(UsageError, match=said):  # noqa: PT012 (a program may end before it is told)
                actor.begin(1, True)
                actor.act(obs, episodes)
        finally:
            actor.close()


def test_policies_are_told_apart_by_their_names(tmp_path: Path) -> None:
    kind = SourceKind
    kinds = {"a.onnx": kind.ONNX, "b.pt": kind.TORCHSCRIPT, "c.safetensors": kind.CHECKPOINT,
             "d.py:act": kind.FUNCTION, "package.module:act": kind.FUNCTION,
             "program: ./serve --fast": kind.PROGRAM}  # fmt: skip
    for text, expected in kinds.items():
        source = PolicySource.parse(text)
        assert source.kind is expected
        assert PolicySource.from_dict(source.as_dict()) == source
    assert (
        PolicySource.parse("model.zip", "mileage.external.adapters.stable_baselines3:load_policy").kind
        is SourceKind.LOADED
    )
    with pytest.raises(UsageError, match=r"give a file that ends in \.onnx"):
        PolicySource.parse("model.zip")


def test_files_that_are_no_policies_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not onnx")
    panel = mileage.Panel.default("CartPole-v1", 2)
    with pytest.raises((CheckpointError, MissingExtraError)):
        examine(tmp_path / "bad.onnx", panel)
    with pytest.raises(UsageError, match="does not exist"):
        examine(tmp_path / "gone.onnx", panel)
    with pytest.raises(UsageError, match="another version"):
        examine(lean, mileage.Panel.default("CartPole-v1", 2, env_version="another"))


def test_the_exam_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import os, pathlib, time
from mileage.external.exam import examine
from mileage import Panel
def act(obs):
    os.kill(os.getpid(), 9)
def note(obs):
    pathlib.Path({str(note)!r}).write_text(str(examiner._process.pid))
    return act(obs)
from mileage.external.exam import Examiner
examiner = Examiner(Panel.default("CartPole-v1", 2))
examiner.examine(note)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    pid = int(note.read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_an_exam_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(UsageError, match="given up"):
        examine(f"program: {sys.executable} -c 'import time; time.sleep(60)'", mileage.Panel.default("CartPole-v1", 2),
                timeout=0.5)  # fmt: skip


@ONNX
def test_the_command_examines_a_file_alone(tmp_path: Path) -> None:
    agent = mileage.PPO("CartPole-v1", seed=0)
    agent.export(tmp_path / "policy.onnx")
    panel = agent.default_panel(episodes=5)
    (tmp_path / "panel.json").write_text(panel.to_json())
    own = agent.evaluate(panel)
    for exam in (["--panel", "CartPole-v1", "--episodes", "5"], ["--panel", str(tmp_path / "panel.json")]):
        found = CliRunner().invoke(app, ["eval", "--policy", str(tmp_path / "policy.onnx"), *exam, "--json"])
        assert found.exit_code == 0
        assert f'"panel_id": "{panel.panel_id}"' in found.stdout
        assert f'"mean_return": {own.mean_return}' in found.stdout
    missed = [
        "eval",
        "--policy",
        str(tmp_path / "policy.onnx"),
        "--panel",
        "CartPole-v1",
        "--target",
        "mean_return>=500",
    ]
    assert CliRunner().invoke(app, missed).exit_code == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a checkpoint, or a policy"),
        (["--policy", "x.onnx"], "needs --panel"),
        (["c.safetensors", "--panel", "CartPole-v1"], "goes with --policy"),
        (["--policy", "x.zip", "--panel", "CartPole-v1", "--adapter", "nobody"], "nobody"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["eval", *options])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
