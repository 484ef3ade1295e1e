from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.errors import UsageError
from mileage.measure import Phase, PhaseClock, PhaseTimes
from mileage.measure import clock as clock_module


class FakeTime:
    """A clock that advances only when told."""

    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTime]:
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "_now", fake)
    return fake


def test_a_nested_phase_suspends_its_parent(time: FakeTime) -> None:
    clock = PhaseClock()
    time.ns += 5  # other
    with clock.phase("learn"):
        time.ns += 10  # learn
        with clock.phase("transfer"):
            time.ns += 100  # transfer
        time.ns += 20  # learn again
    time.ns += 7  # other
    times = clock.times()
    assert times.phases_ns == {"learn": 30, "transfer": 100, "other": 12}
    assert times.wall_ns == 142
    assert times.entries == {"learn": 1, "transfer": 1}


def test_a_phase_may_contain_itself(time: FakeTime) -> None:
    clock = PhaseClock()
    eval_phase = clock.phase(Phase.EVAL)
    with eval_phase:
        time.ns += 1
        with eval_phase:
            time.ns += 2
        time.ns += 4
    assert clock.times().phases_ns == {"eval": 7, "other": 0}
    assert clock.times().entries == {"eval": 2}


def test_an_open_phase_counts_up_to_the_moment_of_reading(time: FakeTime) -> None:
    clock = PhaseClock()
    with clock.phase("env_step"):
        time.ns += 3
        assert clock.times().phases_ns == {"env_step": 3, "other": 0}
        time.ns += 4
    assert clock.times().phases_ns == {"env_step": 7, "other": 0}


def test_time_before_the_clock_was_made_is_init(time: FakeTime) -> None:
    clock = PhaseClock(start_ns=400)
    time.ns += 50
    assert clock.times().phases_ns == {"init": 600, "other": 50}
    assert clock.times().wall_ns == 650


def test_an_exception_closes_its_phases(time: FakeTime) -> None:
    clock = PhaseClock()

    def fail() -> None:
        with clock.phase("learn"), clock.phase("sync"):
            time.ns += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    time.ns += 3
    assert clock.times().phases_ns == {"sync": 2, "other": 3}


def test_a_phase_whose_exit_was_skipped_is_closed_with_its_parent(time: FakeTime) -> None:
    # An interrupt that arrives between entering and the body of `with` skips the inner exit.
    clock = PhaseClock()
    with clock.phase("learn"):
        clock.phase("transfer").__enter__()
        time.ns += 5
    time.ns += 2
    assert clock.times().phases_ns == {"transfer": 5, "other": 2}


def test_closing_a_phase_that_is_not_open_is_refused() -> None:
    with pytest.raises(UsageError, match="not open on this thread"):
        PhaseClock().phase("learn").__exit__(None, None, None)


@pytest.mark.parametrize("name", ["", "other", 3])
def test_unusable_phase_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="phase"):
        PhaseClock().phase(name)


def test_own_phase_names_are_kept(time: FakeTime) -> None:
    clock = PhaseClock()
    with clock.phase("render"):
        time.ns += 9
    assert clock.times().phases == {"render": 9e-9, "other": 0.0}


def test_attributed_time_moves_out_of_the_open_phase_and_no_further(time: FakeTime) -> None:
    clock = PhaseClock()
    with clock.phase("learn"):
        time.ns += 100
        clock.attribute("compile", 60e-9)
        time.ns += 10
        clock.attribute("compile", 1.0)  # more than `learn` has: 40 + 10 are left
    assert clock.times().phases_ns == {"compile": 110, "other": 0}
    assert clock.times().wall_ns == 110


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "attribute"]), st.sampled_from(list(Phase)[:-1]), st.integers(0, 1000)
        )
    )
)
def test_phases_always_add_up_to_the_wall_clock(actions: list[tuple[str, Phase, int]]) -> None:
    fake = FakeTime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "_now", fake)
        clock = PhaseClock()
        open_phases: list[Phase] = []
        spent: dict[str, int] = {}
        for action, phase, ns in actions:
            fake.ns += ns
            inside = str(open_phases[-1]) if open_phases else "other"
            spent[inside] = spent.get(inside, 0) + ns
            if action == "open":
                clock.phase(phase).__enter__()
                open_phases.append(phase)
            elif action == "close" and open_phases:
                clock.phase(open_phases.pop()).__exit__(None, None, None)
            elif action == "attribute":
                clock.attribute(phase, ns * 1e-9)
                moved = min(ns, spent[inside])
                spent[inside] -= moved
                spent[str(phase)] = spent.get(str(phase), 0) + moved
        times = clock.times()
    assert sum(times.phases_ns.values()) == times.wall_ns == fake.ns - 1_000
    assert {name: ns for name, ns in times.phases_ns.items() if ns} == {name: ns for name, ns in spent.items() if ns}


