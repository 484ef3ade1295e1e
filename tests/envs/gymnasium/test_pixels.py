"""Images: their layout, the wrappers, and Atari games."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

import mileage
from mileage.envs import BridgedVecEnv, GymnasiumEnv
from mileage.envs.gymnasium.pixels import FireReset, LifeLoss, atari, pixels
from mileage.errors import MissingExtraError, UsageError
from mileage.ledger.panels import Panel
from mileage.seeding import HELD_OUT_START

needs_atari = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None or importlib.util.find_spec("cv2") is None,
    reason="the atari extra (ale-py, opencv-python-headless) is not installed",
)
SHAPES = {"gray": (4, 5), "colour": (4, 5, 3), "stacked": (2, 4, 5, 3), "in front": (3, 4, 5)}


class Counting(gymnasium.Env[Any, Any]):
    """Step t shows a picture whose values count on from t; the reward is 2.5 t, and an episode takes three steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (4, 5, 3)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.t = 0

    def picture(self) -> Any:
        shape = self.observation_space.shape
        assert shape is not None
        return (np.arange(np.prod(shape)).reshape(shape) + self.t).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.picture(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.picture(), 2.5 * self.t, self.t == 3, False, {}


@pytest.fixture(name="counting", scope="module", autouse=True)
def _counting_fixture() -> Any:
    gymnasium.register("Counting-v0", entry_point=Counting)
    yield
    del gymnasium.registry["Counting-v0"]


def bridged(shape: tuple[int, ...], n: int = 2, **kwargs: Any) -> BridgedVecEnv:
    return BridgedVecEnv(GymnasiumEnv("Counting", {"shape": shape}, make=Counting, image=True), n, **kwargs)


@pytest.mark.parametrize("layout", SHAPES)
def test_images_stay_bytes_with_their_channels_in_front(layout: str) -> None:
    shape = SHAPES[layout]
    vec = bridged(shape)
    obs, _ = vec.reset(seed=0)
    picture = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    expected = {
        "gray": lambda: picture[None],
        "colour": lambda: np.stack([picture[..., c] for c in range(3)]),
        "stacked": lambda: np.stack([picture[s, ..., c] for s in range(2) for c in range(3)]),
        "in front": lambda: picture,
    }[layout]()
    assert obs.dtype == vec.final_obs.dtype == vec.spec.obs_dtype == np.uint8
    assert obs.flags.c_contiguous
    np.testing.assert_array_equal(obs, np.stack([expected, expected]))
    assert (2, *vec.spec.obs_shape) == obs.shape == vec.observation_space.shape
    assert vec.spec.obs_size == expected.size
    assert vec.observation_space.contains(obs)


def test_the_last_image_of_an_episode_is_kept_as_one() -> None:
    vec = bridged((4, 5), processes=True)
    vec.reset(seed=0)
    for _ in range(3):
        obs, _, terminated, _, infos = vec.step(np.zeros(2, np.int64))
    assert terminated.all()
    picture = np.arange(20, dtype=np.uint8).reshape(1, 4, 5)
    np.testing.assert_array_equal(obs[1], picture)
    np.testing.assert_array_equal(infos["final_obs"][1], picture + 3)
    vec.close()


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UsageError, match="image=True needs images of uint8"):
        GymnasiumEnv("CartPole-v1", image=True)
    with pytest.raises(UsageError, match="use render=True"):
        pixels("CartPole-v1", screen_size=None)
    with pytest.raises(UsageError, match="frame_stack must be at least 1, not 0"):
        pixels("Counting-v0", screen_size=None, frame_stack=0)


def test_frames_are_skipped_and_stacked_and_rewards_clipped() -> None:
    spec = pixels("Counting-v0", screen_size=None, grayscale=False, frame_stack=2, frame_skip=2, clip_reward=True)
    vec = BridgedVecEnv(spec, 1)
    first = vec.reset()[0].copy()
    obs, reward, _, _, _ = vec.step(np.zeros(1, np.int64))
    assert spec.obs_shape == (6, 4, 5)
    np.testing.assert_array_equal(first[0, :3], first[0, 3:])
    # The newest frame comes last: the maximum of the pictures of steps 1 and 2.
    np.testing.assert_array_equal(obs[0, :3], first[0, :3])
    np.testing.assert_array_equal(obs[0, 3:], first[0, :3] + 2)
    assert reward[0] == 1.0  # the sign of 2.5 + 5


def test_colour_turns_to_gray() -> None:
    vec = BridgedVecEnv(pixels("Counting-v0", screen_size=None, frame_stack=1), 1)
    obs, _ = vec.reset()
    picture = np.arange(60).reshape(4, 5, 3)
    np.testing.assert_array_equal(obs[0, 0], (picture @ [0.2125, 0.7154, 0.0721]).astype(np.uint8))


class Game(Counting):
    """A game of two lives: the first is lost in the second step, the game in the third."""

    def __init__(self) -> None:
        super().__init__((4, 5))
        self.actions: list[int] = []
        self.ale = SimpleNamespace(lives=lambda: 2 if self.t < 2 else int(self.t < 3))

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return super().step(action)


