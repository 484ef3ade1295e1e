"""The whole profile on every algorithm and on both back ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mileage.description import Layer
from mileage.profiling import Profile, profile_run
from mileage.profiling.export import FORMATS, export
from mileage.profiling.report import tables
from mileage.training.agents import agent_class

ON = {"n_envs": 4, "n_steps": 32, "hidden": [16, 16], "preset": "none"}
OFF = {"capacity": 2000, "learning_starts": 100, "batch": 32, "hidden": [16, 16]}
WORKLOADS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", 512, ON | {"minibatch": 64}),
    "ppo, continuous": ("ppo", "Pendulum-v1", 512, ON | {"normalise_observations": True}),
    "a2c": ("a2c", "CartPole-v1", 512, ON),
    "impala": ("impala", "CartPole-v1", 512, ON),
    "sac": ("sac", "Pendulum-v1", 400, OFF),
    "td3": ("td3", "Pendulum-v1", 400, OFF),
    "dqn": ("dqn", "CartPole-v1", 400, OFF),
    "ppo on torch": ("ppo", "CartPole-v1", 512, ON | {"backend": "torch"}),
    "sac on torch": ("sac", "Pendulum-v1", 300, OFF | {"backend": "torch"}),
}
_DONE: dict[str, Profile] = {}


def measured(name: str) -> Profile:
    if name not in _DONE:
        algorithm, env, steps, options = WORKLOADS[name]
        _DONE[name] = profile_run(algorithm, env, steps=steps, episodes=2, effort=0.05, replay=120.0, **options)
    return _DONE[name]


@pytest.mark.parametrize("broken", ["describe", "layers", "ledger"])
def test_what_the_run_has_shown_is_there_whatever_fails_afterwards(
    broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("planted")

    place = {"describe": "algorithms.dqn.DQN.describe", "layers": "profiling.calibration.replay",
             "ledger": "profiling.run.save"}[broken]  # fmt: skip
    monkeypatch.setattr(f"mileage.{place}", fails)
    told: list[str] = []
    algorithm, env, steps, options = WORKLOADS["dqn"]
    found = profile_run(
        algorithm, env, steps=steps, episodes=2, effort=0.05, replay=120.0, db=str(tmp_path / "l.db"),
        on_progress=told.append, **options,
    )  # fmt: skip
    assert found.run.env_steps >= steps
    assert [each for each in told if "failed: ValueError: planted" in each]
    made = {each.key for each in tables(found)}
    assert {"end_to_end", "phases"} <= made
    assert ("layers" in made, "roofline" in made) == (broken == "ledger", broken != "describe")


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_replay_buffer_that_fills_while_it_is_timed_is_not_damaged(algorithm: str) -> None:
    """Storing is timed on the buffer of the run, which is far from full."""
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    kind = agent_class(algorithm)
    with kind(env, seed=0, capacity=2000, learning_starts=100, batch=32, hidden=(16, 16)) as agent:
        agent.learn(300, ledger=False)
        learner: Any = agent.learner
        with learner.describe().paused():
            for _ in range(500):
                learner.push()
        agent.learn(300, ledger=False)


@pytest.mark.parametrize("name", WORKLOADS)
def test_phases_add_up_to_the_wall_clock(name: str) -> None:
    run = measured(name).run
    assert sum(run.phases.values()) == pytest.approx(run.wall_seconds, rel=0.01)
    assert run.sum_error < 0.01
    assert run.env_steps >= WORKLOADS[name][2]


@pytest.mark.parametrize("name", WORKLOADS)
def test_layers_add_up_to_the_replayed_iteration(name: str) -> None:
    found = measured(name).calibration
    assert found is not None
    whole = sum(cost.seconds for cost in found.costs)
    assert found.layers.total == pytest.approx(whole, rel=0.03)
    assert set(found.layers.rollout) <= set(Layer)
    # What is left of a phase is a difference, and off by rounding.
    assert min(found.layers.rollout.values()) >= -1e-9
    assert min(found.layers.update.values(), default=0.0) >= -1e-9


@pytest.mark.parametrize("name", WORKLOADS)
def test_buffers_are_as_large_as_predicted(name: str) -> None:
    found = measured(name).calibration
    assert found is not None
    for buffer in found.buffers:
        if buffer.name == "replay":
            # Records are padded to whole words.
            assert buffer.predicted_bytes <= buffer.seen_bytes <= 1.5 * buffer.predicted_bytes
        else:
            assert buffer.seen_bytes == buffer.predicted_bytes, buffer


def test_crossings_of_a_fused_iteration_are_three() -> None:
    found = measured("ppo").calibration
    assert found is not None
    calls = {call.label: call.per_iteration for cost in found.costs for call in cost.calls}
    assert calls == {"rollout": 1.0, "gae": 1.0, "update": 1.0}


def test_crossings_of_an_off_policy_step() -> None:
    found = measured("sac").calibration
    assert found is not None
    calls = {call.label: call.per_iteration for cost in found.costs for call in cost.calls}
    names = {"sac_act", "env.step", "replay.push_batch", "replay.sample", "sac_update"}
    assert calls == dict.fromkeys(names, 1.0)


def test_torch_operations_are_counted() -> None:
    found = measured("ppo on torch").calibration
    assert found is not None
    # More than one operation for each of the 32 steps of a rollout.
    assert found.torch_operations["inference"] > 32
    assert found.layers.rollout["torch"] > 0.0


@pytest.mark.parametrize("name", WORKLOADS)
def test_plain_data_is_json(name: str) -> None:
    found = measured(name)
    data = json.loads(json.dumps(found.as_dict()))
    assert data["verdict"] == found.verdict
    assert data["run"]["phases"] == pytest.approx(dict(found.run.phases))


@pytest.mark.parametrize("name", ["ppo", "sac", "ppo on torch"])
def test_markdown_has_every_table(name: str) -> None:
    found = measured(name)
    text = export(found, "md")
    # Whichever finding comes first on this machine, what Markdown would read as its own is escaped.
    assert text.splitlines()[2].replace("\\", "") == f"**{found.verdict}**"
    for table in tables(found):
        assert f"## {table.title}" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_what_was_not_replayed_is_said_and_has_no_empty_table() -> None:
    import dataclasses

    found = measured("ppo")
    assert found.calibration is not None
    bare = dataclasses.replace(found.calibration, primitives={}, skipped=("single operations",))
    text = export(dataclasses.replace(found, calibration=bare), "md")
    assert "## Single operations" not in text
    assert "| single operations | no time left within the replay's budget |" in text


def test_html_escapes_what_it_shows() -> None:
    import dataclasses

    found = measured("ppo")
    hostile = dataclasses.replace(found, workload={**found.workload, "env": "<script>alert(1)</script>"})
    assert "<script>alert" not in export(hostile, "html")
    assert "<script>" not in export(hostile, "md")


def test_the_page_has_every_table_and_asks_nobody_for_anything() -> None:
    found = measured("ppo")
    page = export(found, "html")
    assert page.count("<table") == len([each for each in tables(found) if each.key != "findings"])
    assert all(finding.bottleneck.label in page for finding in found.findings)
    assert "default-src 'none'" in page
    assert "src=" not in page.replace("-src=", "")


def test_the_trace_shows_the_run_as_it_went() -> None:
    found = measured("ppo")
    counted = [each for each in json.loads(export(found, "trace"))["traceEvents"] if each["ph"] == "C"]
    memory = [each["args"]["MiB"] for each in counted if each["name"] == "memory, MiB"]
    assert memory == [each.rss_mib for each in found.run.moments]
    for each in counted:
        if each["name"].startswith("phases"):
            assert sum(each["args"].values()) == pytest.approx(1.0)


def test_a_trace_holds_the_replayed_iterations() -> None:
    found = measured("ppo")
    assert found.calibration is not None
    events = json.loads(export(found, "trace"))["traceEvents"]
    iterations = [event for event in events if event["name"] == "iteration"]
    assert len(iterations) == min(200, found.calibration.trace.iterations)
    first = iterations[0]
    inside = [event for event in events if event.get("cat") == "call" and event["ts"] < first["ts"] + first["dur"]]
    assert [event["name"] for event in inside] == ["rollout", "gae", "update"]


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_speedscope_events_open_and_close_in_order(name: str) -> None:
    data = json.loads(export(measured(name), "speedscope"))
    frames = data["shared"]["frames"]
    for each in data["profiles"]:
        stack: list[int] = []
        last = 0.0
        for event in each["events"]:
            assert event["at"] >= last - 1e-9
            last = event["at"]
            assert event["frame"] < len(frames)
            if event["type"] == "O":
                stack.append(event["frame"])
            else:
                assert stack.pop() == event["frame"]
        assert stack == []


def test_formats_are_those_of_the_command() -> None:
    from mileage.cli.profile import FORMATS as NAMES

    assert tuple(FORMATS) == NAMES
    assert re.fullmatch(r"[A-Z-]+: .+", measured("ppo").verdict)


def test_parts_that_run_at_the_same_time_are_not_replayed() -> None:
    found = measured("impala").calibration
    assert found is not None
    assert found.rollout_parts is None
    assert found.update_stages is not None
    calls = {call.label: call.per_iteration for cost in found.costs for call in cost.calls}
    assert calls == {"score": 1.0, "vtrace": 1.0, "update": 1.0}
    # The learner waits for collectors off the CPU.
    assert "sync" in {cost.phase for cost in found.costs}
