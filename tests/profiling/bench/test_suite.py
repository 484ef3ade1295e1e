"""`mileage bench` without a clock: what is measured, in which order, and what is said about it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.errors import UnknownNameError, UsageError
from mileage.measure import Cause, MockExecutor, Sample, Turn
from mileage.measure.surroundings import Reading
from mileage.measure.timing import ClockExecutor
from mileage.profiling.bench import cases as bench_cases
from mileage.profiling.bench import own as bench_own
from mileage.profiling.bench import peers as clone
from mileage.profiling.bench import suite as bench
from mileage.profiling.bench.cases import CASES, Case, Way, chosen, primitives
from mileage.profiling.bench.suite import BenchOptions
from primitives import PEERS, PeerLibraries

PRIMITIVES = Path(__file__).resolve().parents[3] / "benchmarks" / "primitives"
READING = Reading(0.1, 0.0, 3000.0, None, 0.0, 1e-3, 0.0)
PHASE = next(case for case in CASES if case.primitive == "phase-event")
GROUPS = next(case for case in CASES if case.primitive == "groups")
# Small enough to run at once, for every primitive.
SMALL: dict[str, dict[str, Any]] = {
    "gae": {"n_envs": 3, "horizon": 7},
    "vtrace": {"n_envs": 3, "horizon": 7},
    "nstep": {"n_envs": 3, "horizon": 7, "n": 3},
    "token-kl": {"rows": 3, "length": 40, "estimator": "k3"},
    "groups": {"groups": 3, "size": 4},
    "moments": {"rows": 5, "width": 2},
    "replay-push": {"rows": 512, "n": 4, "size": 3},
    "replay-sample": {"rows": 512, "n": 4, "size": 3},
    "prioritized": {"entries": 300},
    "env-step": {"n_envs": 5},
    "rollout": {"n_envs": 2, "n_steps": 8},
    "ppo-update": {"n_envs": 2, "n_steps": 8, "minibatch": 8, "epochs": 1},
    "ppo-iteration": {"n_envs": 2, "n_steps": 8, "minibatch": 8, "epochs": 1},
    "sac-update": {"width": 8, "batch": 8},
    "evaluation": {"episodes": 3},
    "mlp": {"rows": 5, "sizes": [4, 6, 2]},
    "gemm": {"size": 8},
    "memory": {"mib": 1},
    "phase-event": {},
}


class FakeChannel:
    """A worker with rlox and NumPy, of which rlox cannot do one job."""

    def __init__(self, python: Path | str) -> None:
        self.log: list[dict[str, Any]] = []

    def ask(self, **request: Any) -> dict[str, Any]:
        self.log.append(request)
        if request["do"] == "hello":
            return {"libraries": ["NumPy", "rlox"], "versions": {"NumPy": "2.0", "rlox": "1.2"}, "python": "3.11"}
        if request["do"] == "build":
            return {"absent": "does not do this"} if request["library"] == "NumPy" else {"label": "fast", "units": 4}
        return {"wall": 2e-6, "cpu": 1e-6}

    def close(self) -> None:
        self.log.append({"do": "close"})


def run(cases: list[Case], seconds: dict[str, Any], **options: Any) -> bench.PrimitivesReport:
    return bench.run(cases, BenchOptions(**options), executor=MockExecutor(seconds), read=lambda: READING)


def test_every_primitive_has_a_small_run_and_peers_for_it_exist_by_name() -> None:
    assert tuple(SMALL) == primitives()
    assert set(PEERS) <= set(primitives())
    for peer in (peer for peers in PEERS.values() for peer in peers):
        module, name = peer.home.split(":")
        source = clone.find(PRIMITIVES) / f"{module}.py"
        assert f"def {name}(" in source.read_text(), peer


@pytest.mark.parametrize("primitive", SMALL)
def test_every_primitive_runs_and_kernels_answer_as_numpy(primitive: str) -> None:
    case = Case(primitive, primitive, SMALL[primitive], 1.0, "jobs")
    way = case.own(threads=1)
    way.run()
    bench.check_answer(case, way, 1)
    with_answer = {"gae", "vtrace", "nstep", "token-kl", "groups", "mlp"}
    assert (way.answer is not None) == (primitive in with_answer)


def test_a_wrong_answer_is_not_timed() -> None:
    wrong = Way(lambda: np.zeros((64, 8)), answer=np.asarray)
    with pytest.raises(UsageError, match="group advantages 64×8: the answer differs"):
        bench.check_answer(GROUPS, wrong, 1)


def test_work_counts_every_unit() -> None:
    # Two products at once on two threads are two jobs.
    assert bench_own.gemm(8, threads=2).units == 2
    assert bench_own.env_step(3, threads=1).units == 64


def test_chosen_cases() -> None:
    assert [case.title for case in chosen(["groups", "gae"])][:1] == ["GAE 8×128"]
    assert {case.primitive for case in chosen(["groups", "gae"])} == {"gae", "groups"}
    assert chosen([]) == CASES
    assert {case.title for case in CASES} - {case.title for case in chosen([], quick=True)} == {
        "prioritized sample + update 256, of 1,000,000"
    }
    with pytest.raises(UnknownNameError, match="unknown primitive 'gea': did you mean 'gae'"):
        chosen(["gea"])
    with pytest.raises(UsageError, match="nothing to measure"):
        bench.run([])


def test_titles_are_distinct() -> None:
    titles = [case.title for case in bench_cases.CASES]
    assert len(set(titles)) == len(titles)


def test_arms_of_all_libraries_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    channels: list[FakeChannel] = []

    def start(python: Path) -> FakeChannel:
        channels.append(FakeChannel(python))
        return channels[-1]

    monkeypatch.setattr("primitives.ProcessChannel", start)
    executor = MockExecutor({"mileage": itertools.repeat(1e-6), "rlox, fast": itertools.repeat(3e-6)})
    shown: list[str] = []
    with clone.opened(clone.find(PRIMITIVES), (Path("one"), Path("two")), 2) as others:
        report = bench.run(
            [GROUPS],
            BenchOptions(rounds=5),
            others=others,
            executor=executor,
            read=lambda: READING,
            on_progress=lambda done, total, title: shown.append(f"{done + 1}/{total} {title}"),
        )
    assert [name for name, _ in executor.log] == ["mileage"] * 3 + ["rlox, fast"] * 3 + [
        "mileage", "rlox, fast", "rlox, fast", "mileage", "mileage", "rlox, fast", "rlox, fast", "mileage",
        "mileage", "rlox, fast",
    ]  # fmt: skip
    # 5 ms of 1 µs; 5 ms of calls that do four jobs of 3 µs.
    assert {measured.arm: measured.repeats for measured in report.results[0].comparison.measurements} == {
        "mileage": 5000,
        "rlox, fast": 416,
    }
    (result,) = report.results
    assert [(measured.arm, ratio) for measured, ratio in result.peers] == [("rlox, fast", pytest.approx(3.0))]
    assert report.versions == {"NumPy": "2.0", "rlox": "1.2"}
    assert report.absent == {("group advantages 64×8", "NumPy"): "does not do this"}
    # What the first interpreter has, the second is not asked for; both end.
    asked = [[each.get("library") for each in channel.log if each["do"] == "build"] for channel in channels]
    assert asked == [["NumPy", "rlox"], []]
    assert [channel.log[-1] for channel in channels] == [{"do": "close"}] * 2
    assert shown == ["1/1 group advantages 64×8"]


def test_peer_arms_are_timed_by_their_own_process() -> None:
    channel = FakeChannel("")
    (arm,) = PeerLibraries(channel, 2).arms("t", "gae", {"n_envs": 8}, ["NumPy", "torch"])
    assert ClockExecutor().attempt(arm, Turn(arm.name, repeats=7)) == Sample("rlox, fast", 2e-6, 1e-6)
    assert channel.log[-1] == {"do": "sample", "key": "t/rlox", "repeats": 7}
    assert channel.log[-2]["params"] == {"n_envs": 8, "threads": 2}


def test_slow_cases_get_fewer_rounds_but_five_at_least() -> None:
    # A round takes 0.5 s: six of them fit into 3 s, and five are the least.
    assert len(run([PHASE], {"mileage": itertools.repeat(0.5)}, budget=3.0).results[0].ours.samples) == 6
    assert len(run([PHASE], {"mileage": itertools.repeat(0.5)}, budget=0.1).results[0].ours.samples) == 5
    assert len(run([PHASE], {"mileage": itertools.repeat(0.5)}, budget=None).results[0].ours.samples) == 15


def test_unsteady_samples_are_doubted_by_name() -> None:
    # Warm-ups, then one sample in six that is ten times as long.
    walls = [1e-3] * 3 + [1.00e-3, 1.01e-3, 10e-3, 0.99e-3, 1.00e-3, 1.01e-3]
    (result,) = run([PHASE], {"mileage": walls}, rounds=6).results
    assert [(each.arm, each.cause, each.evidence) for each in result.caveats] == [
        ("mileage", Cause.OUTLIERS, "1 of 6 runs are outliers")
    ]
    walls = [1e-3] * 3 + [1e-3, 2e-3, 1e-3, 2e-3, 1e-3]
    (result,) = run([PHASE], {"mileage": walls}, rounds=5).results
    assert {each.cause for each in result.caveats} == {Cause.WIDE_SPREAD, Cause.NOISY}
    (result,) = run([PHASE], {"mileage": [1e-3] * 5}, rounds=2).results
    assert [each.cause for each in result.caveats] == [Cause.FEW_ROUNDS]


def test_the_machine_is_looked_at_before_and_after() -> None:
    readings = iter([READING, Reading(0.1, 0.0, 2000.0, None, 0.0, 1e-3, 9.0)])
    report = bench.run([PHASE], executor=MockExecutor({"mileage": itertools.repeat(1e-3)}), read=lambda: next(readings))
    assert [each.cause for each in report.conditions] == [Cause.FREQUENCY]
    record = report.record()
    assert record["conditions"][0]["evidence"] == "3000 MHz at the start, 2000 MHz at the end"
    assert len(record["cases"][0]["arms"][0]["samples"]) == 15
