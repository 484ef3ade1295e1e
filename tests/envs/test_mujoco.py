"""MuJoCo environments against Gymnasium's own, step for step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage.envs import BridgedVecEnv, GymnasiumEnv, make_vec, mujoco, resolve
from mileage.errors import MileageError, MissingExtraError, UnknownNameError, UsageError

pytest.importorskip("mujoco", reason="the mujoco extra is not installed")

from mileage.envs.mujoco import vector
from mileage.envs.mujoco.tasks import task_class
from mileage.envs.mujoco.vector import MujocoEnv, MujocoVecEnv

STEPS = 1000
SEED = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.5,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
        "frame_skip": 2,
        "max_episode_steps": 20,
    },
    "Swimmer-v5": {"ctrl_cost_weight": 0.1, "exclude_current_positions_from_observation": False},
    "Hopper-v5": {
        "terminate_when_unhealthy": False,
        "healthy_reward": 3.0,
        "healthy_state_range": (-2.0, 2.0),
        "healthy_z_range": (1.0, 1.3),
        "healthy_angle_range": (-0.1, 0.1),
        "exclude_current_positions_from_observation": False,
    },
    "Walker2d-v5": {"healthy_z_range": (1.1, 1.3), "healthy_angle_range": (-0.1, 0.1), "ctrl_cost_weight": 0.1},
    "Ant-v5": {
        "main_body": "front_left_leg",
        "contact_force_range": (-20.0, 30.0),
        "contact_cost_weight": 0.01,
        "include_cfrc_ext_in_observation": False,
        "healthy_z_range": (0.4, 0.8),
        "exclude_current_positions_from_observation": False,
    },
    "Humanoid-v5": {
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (0.1, 0.5),
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "exclude_current_positions_from_observation": False,
        "healthy_z_range": (1.2, 2.0),
    },
    "Reacher-v5": {"reward_dist_weight": 3.0, "reward_control_weight": 0.5},
    "Pusher-v5": {"reward_near_weight": 2.0, "reward_dist_weight": 3.0, "reward_control_weight": 0.5},
    "InvertedPendulum-v5": {"reset_noise_scale": 0.15, "frame_skip": 1},
    "InvertedDoublePendulum-v5": {"healthy_reward": 3.0, "reset_noise_scale": 0.05},
}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes a log about Gymnasium's model files into the working directory."""
    monkeypatch.chdir(tmp_path)


def assert_equal_to_gymnasium(name: str, kwargs: dict[str, Any], steps: int, excess: float = 1.0) -> int:
    """Run the second of three environments beside Gymnasium's, through as many episodes as there are; count them.

    Observations must be Gymnasium's rounded to float32, without any tolerance.
    """
    theirs = gymnasium.make(name, **kwargs)
    ours = MujocoVecEnv(MujocoEnv(name, kwargs), 3, threads=2)
    expected, _ = theirs.reset(seed=SEED)
    obs, _ = ours.reset(seed=[SEED + 1, SEED, SEED + 2])
    np.testing.assert_array_equal(obs[1], expected.astype(np.float32))
    rng = np.random.default_rng(0)
    low, high = ours.spec.action_low * excess, ours.spec.action_high * excess
    episodes = 0
    for t in range(steps):
        actions = rng.uniform(low, high, (3, len(low))).astype(np.float32)
        expected, reward, terminated, truncated, _ = theirs.step(actions[1])
        obs, rewards, ends, cuts, infos = ours.step(actions)
        assert rewards[1] == pytest.approx(float(reward), rel=1e-6, abs=1e-6), t
        assert (ends[1], cuts[1]) == (terminated, truncated and not terminated), t
        if terminated or truncated:
            episodes += 1
            assert infos["_final_obs"][1]
            np.testing.assert_array_equal(infos["final_obs"][1], expected.astype(np.float32))
            expected, _ = theirs.reset()
        np.testing.assert_array_equal(obs[1], expected.astype(np.float32), err_msg=f"step {t}")
    ours.close()
    theirs.close()
    return episodes


@pytest.mark.parametrize("name", mujoco.TASKS)
def test_equals_gymnasium_over_a_thousand_steps(name: str) -> None:
    # Every one of them ends episodes on the way, by falling or by the time limit.
    assert assert_equal_to_gymnasium(name, {}, STEPS) >= 1


@pytest.mark.parametrize("name", mujoco.TASKS)
def test_equals_gymnasium_with_other_options(name: str) -> None:
    assert OPTIONS[name].keys() <= {*task_class(name).options, "frame_skip", "max_episode_steps"}
    assert_equal_to_gymnasium(name, OPTIONS[name], 120)


def test_actions_beyond_their_bounds_cost_what_they_are_and_act_as_the_bounds() -> None:
    assert_equal_to_gymnasium("HalfCheetah-v5", {}, 50, excess=3.0)
    assert_equal_to_gymnasium("Humanoid-v5", {}, 50, excess=3.0)


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    source = (Path(gymnasium.__file__).parent / "envs/mujoco/assets/inverted_pendulum.xml").read_text()
    path = tmp_path / "heavy.xml"
    path.write_text(source.replace("<option ", '<option density="500" '))
    assert_equal_to_gymnasium("InvertedPendulum-v5", {"xml_file": str(path)}, 60)
    assert MujocoEnv("InvertedPendulum-v5", {"xml_file": str(path)}).version != MujocoEnv("InvertedPendulum-v5").version


