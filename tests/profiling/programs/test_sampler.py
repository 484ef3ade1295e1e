"""How often the thread that samples asks for the interpreter, and what of it the program pays."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

from mileage.profiling.programs.mileage_inside.sampler import Sampler
from mileage.profiling.programs.mileage_inside.settings import Files
from mileage.profiling.programs.report import own_cost
from mileage.profiling.programs.trace import Reader
from profiling.programs.made_up import MAIN, process, watched


def test_an_import_is_not_asked_for_the_interpreter_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, seen = sys.getswitchinterval(), []
    sampler = Sampler(Files(str(tmp_path), 1))

    def look() -> None:
        sampler._take(0, 1, 1)
        seen.append(sys.getswitchinterval())

    monkeypatch.setattr(sys, "looked_at", look, raising=False)
    (tmp_path / "slow_to_load.py").write_text("import sys\nsys.looked_at()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        look()
        importlib.import_module("slow_to_load")
        look()
    finally:
        sampler.forget()
        sys.modules.pop("slow_to_load", None)
    assert seen == [pytest.approx(5e-6), usual, pytest.approx(5e-6)]
    assert sys.getswitchinterval() == usual


def test_a_sampler_tells_its_own_cpu_time(tmp_path: Path) -> None:
    sampler = Sampler(Files(str(tmp_path), 1))
    sampler.start()
    time.sleep(0.05)
    sampler.stop()
    (found,) = Reader(tmp_path).processes()
    assert found.watching_seconds > 0.0


def test_what_is_paid_once_is_told_apart_from_what_grows() -> None:
    made = process([([MAIN], "", 10.0, 10.0)])
    made.watching_seconds = 0.06
    (said,) = [" ".join(own_cost(watched(made), -600_000_000, 10_200_000_000))]
    assert said == (
        "Watching took 0.06 s of CPU time (0.6%); mileage itself 0.6 s before the program and 0.2 s after it."
    )
