"""A learner that the profiler has never heard of: by phases if it says nothing, by calls and stages if it does."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mileage.description import ACT
from mileage.profiling import Profile, profile_run
from mileage.profiling.export import export
from mileage.training.agents import agent_class
from tiny_learners import STAGES, Talkative


@pytest.fixture(scope="module")
def silent() -> Profile:
    return profile_run("tiny_learners:Silent", "CartPole-v1", steps=512, episodes=2, effort=0.05, replay=120.0)


@pytest.fixture(scope="module")
def talkative() -> Profile:
    return profile_run("tiny_learners:Talkative", "CartPole-v1", steps=512, episodes=2, effort=0.05, replay=120.0)


def test_a_learner_that_says_nothing_is_profiled_by_phases(silent: Profile) -> None:
    assert silent.calibration is None
    assert {"inference", "env_step", "learn"} <= set(silent.run.phases)
    assert silent.run.sum_error < 0.01
    assert silent.findings
    assert json.loads(json.dumps(silent.as_dict()))["verdict"] == silent.verdict
    assert export(silent, "md").startswith("# Profile: silent on CartPole-v1")


def test_calls_are_counted_where_the_learner_says_they_are(talkative: Profile) -> None:
    found = talkative.calibration
    assert found is not None
    calls = {call.label: call.per_iteration for cost in found.costs for call in cost.calls}
    assert calls == {"env.step": 8.0, "crunch": 1.0}
    assert found.layers.total == pytest.approx(sum(cost.seconds for cost in found.costs))
    assert found.layers.update["BLAS"] + found.layers.update["native"] > 0.0


def test_stages_work_and_variants_are_those_it_describes(talkative: Profile) -> None:
    found = talkative.calibration
    assert found is not None
    assert found.update_stages is not None
    assert tuple(found.update_stages.stages) == STAGES
    assert [(roof.phase, roof.flops) for roof in found.roofline] == [("learn", 2.0 * 20 * 32**3)]
    assert [(change.fix, change.suggestion) for change in found.what_ifs] == [("batch", "--set size=16")]
    assert found.what_ifs[0].ratios["learn"] > 0.0
    assert [(buffer.name, buffer.seen_bytes) for buffer in found.buffers] == [("weights", 4 * 32 * 32)]
    assert found.primitives[ACT] > 0.0
    # It has one thread, and says nothing of others.
    assert found.scaling == {}
    assert found.rollout_parts is None


def test_nothing_is_learned_while_it_rests() -> None:
    with agent_class("tiny_learners:Talkative")("CartPole-v1") as agent:
        learner = agent.learner
        assert isinstance(learner, Talkative)
        described, before = learner.describe(), learner.weights.copy()
        with described.paused():
            described.calls["learn"].run()
            np.testing.assert_array_equal(learner.weights, before)
        described.calls["learn"].run()
        assert not np.array_equal(learner.weights, before)
