"""Memory that grows and phases that get slower, in runs over time that are made up."""

from __future__ import annotations

from mileage.measure import PhaseTimes
from mileage.measure.machine import Load
from mileage.profiling.drift import Moment, drifts, growth, place_of
from mileage.profiling.findings.machine import is_shared, shared_machine
from mileage.profiling.model import Bottleneck, Finding, ranked


def moment(second: float, rss: float = 100.0, **entries: tuple[float, int]) -> Moment:
    """An instant at which phases have taken (seconds, entries); the rest of the wall-clock is `other`."""
    ns = {name: round(seconds * 1e9) for name, (seconds, _) in entries.items()}
    wall = round(second * 1e9)
    counts = {name: count for name, (_, count) in entries.items()}
    return Moment(PhaseTimes(wall, ns | {"other": wall - sum(ns.values())}, counts), rss)


def test_a_leak_has_a_slope_and_an_end() -> None:
    run = [moment(second / 10, 100.0 + 20.0 * second / 10) for second in range(100)]
    found = growth(run, left_mib=2000.0)
    assert found is not None
    assert round(found.mib_per_second, 6) == 20.0
    assert round(found.seconds_left or 0.0, 6) == 100.0


def test_a_buffer_that_fills_is_no_leak() -> None:
    # 2 MiB per entry of `store`, 10 entries a second: all of the growth.
    run = [moment(s / 10, 100.0 + 2.0 * s, store=(0.001 * s, s)) for s in range(100)]
    assert growth(run, 2000.0) is not None
    assert growth(run, 2000.0, {"store": (2.0, 1000)}) is None


def test_memory_that_goes_up_and_down_is_no_leak() -> None:
    assert growth([moment(s / 10, 100.0 + 50.0 * (s % 2)) for s in range(100)], 2000.0) is None


def test_a_phase_that_gets_slower_while_others_do_not_drifts() -> None:
    # The k-th entry of env_step takes k ms, each of learn 1 ms.
    run = [
        moment(0.001 * (k * k / 2 + k), env_step=(0.001 * k * k / 2, k), learn=(0.001 * k, k)) for k in range(1, 200)
    ]
    (found,) = drifts(run)
    assert found.phase == "env_step"
    assert found.ratio > 2.0
    assert 0.0 < found.extra_seconds < 20.0


def test_a_machine_that_gets_busier_is_no_drift() -> None:
    run = [moment(0.001 * k * k, env_step=(0.0005 * k * k, k), learn=(0.0005 * k * k, k)) for k in range(1, 200)]
    assert drifts(run) == ()


def load(foreign: float, stolen: float = 0.0) -> Load:
    return Load(10.0, 2, foreign, 1.0, stolen, 0.3, 0.5)


def test_a_shared_machine_is_named_with_its_evidence() -> None:
    found = shared_machine(load(0.9))
    assert found is not None
    assert found.evidence.startswith("others kept 0.9 of 2 cores busy (run-queue delay 30 % of its threads' time")
    assert shared_machine(load(0.1)) is None
    assert is_shared(load(0.0, stolen=0.05))
    assert not is_shared(None)


def test_a_shared_machine_leads_and_then_what_ends_the_run() -> None:
    shared = shared_machine(load(0.9))
    assert shared is not None
    leak = Finding(Bottleneck.MEMORY_GROWTH, 1.0, "grows", 0.0, "let go")
    learn = Finding(Bottleneck.LEARNER_BOUND, 0.9, "90 % in learn", 0.5, "--threads 2", phase="learn")
    assert ranked([learn, leak, shared]) == (shared, leak, learn)


def test_a_dominant_phase_is_named_first_though_nothing_cheap_helps_it() -> None:
    learn = Finding(Bottleneck.LEARNER_BOUND, 0.9, "90 % in learn", 0.0, "faster cores", phase="learn")
    log = Finding(Bottleneck.LOGGING_BOUND, 0.1, "10 % in log", 0.09, "less of it", phase="log")
    batch = Finding(Bottleneck.UNDERSIZED_BATCH, 0.9, "90 % in learn", 0.2, "minibatch=512", phase="learn")
    assert ranked([log, learn]) == (learn, log)
    assert ranked([log, learn, batch])[0] is batch


def test_a_remedy_whose_interval_includes_nothing_is_not_promised() -> None:
    found = Finding(Bottleneck.IDLE_CORES, 0.5, "e", 0.1, "--threads 2", "threads", (-0.05, 0.2))
    assert (found.promised, found.estimate) == (0.0, "below the noise")
    sure = Finding(Bottleneck.IDLE_CORES, 0.5, "e", 0.1, "--threads 2", "threads", (0.05, 0.2))
    assert (sure.promised, sure.estimate) == (0.1, "est. −10 % wall, 5 to 20")
    assert Finding.from_dict(sure.as_dict()) == sure


def test_a_callback_is_named_with_its_place() -> None:
    assert place_of(test_memory_that_goes_up_and_down_is_no_leak).startswith("test_memory_that_goes_up")
    assert "test_trends.py:" in place_of(test_memory_that_goes_up_and_down_is_no_leak)
