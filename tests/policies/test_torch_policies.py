"""Policies of modules: observations in every form, networks equal to native ones, the documentation's code."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
from mileage.codec import pack, view_of
from mileage.envs import make_vec
from mileage.envs.gymnasium.bridge import GymnasiumEnv
from mileage.envs.gymnasium.structured import StructuredEnv, structured
from mileage.errors import UsageError
from mileage.policies.actor_critic import ActorCritic
from mileage.policies.off_policy import QNetwork, SquashedActor

pytest.importorskip("torch", reason="the torch extra is not installed")

import torch

import torch_modules as modules
from mileage.policies.torch import images, networks
from mileage.policies.torch.policy import TorchQ, build_policy
from mileage.policies.torch.tensors import Adam, LiveTensors, keep_freed_memory, map_state, n_pieces, useful_threads

RNG = np.random.default_rng(0)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_networks_are_the_native_ones(activation: str) -> None:
    obs = RNG.normal(size=(7, 5)).astype(np.float32)
    actions = RNG.uniform(-1, 1, size=(7, 2)).astype(np.float32)
    native = ActorCritic(5, 3, hidden=(16, 8), activation=activation, seed=4)
    module = networks.MlpActorCritic(native)
    head, value = module(torch.from_numpy(obs))
    np.testing.assert_allclose(head.detach(), native.head(obs), atol=1e-6)
    np.testing.assert_allclose(value.detach(), native.values(obs), atol=1e-6)
    np.testing.assert_array_equal(module.flat(), native.params)
    for dueling in (False, True):
        q = QNetwork(5, 3, hidden=(16, 8), activation=activation, dueling=dueling, seed=4)
        np.testing.assert_allclose(networks.MlpQ(q)(torch.from_numpy(obs)).detach(), q.q_values(obs), atol=1e-6)
    squashed = SquashedActor(5, [-1, -1], [1, 1], hidden=(16, 8), activation=activation, seed=4)
    twin = networks.MlpActorTwinCritic(squashed)
    values = twin.critic(torch.from_numpy(obs), torch.from_numpy(actions)).detach()
    from mileage.policies.mlp import forward

    joined = np.concatenate([obs, actions], axis=1)
    for index, params in enumerate(np.split(squashed.critic_params, 2)):
        want = forward(params, squashed.critic_sizes, activation, joined)[:, 0]
        np.testing.assert_allclose(values[index], want, atol=1e-6)


def test_adam_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    adam, reference = Adam(dict(ours.named_parameters()), eps=1e-5), torch.optim.Adam(theirs.parameters(), eps=1e-5)
    for step in range(5):
        x = torch.randn(8, 3)
        norm = adam.step(ours(x).square().sum(), 1e-2 / (step + 1), 0.5)
        reference.param_groups[0]["lr"] = 1e-2 / (step + 1)
        reference.zero_grad()
        theirs(x).square().sum().backward()
        assert float(norm) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)), rel=1e-6)
        reference.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
    assert adam.steps == 5


def structured_case(kind: Any, n: int) -> tuple[Any, Any, list[Any]]:
    """A vector environment, and single ones that are seeded as its own are."""
    env = make_vec(structured(GymnasiumEnv("case", make=kind)), n)
    env.reset(seed=list(range(n)))
    singles = [kind() for _ in range(n)]
    return env, singles, [single.reset(seed=seed)[0] for seed, single in enumerate(singles)]


@pytest.mark.parametrize("kind", [modules.ShownPicture, modules.ShownDict])
def test_packed_observations_are_those_of_the_environments(kind: Any) -> None:
    env, singles, observations = structured_case(kind, 3)
    policy_view = build_policy(TorchQ, "dqn", torch.nn.Identity(), None, None, env.spec, torch.device("cpu"), None).view
    for step in range(1, 20):
        seen = policy_view(torch.from_numpy(env.obs))
        for i, want in enumerate(observations):
            if isinstance(want, dict):
                np.testing.assert_array_equal(seen["picture"][i], want["picture"])
                np.testing.assert_allclose(seen["place"][i], want["place"])
                np.testing.assert_array_equal(seen["hint"][i], np.eye(3)[want["hint"]])
                assert seen["picture"].dtype == torch.uint8
            else:
                np.testing.assert_array_equal(seen[i], want)
        actions = RNG.integers(0, 4, 3)
        _, reward, _, truncated, infos = env.step(actions)
        results = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        np.testing.assert_array_equal(reward, [result[1] for result in results])
        assert truncated.all() == (step % 8 == 0)
        observations = [result[0] for result in results]
        if step % 8 == 0:
            last = policy_view(torch.from_numpy(infos["final_obs"]))
            part = last["picture"] if isinstance(last, dict) else last
            wanted = [want["picture"] if isinstance(want, dict) else want for want in observations]
            np.testing.assert_array_equal(part, wanted)
            observations = [single.reset()[0] for single in singles]


def test_environments_that_lose_nothing_stay_flat() -> None:
    flat = GymnasiumEnv("recall", make=modules.Recall)
    assert structured(flat) is flat
    lake = GymnasiumEnv("FrozenLake-v1")
    assert structured(lake) is lake
    assert isinstance(structured(GymnasiumEnv("picture", make=modules.ShownPicture)), StructuredEnv)


def test_packing_is_undone_by_views() -> None:
    spec = structured(GymnasiumEnv("dict", make=modules.ShownDict))
    rows = np.zeros((5, spec.obs_size), np.uint8)
    obs = {
        "picture": RNG.integers(0, 256, (5, 4, 4)).astype(np.uint8),
        "place": RNG.normal(size=(5, 3)).astype(np.float32),
        "hint": RNG.integers(0, 3, 5),
    }
    pack(spec.leaves, obs, rows)
    views = {leaf.name: view_of(leaf, rows) for leaf in spec.leaves}
    np.testing.assert_array_equal(views["picture"], obs["picture"])
    np.testing.assert_array_equal(views["place"], obs["place"])
    np.testing.assert_array_equal(views["hint"].argmax(axis=1), obs["hint"])


def test_images_are_scaled_and_channels_are_found() -> None:
    torch.manual_seed(0)
    last = images.ImageTrunk((40, 44, 3), scale=True)
    first = images.ImageTrunk((3, 40, 44), scale=False)
    first.load_state_dict(last.state_dict())
    picture = torch.randint(0, 256, (2, 40, 44, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(picture), first(picture.permute(0, 3, 1, 2).float() / 255.0))
    flat = images.ImageTrunk((40, 44), scale=True)
    assert flat(picture[..., 0]).shape == (2, images.FEATURES)
    with pytest.raises(UsageError, match=r"^an image of shape \(2, 9\) cannot be convolved"):
        images.ImageTrunk((2, 9), scale=True)


def test_predict_takes_observations_as_the_environment_gives_them() -> None:
    agent = mileage.PPO(GymnasiumEnv("dict", make=modules.ShownDict), policy=modules.DictNet(4), preset="none")
    one = {"picture": np.zeros((4, 4), np.uint8), "place": np.zeros(3), "hint": np.eye(3)[0]}
    action, state = agent.predict(one)
    assert action.shape == ()
    assert state is None
    many = {name: np.stack([part] * 3) for name, part in one.items()}
    np.testing.assert_array_equal(agent.predict(many)[0], [action] * 3)
    with pytest.raises(UsageError, match=r"^observation must be a dict with \['"):
        agent.predict(np.zeros(4))
    with pytest.raises(UsageError, match=r"^observation 'picture' must have shape \(4, 4\), not \(5, 5\)$"):
        agent.predict(one | {"picture": np.zeros((5, 5), np.uint8)})
    with pytest.raises(UsageError, match=r"^observation must have 4 entries, not shape \(3,\)$"):
        mileage.PPO("CartPole-v1", backend="torch").predict(np.zeros(3))


def test_predict_remembers_what_it_is_given() -> None:
    torch.manual_seed(0)
    module = modules.Remembering(2, 2)
    agent = mileage.PPO(GymnasiumEnv("recall", make=modules.Recall), policy=module, preset="none")
    obs = np.ones((2, 2), np.float32)
    _, state = agent.predict(obs)
    _, later = agent.predict(obs, state=state)
    with torch.no_grad():
        want = module.cell(torch.from_numpy(obs), state)
    torch.testing.assert_close(later, want)
    _, restarted = agent.predict(obs, state=state, episode_start=[True, False])
    torch.testing.assert_close(restarted[0][0], state[0][0])
    torch.testing.assert_close(restarted[0][1], later[0][1])


def test_draws_follow_the_distribution() -> None:
    agent = mileage.PPO("CartPole-v1", backend="torch", preset="none")
    obs = np.tile(RNG.normal(size=4).astype(np.float32), (4000, 1))
    with torch.no_grad():
        head, _ = agent.policy.module(torch.from_numpy(obs[:1]) * 1.0)
        agent.policy.module.actor.biases[0][0, 0, 0] += 1.0
    share = agent.predict(obs, deterministic=False)[0].mean()
    logit = float(head[0, 1] - head[0, 0]) - 1.0
    assert share == pytest.approx(1.0 / (1.0 + np.exp(-logit)), abs=0.04)


def test_arrays_of_tensors_that_are_not_contiguous_are_read_back() -> None:
    weight = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
    live = LiveTensors({"weight": weight})
    arrays = live.arrays()
    np.testing.assert_array_equal(arrays["weight"], np.arange(24.0).reshape(2, 3, 2, 2))
    arrays["weight"][:] = 7.0
    live.load()
    assert (weight == 7.0).all()
    weight += 1.0
    assert (live.arrays()["weight"] == 8.0).all()


def test_states_of_any_form_are_mapped() -> None:
    state = {"a": (torch.ones(2), torch.zeros(2)), "b": torch.full((2,), 3.0)}
    doubled = map_state(torch.add, state, state)
    assert doubled["a"][0].tolist() == [2.0, 2.0]
    assert doubled["b"].tolist() == [6.0, 6.0]


def test_work_decides_how_many_threads_are_used() -> None:
    assert useful_threads(1e6, 8) == 1
    assert useful_threads(1e12, 8) == 8
    assert n_pieces(256, 1e3) == 1
    assert n_pieces(256, 1e7) == 2
    assert n_pieces(10_000, 1e9) == 8


@pytest.mark.parametrize("page", ["torch.md", "migrating-from-sb3.md"])
def test_the_pages_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "page"})


def test_the_migration_page_names_hyperparameters_that_exist() -> None:
    """Every setting in the right-hand column of the tables is a field of some configuration, or an argument."""
    import dataclasses
    import inspect

    from mileage.algorithms.registry import BUILT_IN
    from mileage.training.agent import Agent

    known = {field.name for each in BUILT_IN for field in dataclasses.fields(each.learner().Config)}
    for function in (Agent.__init__, Agent.learn, Agent.predict, Agent.default_panel):
        known |= set(inspect.signature(function).parameters)
    text = (ROOT / "docs" / "migrating-from-sb3.md").read_text()
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ") and line.count("|") == 3]
    code = [re.findall(r"`([^`]+)`", cell) for cell in cells]
    named = {name for spans in code for span in spans for name in re.findall(r"(\w+)=", span)}
    named |= {spans[0] for spans in code if spans and spans[0].isidentifier()}
    assert {"minibatch", "capacity", "target_every", "normalise_rewards"} <= named
    assert named <= known


def test_memory_of_freed_tensors_is_kept() -> None:
    if not keep_freed_memory():
        assert not hasattr(ctypes.CDLL(None), "mallopt")
        return

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    for _ in range(8):  # the heap grows a few times before it is large enough
        torch.ones(4_000_000)
    before = faults()
    for _ in range(20):
        torch.ones(4_000_000)  # 16 MB: 4,000 pages, were they given back each time
    assert faults() - before < 8_000
