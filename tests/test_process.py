from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mileage import system as process


def test_start_time_is_field_22_even_if_the_command_name_looks_like_fields() -> None:
    fields = ["S", *("0" for _ in range(18)), "12345", "0"]
    assert process.parse_start_seconds(f"42 (a) b 1 2 (c) {' '.join(fields)}", 100) == 123.45


def test_start_lies_between_the_moments_before_and_after_it() -> None:
    program = "from mileage.system import process_start_ns as s; print(s())"
    before = time.perf_counter_ns()
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    after = time.perf_counter_ns()
    # All processes share the scale; the system rounds a start down to a tick.
    assert before - 20_000_000 <= int(output) < after


def test_without_proc_the_age_comes_from_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", refuse)
    born = psutil.Process().create_time()
    before = time.time() - born
    age = process.process_age_seconds()
    assert before - 1.1 < age < time.time() - born + 1.1  # psutil knows the boot time to the second


def test_an_incredible_age_is_replaced_by_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "parse_start_seconds", lambda *_: 1e12)
    assert 0.0 < process.process_age_seconds() <= time.process_time()