def test_a_lost_life_ends_the_episode_but_not_the_game() -> None:
    game = Game()
    env = LifeLoss(game)
    env.reset(seed=0)
    assert [env.step(1)[2] for _ in range(2)] == [False, True]
    env.reset()
    # The no-op was the game's last step, so it had to start again.
    assert game.actions == [1, 1, 0]
    assert game.t == 0
    env.step(1)
    env.step(1)
    game.step = lambda action: (*Counting.step(game, action)[:2], False, False, {})  # type: ignore[method-assign]
    env.reset()
    assert game.t == 3  # goes on with the next life
    env.reset(seed=1)
    assert game.t == 0  # a seed means a new game


def test_fire_is_pressed_once_after_a_reset() -> None:
    game = Game()
    env = FireReset(game)
    obs, _ = env.reset(seed=0)
    assert game.actions == [1]
    np.testing.assert_array_equal(obs, np.arange(1, 21, dtype=np.uint8).reshape(4, 5))


@needs_atari
def test_atari_is_what_gymnasiums_wrappers_make_of_it() -> None:
    import ale_py

    gymnasium.register_envs(ale_py)
    env: Any = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    env = wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env, noop_max=30), 4)
    spec = atari("ALE/Breakout-v5", life_loss=False, fire_reset=False, clip_reward=False)
    assert (spec.obs_shape, spec.n_actions) == ((4, 84, 84), 4)
    vec = BridgedVecEnv(spec, 2)
    obs, _ = vec.reset(seed=[3, 4])
    np.testing.assert_array_equal(obs[1], env.reset(seed=4)[0])
    score = 0.0
    for action in np.random.default_rng(0).integers(0, 4, 150):
        obs, reward, terminated, _, infos = vec.step(np.full(2, action))
        expected, gain, ended, _, _ = env.step(action)
        assert (reward[1], terminated[1]) == (gain, ended)
        np.testing.assert_array_equal(infos["final_obs"][1] if ended else obs[1], expected)
        score += float(gain)
        if ended:
            break
    assert score > 0.0
    vec.close()


@needs_atari
def test_a_life_of_breakout() -> None:
    vec = BridgedVecEnv(atari("ALE/Breakout-v5"), 1)
    vec.reset(seed=[0])
    game = vec._envs.envs[0].unwrapped
    assert game.ale.lives() == 5
    for _ in range(400):
        obs, _, terminated, _, infos = vec.step(np.array([2]))
        if terminated[0]:
            break
    # Fire was pressed and the ball lost; the next episode goes on with four lives.
    assert terminated[0]
    assert game.ale.lives() == 4
    assert infos["final_obs"].shape == obs.shape == (1, 4, 84, 84)


@needs_atari
def test_images_are_resized() -> None:
    vec = BridgedVecEnv(pixels("Counting-v0", screen_size=8, frame_stack=3), 1)
    obs, _ = vec.reset()
    assert obs.shape == (1, 3, 8, 8)
    # The picture grows to the right and downwards, and so does the resized one.
    assert (np.diff(obs[0, 0].astype(int), axis=1) >= 0).all()
    assert (np.diff(obs[0, 0].astype(int), axis=0) >= 0).all()
    assert obs.max() > obs.min()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'ALE/Pong-v5' needs an extra: .*pip install .*\[atari\]"):
        atari("ALE/Pong-v5")
    with pytest.raises(MissingExtraError, match=r"pip install .*\[atari\]"):
        pixels("Counting-v0")


@needs_atari
def test_code_of_the_guide_runs() -> None:
    pytest.importorskip("mujoco", reason="the mujoco extra is not installed")
    page = Path(__file__).resolve().parents[3] / "docs" / "mujoco.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/mujoco.md", "exec"), scope)
    assert scope["exam"].kwargs["life_loss"] is False


@needs_atari
def test_a_convolutional_policy_plays() -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    config: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "minibatch": 8, "epochs": 1, "preset": "none"}
    panel = Panel("ALE/Breakout-v5", seeds=(HELD_OUT_START,), max_episode_steps=8)
    with mileage.PPO(
        atari("ALE/Breakout-v5", grayscale=False, screen_size=42), backend="torch", policy="cnn", **config
    ) as agent:
        assert agent.spec.leaves[0].shape == (12, 42, 42)
        before = agent.policy.params.copy()
        run = agent.learn(32, panel=panel)
        assert (agent.policy.params != before).any()
    assert run.steps == 32


@needs_atari
def test_a_game_is_known_by_its_id_with_its_own_scores_and_a_convolutional_network() -> None:
    from mileage.envs.registry import resolve

    spec = resolve("ALE/Pong-v5")
    assert spec.kwargs["life_loss"] is spec.kwargs["clip_reward"] is False  # type: ignore[attr-defined]
    assert resolve("ALE/Pong-v5", frame_stack=2).obs_shape == (2, 84, 84)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="did you mean 'ALE/Pong-v5'"):
        resolve("ALE/Pongg-v5")


def test_without_the_extra_a_game_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"environment 'ALE/Pong-v5' needs an extra: .*pip install .*\[atari\]"):
        mileage.PPO("ALE/Pong-v5")