@pytest.mark.parametrize("name", mujoco.TASKS)
def test_the_description_is_gymnasiums(name: str) -> None:
    spec, known = MujocoEnv(name), gymnasium.spec(name)
    assert (spec.max_steps, spec.reward_threshold) == (known.max_episode_steps, known.reward_threshold)
    assert spec.n_actions == 0
    env = gymnasium.make(name)
    np.testing.assert_array_equal(spec.action_low, env.action_space.low)
    np.testing.assert_array_equal(spec.action_high, env.action_space.high)
    assert (spec.obs_size,) == env.observation_space.shape
    assert spec.action_space == env.action_space
    np.testing.assert_array_equal(spec.observation_space.low, env.observation_space.low.astype(np.float32))


@pytest.mark.parametrize("name", ["Ant-v5", "Hopper-v5"])
def test_threads_change_nothing(name: str) -> None:
    results = []
    for threads in (1, 2, 5):
        vec = MujocoVecEnv(name, 5, seed=3, threads=threads)
        vec.reset()
        rng = np.random.default_rng(0)
        rows = []
        for _ in range(80):
            actions = rng.uniform(-1.0, 1.0, (5, vec.spec.action_size))
            obs, reward, terminated, _, _ = vec.step(actions)
            rows.append(np.column_stack([obs, reward, terminated, vec.final_obs]))
        results.append(np.stack(rows))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_mask_resets_only_those_marked() -> None:
    vec = MujocoVecEnv("HalfCheetah-v5", 3)
    vec.reset(seed=[1, 2, 3])
    first = vec.step(np.ones((3, 6)))[0].copy()
    obs, _ = vec.reset(seed=[1, 7, 3], options={"reset_mask": np.array([False, True, False])})
    np.testing.assert_array_equal(obs[[0, 2]], first[[0, 2]])
    np.testing.assert_array_equal(obs[1], MujocoVecEnv("HalfCheetah-v5", 1).reset(seed=[7])[0][0])
    np.testing.assert_array_equal(vec.elapsed, [1, 0, 1])
    with pytest.raises(UsageError, match="reset_mask"):
        vec.reset(options={"reset_mask": [True, False, True]})


def test_resolve_picks_it_and_passes_gymnasiums_options_on() -> None:
    spec = resolve("HalfCheetah-v5", ctrl_cost_weight=0.2)
    assert isinstance(spec, MujocoEnv)
    assert spec.kwargs == {"ctrl_cost_weight": 0.2}
    assert spec.version != resolve("HalfCheetah-v5").version
    vec = make_vec("Reacher-v5", 2, threads=1)
    assert isinstance(vec, MujocoVecEnv)
    assert vec.threads == 1


def test_without_mujoco_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mujoco" else find(name))
    with pytest.raises(MissingExtraError, match=r"environment 'Ant-v5' needs an extra: .*pip install .*\[mujoco\]"):
        resolve("Ant-v5")


def test_a_mujoco_without_batches_leaves_it_to_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "library", lambda: None)
    spec = resolve("InvertedPendulum-v5")
    assert isinstance(spec, GymnasiumEnv)
    assert isinstance(make_vec(spec, 1), BridgedVecEnv)


def test_compiling_leaves_no_log_behind(tmp_path: Path) -> None:
    from mileage.envs.mujoco.vector import _compile

    _compile.cache_clear()
    MujocoEnv("HalfCheetah-v5")
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not take the option 'render_mode'.*GymnasiumEnv"):
        MujocoEnv("HalfCheetah-v5", {"render_mode": "human"})
    with pytest.raises(UnknownNameError, match="did you mean 'Hopper-v5'"):
        MujocoEnv("Hoper-v5")
    with pytest.raises(UsageError, match="frame_skip must be a whole number of at least 1, not 0"):
        MujocoEnv("Ant-v5", {"frame_skip": 0})
    with pytest.raises(UsageError, match=r"xml_file 'nowhere\.xml' does not exist"):
        MujocoEnv("Ant-v5", {"xml_file": "nowhere.xml"})
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody><geom/></worldbody>")
    with pytest.raises(UsageError, match="cannot be loaded"):
        MujocoEnv("Ant-v5", {"xml_file": str(broken)})
    with pytest.raises(UsageError, match="does not fit 'Reacher-v5'"):
        MujocoVecEnv(MujocoEnv("Reacher-v5", {"xml_file": "ant.xml"}), 1)
    for arguments in ({"n_envs": 0}, {"n_envs": 1, "threads": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            MujocoVecEnv("Hopper-v5", **arguments)
    vec = MujocoVecEnv("Hopper-v5", 2)
    for seed in (-1, [1, -1]):
        with pytest.raises(UsageError, match="seed must be 0 or more, not -1"):
            vec.reset(seed=seed)
    with pytest.raises(UsageError, match="seed must be one int or one for each of 2 environments, not 1"):
        vec.reset(seed=[1])


def test_a_closed_one_refuses_to_step() -> None:
    vec = MujocoVecEnv("InvertedPendulum-v5", 1)
    vec.reset()
    vec.close()
    vec.close()
    with pytest.raises(UsageError, match="closed"):
        vec.step(np.zeros((1, 1)))
    with pytest.raises(UsageError, match="closed"):
        vec.reset()


def test_an_error_inside_mujoco_names_the_environment(tmp_path: Path) -> None:
    source = (Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml").read_text()
    path = tmp_path / "small.xml"
    path.write_text(source.replace('<size nstack="300000" nuser_geom="1"/>', '<size memory="3000" nuser_geom="1"/>'))
    vec = MujocoVecEnv(MujocoEnv("HalfCheetah-v5", {"xml_file": str(path)}), 2)
    vec.reset(seed=0)

    def fall() -> None:
        for _ in range(100):  # until a foot touches the ground
            vec.step(np.zeros((2, 6)))

    with pytest.raises(MileageError, match=r"MuJoCo failed in [12] of 2 environments, first in number [01]: .*memory"):
        fall()