def test_other_threads_are_recorded_beside_the_wall_clock() -> None:
    clock = PhaseClock()
    started, finish = threading.Event(), threading.Event()

    def collect() -> None:
        with clock.phase("env_step"):
            started.set()
            finish.wait()

    thread = threading.Thread(target=collect, name="collector-0")
    with clock.phase("learn"):
        thread.start()
        started.wait()
        while_running = clock.times()
        finish.set()
        thread.join()
    times = clock.times()
    assert set(times.phases_ns) == {"learn", "other"}
    assert sum(times.phases_ns.values()) == times.wall_ns
    assert set(times.beside_ns["collector-0"]) == {"env_step"}
    assert 0 < while_running.beside_ns["collector-0"]["env_step"] <= times.beside_ns["collector-0"]["env_step"]
    assert times.beside["collector-0"]["env_step"] <= times.wall_seconds


def test_threads_that_follow_each_other_keep_their_own_time() -> None:
    clock = PhaseClock()

    def work() -> None:
        with clock.phase("env_step"):
            pass

    for i in range(3):
        thread = threading.Thread(target=work, name=f"collector-{i}")
        thread.start()
        thread.join()
    assert set(clock.times().beside_ns) == {"collector-0", "collector-1", "collector-2"}


def test_a_reader_on_another_thread_never_sees_a_torn_state() -> None:
    clock = PhaseClock()
    done = threading.Event()
    seen: list[PhaseTimes] = []

    def read() -> None:
        while not done.is_set():
            seen.append(clock.times())

    reader = threading.Thread(target=read)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        for _ in range(20_000):
            with clock.phase("learn"), clock.phase("transfer"):
                pass
    finally:
        sys.setswitchinterval(before)
        done.set()
        reader.join()
    assert seen
    assert all(sum(times.phases_ns.values()) == times.wall_ns for times in seen)
    walls = [times.wall_ns for times in seen]
    assert walls == sorted(walls)


def test_times_can_be_read_in_a_signal_handler() -> None:
    clock = PhaseClock()
    seen: list[PhaseTimes] = []

    def read(*_: object) -> None:
        seen.append(clock.times())
        signal.setitimer(
            signal.ITIMER_REAL, 1e-4
        )  # not periodic: on a busy machine signals would come faster than this

    before = signal.signal(signal.SIGALRM, read)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    try:
        while len(seen) < 50:
            with clock.phase("learn"):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(sum(times.phases_ns.values()) == times.wall_ns for times in seen)


def test_times_of_another_process_are_added_beside() -> None:
    times = pickle.loads(pickle.dumps(PhaseTimes(30, {"env_step": 20, "other": 10}, {"env_step": 1})))
    clock = PhaseClock()
    clock.add_beside("worker-1", times)
    clock.add_beside("worker-1", {"env_step": 1e-9, "inference": 5e-9})
    assert clock.times().beside_ns == {"worker-1": {"env_step": 21, "inference": 5}}


def test_a_stopped_clock_keeps_its_times(time: FakeTime) -> None:
    clock = PhaseClock()
    time.ns += 5
    final = clock.stop()
    with clock.phase("learn"):
        time.ns += 50
    assert clock.times() == final == clock.stop()
    assert final.wall_ns == 5


def test_the_first_run_of_a_process_counts_from_the_start_of_the_process() -> None:
    program = (
        "import time; time.sleep(0.25)\n"
        "from mileage.measure import PhaseClock\n"
        "first, second = PhaseClock.for_run().times(), PhaseClock.for_run().times()\n"
        "print(first.phases['init'], second.wall_seconds)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    init, second = map(float, output.split())
    assert init > 0.25
    assert second < init
