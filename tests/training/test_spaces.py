"""Every cell of the table in docs/spaces.md: train, evaluate, save, load, predict, with what the environment gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import extras
import mileage
import tiny_envs
from mileage.envs import GymnasiumEnv
from mileage.errors import CheckpointError, EnvError, UsageError

# Every cell is run on both back ends.
pytestmark = extras.TORCH

PAGE = Path(__file__).parents[2] / "docs" / "spaces.md"
VECTOR = spaces.Box(-1.0, 1.0, (3,))
CHOICE, BOX = spaces.Discrete(3), spaces.Box(-2.0, 2.0, (2,))
OBSERVATIONS: dict[str, Any] = {
    "Box, a vector": VECTOR,
    "Box, a matrix": spaces.Box(-1.0, 1.0, (3, 2)),
    "Box, an image of bytes": spaces.Box(0, 255, (10, 9, 3), np.uint8),
    "Discrete": spaces.Discrete(5),
    "Discrete from another start": spaces.Discrete(3, start=7),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict(a=spaces.Discrete(3), b=VECTOR),
    "Tuple": spaces.Tuple((spaces.Discrete(3), VECTOR)),
    "Dict of Tuples": spaces.Dict(
        a=spaces.Tuple((spaces.Box(0, 255, (9, 9), np.uint8), VECTOR)), b=spaces.MultiBinary(2)
    ),
}
ACTIONS: dict[str, Any] = {
    "Discrete": CHOICE,
    "Discrete from another start": spaces.Discrete(3, start=7),
    "Box, a vector": BOX,
    "Box, a matrix": spaces.Box(-2.0, 2.0, (2, 3)),
    "Box, a number": spaces.Box(0.0, 1.0, ()),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict of choices and boxes": spaces.Dict(gear=spaces.Discrete(3, start=1), push=BOX, lamps=spaces.MultiBinary(2)),
    "Tuple of choices and boxes": spaces.Tuple((spaces.Box(-1.0, 1.0, (1, 2)), spaces.Discrete(4))),
}
MASKED: dict[str, Any] = {
    "on Discrete actions": spaces.Discrete(4, start=1),
    "on MultiDiscrete actions": spaces.MultiDiscrete([3, 2]),
    "on Dict actions": spaces.Dict(gear=spaces.Discrete(3), push=BOX),
    "on a native environment": None,
}
SMALL: dict[str, dict[str, Any]] = {
    "PPO": {"n_envs": 2, "n_steps": 8, "minibatch": 8, "epochs": 2},
    "RPO": {"n_envs": 2, "n_steps": 8, "minibatch": 8, "epochs": 2},
    "A2C": {"n_envs": 2, "n_steps": 8},
    "IMPALA": {"n_envs": 2, "n_steps": 8, "mode": "lockstep"},
    "DQN": {"n_envs": 2, "capacity": 100, "learning_starts": 8, "batch": 4},
    "SAC": {"n_envs": 2, "capacity": 100, "learning_starts": 8, "batch": 4},
    "TD3": {"n_envs": 2, "capacity": 100, "learning_starts": 8, "batch": 4},
}


class Anything(gymnasium.Env[Any, Any]):
    """Shows samples of any space and insists on members of another, among what it allows."""

    def __init__(self, shown: Any, taken: Any, masked: bool = False) -> None:
        self.observation_space, self.action_space, self.masked = shown, taken, masked

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self._shown()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.masked:
            assert all(self.mask[index] for index in self._chosen(action)), f"{action!r} is not allowed by {self.mask}"
        self.steps += 1
        obs, info = self._shown()
        return obs, 1.0, False, self.steps >= 5, info

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        obs = self.observation_space.sample()
        if not self.masked:
            return obs, {}
        sizes = self._sizes()
        self.mask = self.np_random.random(sum(sizes)) < 0.5
        for start in np.cumsum([0, *sizes[:-1]]):
            self.mask[start + 1] = True
        return obs, {"action_mask": self.mask}

    def _sizes(self) -> list[int]:
        space = self.action_space
        if isinstance(space, spaces.Dict):
            return [int(space["gear"].n)]  # type: ignore[attr-defined]
        return [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec]  # type: ignore[attr-defined]

    def _chosen(self, action: Any) -> list[int]:
        """Where in the mask the choices of an action are."""
        if isinstance(self.action_space, spaces.Dict):
            return [int(action["gear"])]
        if isinstance(self.action_space, spaces.Discrete):
            return [int(action) - int(self.action_space.start)]
        return [int(action[0]), 3 + int(action[1])]


def cells() -> list[Any]:
    """(kind, row, algorithm, what the table says) of every cell."""
    lines = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    header, found, kind = [cell.strip() for cell in lines[0]], [], ""
    for line in lines[2:]:
        name, *marks = (cell.strip() for cell in line)
        if name.startswith("**"):
            kind = name.strip("*")
            continue
        for algorithm, mark in zip(header[1:], marks, strict=True):
            found.append(pytest.param(kind, name, algorithm, mark, id=f"{algorithm}, {kind}: {name}"))
    return found


def env_of(kind: str, name: str, algorithm: str) -> Any:
    if name == "on a native environment":
        return tiny_envs.Doors
    action = BOX if algorithm in ("RPO", "SAC", "TD3") else CHOICE
    shown = OBSERVATIONS[name] if kind == "observations" else VECTOR
    taken = ACTIONS[name] if kind == "actions" else MASKED[name] if kind == "masks" else action
    return GymnasiumEnv("Anything", {"shown": shown, "taken": taken, "masked": kind == "masks"}, make=Anything)


def play(agent: Any, spec: Any, deterministic: bool) -> list[Any]:
    """Actions for some steps in the environment itself, which takes no others than its own."""
    if not isinstance(spec, GymnasiumEnv):
        env = spec.vector(1, seed=3)
        obs, taken = env.reset(seed=3)[0], []
        for _ in range(6):
            mask = env.masks[0].copy()
            action, _ = agent.predict(obs[0].copy(), deterministic=deterministic, action_masks=mask)
            assert mask[action]
            obs = env.step([action])[0]
            taken.append(action)
        return taken
    env = spec.made()
    obs, info = env.reset(seed=3)
    taken = []
    for _ in range(6):
        taken.append(agent.predict(obs, deterministic=deterministic, action_masks=info.get("action_mask"))[0])
        obs, _, _, _, info = env.step(taken[-1])
    return taken


@pytest.mark.parametrize(("kind", "name", "algorithm", "mark"), cells())
def test_cell(kind: str, name: str, algorithm: str, mark: str, tmp_path: Path) -> None:
    make = getattr(mileage, algorithm)
    if mark.startswith("no"):
        for backend in ("native", "torch"):
            with pytest.raises(
                UsageError, match=r"needs (continuous actions|discrete actions|a single discrete)"
            ) as told:
                make(env_of(kind, name, algorithm), preset="none", backend=backend)
            assert len(re.findall(r"[.!?](\s|$)", str(told.value))) == 0
        return
    for backend in {"both": ("native", "torch"), "native": ("native",)}[mark]:
        spec = env_of(kind, name, algorithm)
        with make(spec, preset="none", backend=backend, threads=1, hidden=(8,), **SMALL[algorithm]) as agent:
            agent.learn(32, panel=agent.default_panel(episodes=2))
            assert agent.backend == backend
            taken = play(agent, spec, True)
            play(agent, spec, False)
            agent.save(tmp_path / "agent.safetensors")
            with make.load(tmp_path / "agent.safetensors", env=spec) as again:
                assert repr(play(again, spec, True)) == repr(taken)
            found = agent.distribution(spec.codec.rows(np.zeros((2, agent.spec.obs_size), np.float32))[0])
            assert all(np.isfinite(each).all() for each in found.probabilities)
            assert all(np.allclose(each.sum(axis=1), 1.0, atol=1e-5) for each in found.probabilities)


@pytest.mark.parametrize("name", ["Box, an image of bytes", "Dict", "Tuple", "Dict of Tuples"])
@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_observations_keep_their_form_for_networks_that_want_it(algorithm: str, name: str) -> None:
    spec = env_of("observations", name, algorithm)
    with getattr(mileage, algorithm)(spec, preset="none", policy="cnn", threads=1, **SMALL[algorithm]) as agent:
        agent.learn(32, panel=agent.default_panel(episodes=2))
        assert agent.spec.leaves
        play(agent, spec, True)


def test_masks_in_processes_of_their_own() -> None:
    spec = env_of("masks", "on MultiDiscrete actions", "PPO")
    with mileage.PPO(spec, preset="none", processes=True, threads=1, **SMALL["PPO"]) as agent:
        agent.learn(32, panel=agent.default_panel(episodes=2))


def test_a_method_that_tells_masks_will_do() -> None:
    class Telling(Anything):
        def _shown(self) -> tuple[Any, dict[str, Any]]:
            return super()._shown()[0], {}

        def action_masks(self) -> Any:
            return self.mask

    spec = GymnasiumEnv("Telling", {"shown": VECTOR, "taken": CHOICE, "masked": True}, make=Telling)
    assert spec.masked
    for algorithm in ("PPO", "DQN"):
        with getattr(mileage, algorithm)(spec, preset="none", threads=1, **SMALL[algorithm]) as agent:
            agent.learn(32, panel=agent.default_panel(episodes=2))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_a_mask_that_leaves_nothing_ends_the_run_with_a_sentence(algorithm: str, backend: str) -> None:
    with (
        getattr(mileage, algorithm)(
            tiny_envs.Walled, preset="none", backend=backend, threads=1, **SMALL[algorithm]
        ) as agent,
        pytest.raises(EnvError, match="'TestWalled-v0' has a mask that leaves no action possible"),
    ):
        agent.learn(64, panel=agent.default_panel(episodes=2), eval_every=10**9)


def test_a_checkpoint_is_not_loaded_for_other_spaces(tmp_path: Path) -> None:
    small = {"preset": "none", "threads": 1, **SMALL["PPO"]}
    with mileage.PPO(env_of("actions", "Discrete", "PPO"), **small) as agent:
        agent.learn(16, panel=agent.default_panel(episodes=2))
        agent.save(tmp_path / "agent.safetensors")
    with pytest.raises(CheckpointError, match=r"whose action is Discrete\(3\), not Discrete\(3, start=7\)"):
        mileage.PPO.load(tmp_path / "agent.safetensors", env=env_of("actions", "Discrete from another start", "PPO"))


def test_a_policy_tells_its_distribution() -> None:
    agent = mileage.PPO(tiny_envs.Doors, preset="none")
    says = agent.distribution(np.eye(5)[0], action_masks=[0, 0, 1, 1, 1])
    assert says.probabilities[0][:2].tolist() == [0.0, 0.0]
    assert says.probabilities[0].sum() == pytest.approx(1.0, abs=1e-6)
    assert np.shape(says.value) == ()
    free = agent.distribution(np.eye(5))
    assert free.probabilities[0].shape == (5, 5)
    drawn = [agent.predict(np.eye(5)[0], deterministic=False)[0] for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 3000, free.probabilities[0][0], atol=0.05)
    several = mileage.PPO(tiny_envs.Panel, preset="none").distribution([0.0, 1.0, 0.5])
    assert [each.shape for each in several.probabilities] == [(3,), (2,)]
    assert several.mean is not None
    assert several.mean.shape == several.deviation.shape == (1,)  # type: ignore[union-attr]
    values = mileage.DQN(tiny_envs.Doors, preset="none").distribution(np.eye(5)[0], [1, 1, 0, 0, 1])
    assert values.action_values is not None
    assert values.value == values.action_values[[0, 1, 4]].max()


def test_native_environments_refuse_what_their_parts_do_not_have() -> None:
    env = tiny_envs.Panel.vector(2)
    env.reset(seed=0)
    env.step(np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    for bad in ([3.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.5, 1.0, 0.0]):
        with pytest.raises(UsageError, match=r"whole numbers from 0 to below \(3, 2\)"):
            env.step(np.array([bad, bad]))
    with pytest.raises(UsageError, match=r"mask\(\) of environment 'M' is for discrete actions"):
        mileage.env("M", state_size=1, action_low=[0.0], action_high=[1.0])(
            type("M", (), {"reset": _nothing, "step": _none, "mask": _nothing})
        )


def _nothing(state: Any, out: Any) -> None:
    pass


def _none(state: Any, action: Any, rng: Any) -> Any:
    return 0.0, False
