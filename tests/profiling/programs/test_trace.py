"""Reading back what processes wrote, whole or not."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from extras import TORCH
from mileage.profiling.programs import trace
from mileage.profiling.programs.mileage_inside import libraries, settings
from mileage.profiling.programs.mileage_inside.lanes import KIND_BITS, KINDS
from mileage.profiling.programs.mileage_inside.settings import Files
from mileage.profiling.programs.trace import Calls, Reader, StackFrame

STEP = KINDS.index("env.step")


def call(start: int, own: int) -> list[int]:
    return [start << KIND_BITS | STEP, start + own, own]


def written(place: Path) -> Files:
    files = Files(str(place), 42)
    files.say("process", 42, 1, ["python", "a b.py"], "3.12.1", "/usr/lib/python3.12", "/home/me")
    files.say("code", 0, "/home/me/ü.py", "Walk.step", 5)
    files.say("stack", 1, 0, 0, 7)
    files.say("setting", "args", "num_envs", 4, ["-n", "--num-envs"])
    return files


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written(tmp_path).write(array("q", [10, 5, 4, 1, STEP, 0, 1]), array("q", [*call(1, 30), *call(50, 10)]))
    (found,) = Reader(tmp_path).processes()
    assert (found.pid, found.parent, found.words, found.directory) == (42, 1, ("python", "a b.py"), "/home/me")
    assert found.stack(1) == [StackFrame("/home/me/ü.py", "Walk.step", 7, 5)]
    assert found.main.tolist() == [[10, 5, 4, 1, STEP, 0, 1]]
    assert found.calls.own("env.step").tolist() == [30, 10]
    assert found.settings[0].options == ("-n", "--num-envs")


def test_what_a_killed_process_left_half_written_is_left_out(tmp_path: Path) -> None:
    written(tmp_path).write(array("q", [10, 5, 4, 1, 0, 0, 0]), array("q", call(1, 30)))
    for name, more in (("42.facts", b"('stack', 2, 1,"), ("42.samples", b"\x01\x02"), ("42.calls.0", b"\x01" * 9)):
        with (tmp_path / name).open("ab") as file:
            file.write(more)
    (found,) = Reader(tmp_path).processes()
    assert len(found.frames) == 2
    assert len(found.main) == 1
    assert found.calls.count[STEP] == 1


@pytest.mark.parametrize(
    "line",
    [
        "__import__('os').abort()",
        "('stack', 1, 99, 0, 7)",
        "('stack', 9, 0, 8, 7)",
        "('code', 'x')",
        "(" * 5000,
        "()",
        "7",
    ],
)
def test_facts_of_others_do_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "7.facts").write_text(line + "\n('process', 7, 1, [], '3.9', '', '')\n")
    (found,) = Reader(tmp_path).processes()
    assert found.python == "3.9"
    assert len(found.frames) == 1


def test_full_files_are_taken_in_while_the_program_runs(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"42.calls.{number}").write_bytes(array("q", call(number, 5)).tobytes())
    (tmp_path / "42.facts").write_text("")
    reader = Reader(tmp_path)
    reader.tick()
    assert [path.name for path in tmp_path.glob("*.calls.*")] == ["42.calls.2"]
    (found,) = reader.processes()
    assert found.calls.count[STEP] == 3


def test_of_too_many_calls_an_even_selection_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MOST_CALLS", 100)
    calls = Calls()
    for start in range(0, 1000, 50):
        calls.add(array("q", [each for at in range(start, start + 50) for each in call(at, at)]).tobytes())
    assert calls.count[STEP] == 1000
    assert calls.own_ns[STEP] == 499_500
    assert calls.longest_ns[STEP] == 999
    kept = calls.own("env.step")
    assert 50 <= len(kept) <= 100
    assert float(np.median(kept)) == pytest.approx(500, rel=0.1)


@TORCH
@pytest.mark.parametrize(("flushed", "expected"), [(False, 40), (True, 0)])
def test_denormal_numbers_of_an_optimizer_are_counted(tmp_path: Path, flushed: bool, expected: int) -> None:
    import torch

    weights = torch.nn.Parameter(torch.ones(100))
    optimizer = torch.optim.Adam([weights])
    weights.sum().backward()
    optimizer.step()
    optimizer.state[weights]["exp_avg"][:40] = 1e-40
    optimizer.state[weights]["exp_avg"][40:50] = 0.0
    files = Files(str(tmp_path), 42)
    settings.NOTES.begin(files)
    torch.set_flush_denormal(flushed)
    try:
        libraries._note_denormals(optimizer)
    finally:
        torch.set_flush_denormal(False)
    files.write(array("q"), array("q"))
    (found,) = Reader(tmp_path).processes()
    # Adam also keeps a count of its steps.
    assert list(found.denormals.values()) == [(expected, 201)]
