from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from types import ModuleType

import numba
import pytest

from mileage.measure import PhaseClock, compile_phase, compilers
from mileage.measure import clock as clock_module


class FakeTime:
    def __init__(self) -> None:
        self.ns = 10_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "_now", fake)
    monkeypatch.setattr(compilers, "perf_counter_ns", fake)
    monkeypatch.setattr(compilers, "_here", compilers._Thread())
    return fake


def test_numba_compilation_is_its_own_phase() -> None:
    @numba.njit
    def double(x: float) -> float:
        return x * 2.0

    @numba.njit
    def four_times(x: float) -> float:
        return double(double(x))

    clock = PhaseClock()
    with compile_phase(clock):
        with clock.phase("learn"):
            assert four_times(2.0) == 8.0
        compiled = clock.times()
        with clock.phase("learn"):
            assert four_times(3.0) == 12.0
        again = clock.times()
    assert compiled.phases_ns["compile"] > compiled.phases_ns["learn"]
    assert again.phases_ns["compile"] == compiled.phases_ns["compile"]
    assert sum(again.phases_ns.values()) == again.wall_ns
    # The inner kernel compiles inside the outer one and is not counted twice.
    assert again.entries["compile"] == 1


def test_loading_a_kernel_from_the_cache_is_compile_time(tmp_path: object) -> None:
    program = (
        "import sys; from mileage.kernels.machine.jit import kernel\n"
        "from mileage.measure import PhaseClock, compile_phase\n"
        "@kernel\n"
        "def triple(x):\n"
        "    return x * 3\n"
        "clock = PhaseClock()\n"
        "with compile_phase(clock):\n"
        "    triple(2)\n"
        "print(sum(triple.stats.cache_hits.values()), clock.times().entries['compile'])\n"
    )
    for hits in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "MILEAGE_CACHE_DIR": str(tmp_path), "PATH": ""},
        )
        assert done.stdout.split() == [hits, "1"]


def test_a_compiler_imported_later_is_watched() -> None:
    program = (
        "import sys; from mileage.measure import PhaseClock, compile_phase\n"
        "clock = PhaseClock()\n"
        "assert 'numba' not in sys.modules\n"
        "with compile_phase(clock):\n"
        "    import numba\n"
        "    numba.njit(lambda x: x + 1)(1)\n"
        "print(clock.times().phases['compile'])\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert float(output) > 0.0


def test_nested_starts_count_once_and_suspend_the_open_phase(time: FakeTime) -> None:
    clock = PhaseClock()
    with compile_phase(clock), clock.phase("learn"):
        time.ns += 3
        compilers.compile_started()
        time.ns += 10
        compilers.compile_started()
        time.ns += 20
        compilers.compile_ended()
        time.ns += 5
        compilers.compile_ended()
        time.ns += 4
    assert clock.times().phases_ns == {"compile": 35, "learn": 7, "other": 0}


def test_a_report_inside_another_counts_once(time: FakeTime) -> None:
    # Tracing an outer function (100 ns) traces an inner one (30 ns) and then compiles (50 ns).
    clock = PhaseClock()
    with compile_phase(clock), clock.phase("learn"):
        time.ns += 60
        compilers.compile_reported(30e-9)
        time.ns += 60
        compilers.compile_reported(100e-9)
        time.ns += 50
        compilers.compile_reported(50e-9)
    assert clock.times().phases_ns == {"compile": 150, "learn": 20, "other": 0}


def test_an_end_without_a_start_is_ignored(time: FakeTime) -> None:
    clock = PhaseClock()
    with compile_phase(clock):
        time.ns += 5
        compilers.compile_ended()
    assert clock.times().phases_ns == {"other": 5}


def test_a_clock_stops_watching(time: FakeTime) -> None:
    clock = PhaseClock()
    with compile_phase(clock):
        pass
    compilers.compile_started()
    time.ns += 5
    compilers.compile_ended()
    assert clock.times().phases_ns == {"other": 5}
    assert compilers._hook not in sys.meta_path


def test_compilation_on_another_thread_stays_beside() -> None:
    clock = PhaseClock()

    def work() -> None:
        with clock.phase("env_step"):
            compilers.compile_started()
            compilers.compile_ended()

    with compile_phase(clock):
        thread = threading.Thread(target=work, name="collector")
        thread.start()
        thread.join()
    times = clock.times()
    assert "compile" not in times.phases_ns
    assert set(times.beside_ns["collector"]) == {"env_step", "compile"}


class FakeCallbacks:
    def __init__(self) -> None:
        self.start: list[object] = []
        self.end: list[object] = []
        self.register_start_callback = self.start.append
        self.register_end_callback = self.end.append


def test_torch_and_jax_hooks_report_to_the_clock(time: FakeTime) -> None:
    dynamo, jax = ModuleType("callback"), ModuleType("monitoring")
    dynamo.callback_handler = FakeCallbacks()  # type: ignore[attr-defined]
    listeners: list[object] = []
    jax.register_event_duration_secs_listener = listeners.append  # type: ignore[attr-defined]
    compilers._watch_torch(dynamo)
    compilers._watch_jax(jax)
    [start], [end], [listen] = dynamo.callback_handler.start, dynamo.callback_handler.end, listeners
    clock = PhaseClock()
    with compile_phase(clock), clock.phase("learn"):
        time.ns += 1
        start(None)  # type: ignore[operator]
        time.ns += 10
        end(None)  # type: ignore[operator]
        time.ns += 200
        listen("/jax/core/compile/backend_compile_duration", 100e-9, fun_name="f")  # type: ignore[operator]
        listen("/jax/checkpoint/write_duration", 50e-9)  # type: ignore[operator]
    assert clock.times().phases_ns == {"compile": 110, "learn": 101, "other": 0}


def test_torch_compile_is_caught() -> None:
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    clock = PhaseClock()
    with compile_phase(clock), clock.phase("learn"):
        torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    times = clock.times()
    assert times.phases_ns["compile"] > 0
    assert sum(times.phases_ns.values()) == times.wall_ns


JAX_PROGRAM = """
import jax
from mileage.measure import PhaseClock, compile_phase

clock = PhaseClock()
with compile_phase(clock), clock.phase("learn"):
    jax.jit(lambda x: x * 2 + 1)(1.0).block_until_ready()
times = clock.times()
assert times.phases_ns["compile"] > 0
assert sum(times.phases_ns.values()) == times.wall_ns
"""


def test_jax_compilation_is_caught() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    # In a process of its own: once imported, JAX warns about every later fork of this one.
    done = subprocess.run((sys.executable, "-c", JAX_PROGRAM), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
