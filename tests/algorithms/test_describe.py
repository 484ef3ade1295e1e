"""Operations of the learner and the collector, by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

import mileage
from mileage.algorithms.describe import backward, forward, input_gradient, one_forward
from mileage.description import Product, Work
from mileage.training.agent import Agent


def works(agent: Agent) -> Mapping[str, Work]:
    described = agent.learner.describe()
    assert described is not None
    return described.work


def flops(products: list[Product]) -> int:
    return sum(2 * m * n * k for _, _, m, n, k in products)


SIZES = (3, 5, 2)  # 3 * 5 + 5 * 2 = 25 weights


def test_a_forward_pass_uses_every_weight_twice_per_sample() -> None:
    assert flops(forward(7, SIZES)) == 2 * 25 * 7


def test_a_gradient_takes_two_more_passes_but_none_by_the_input() -> None:
    assert flops(backward(7, SIZES)) == 2 * 7 * (25 + 10)


def test_the_gradient_by_the_input_goes_through_every_layer() -> None:
    assert flops(input_gradient(7, SIZES)) == 2 * 25 * 7


def test_work_counts_pieces_and_repeats() -> None:
    work = Work((Product(0, 0, 2, 3, 4),), pieces=5, repeats=6, bytes_touched=720.0)
    assert work.flops == 2 * 2 * 3 * 4 * 5 * 6
    assert work.intensity == 2.0


def test_one_forward_counts_every_network() -> None:
    assert one_forward(4, (3, 5, 2), (3, 1)).flops == 2 * 4 * (25 + 3)


def test_ppo_update_of_all_epochs() -> None:
    agent = mileage.PPO("CartPole-v1", preset="none", n_envs=8, n_steps=32, minibatch=64, epochs=3, hidden=(16, 16))
    with agent:
        found = works(agent)
    per_sample = 0
    for sizes in ((4, 16, 16, 2), (4, 16, 16, 1)):
        layers = [a * b for a, b in itertools.pairwise(sizes)]
        per_sample += 6 * sum(layers) - 2 * layers[0]
    assert found["learn"].flops == per_sample * 8 * 32 * 3
    assert found["rollout"].flops == 8 * 32 * 2 * sum(
        a * b for sizes in ((4, 16, 16, 2), (4, 16, 16, 1)) for a, b in itertools.pairwise(sizes)
    )


def test_td3_counts_its_actor_by_the_share_of_updates_in_which_it_learns() -> None:
    @dataclass
    class Found:
        flops: float

    counts = {}
    for delay in (1, 2):
        with mileage.TD3("Pendulum-v1", policy_delay=delay, batch=32, hidden=(8,), capacity=100) as agent:
            counts[delay] = Found(works(agent)["learn"].flops)
    actor, critic = 3 * 8 + 8 * 1, 4 * 8 + 8 * 1
    on_actor = 32 * (2 * actor + 2 * (2 * actor - 24) + 2 * critic + 2 * critic)
    assert counts[1].flops - counts[2].flops == pytest.approx(on_actor / 2)


@pytest.mark.parametrize(
    ("kind", "env"), [(mileage.PPO, "CartPole-v1"), (mileage.SAC, "Pendulum-v1"), (mileage.DQN, "CartPole-v1")]
)
def test_torch_networks_do_the_work_of_native_ones(kind: type[Agent], env: str) -> None:
    options = {"capacity": 100, "batch": 8} if kind is not mileage.PPO else {}
    pytest.importorskip("torch")
    with kind(env, **options) as native, kind(env, backend="torch", **options) as other:
        wanted, found = works(native)["learn"].flops, works(other)["learn"].flops
        assert found == pytest.approx(wanted)
