from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mileage.buffers import MappedReplay
from mileage.errors import CheckpointError, UsageError


def push_some(buffer: MappedReplay, start: int, n: int) -> None:
    for i in range(start, start + n):
        obs = np.full(3, i, np.float32)
        buffer.push(obs, float(i), float(i), i % 4 == 3, False, obs + 1)


@pytest.mark.parametrize("next_obs", ["stored", "derived"])
def test_a_reopened_replay_goes_on_where_it_was(tmp_path: Path, next_obs: str) -> None:
    with MappedReplay(tmp_path / "a", 20, 3, next_obs=next_obs, seed=2) as first:
        push_some(first, 0, 33)
        first.flush()
    with MappedReplay(tmp_path / "b", 20, 3, next_obs=next_obs, seed=2) as unbroken:
        push_some(unbroken, 0, 33)
        with MappedReplay.open(tmp_path / "a") as again:
            assert len(again) == 20
            for _ in range(3):
                push_some(again, 33, 5)
                push_some(unbroken, 33, 5)
                a, b = again.sample(12), unbroken.sample(12)
                np.testing.assert_array_equal(a.obs, b.obs)
                np.testing.assert_array_equal(a.next_obs, b.next_obs)
                np.testing.assert_array_equal(a.indices, b.indices)


PROGRAM = """
import sys, numpy as np
from mileage.buffers import MappedReplay
buffer = MappedReplay(sys.argv[1], 50, 2000, next_obs=sys.argv[2])
i = 0
while True:
    obs = np.full(2000, i, np.float32)
    buffer.push(obs, float(i), float(i), i % 4 == 3, False, obs + 1)
    i += 1
    if i == 120:
        print("going", flush=True)
"""


@pytest.mark.parametrize("next_obs", ["stored", "derived"])
def test_a_killed_writer_leaves_only_whole_transitions(tmp_path: Path, next_obs: str) -> None:
    for attempt in range(4):
        path = tmp_path / str(attempt)
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), next_obs], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"going\n"
            writer.send_signal(signal.SIGKILL)
        with MappedReplay.open(path) as buffer:
            assert len(buffer) >= 48
            for _ in range(10):
                batch = buffer.sample(40)
                number = batch.obs[:, 0]
                assert (batch.obs == number[:, None]).all()
                assert (batch.next_obs == number[:, None] + 1).all()
                np.testing.assert_array_equal(batch.actions, number)
                np.testing.assert_array_equal(batch.terminated, number % 4 == 3)


@pytest.mark.parametrize("name", ["records", "counters", "finals", "rng"])
def test_a_file_cut_short_behind_our_back_is_one_clear_error(tmp_path: Path, name: str) -> None:
    buffer = MappedReplay(tmp_path / "replay", 2000, 3, next_obs="derived")
    push_some(buffer, 0, 100)
    os.truncate(tmp_path / "replay" / f"{name}.bin", 0)
    obs = np.zeros(3, np.float32)
    for use in (
        lambda: buffer.sample(4),
        lambda: buffer.push(obs, 0.0, 0.0, False, False, obs),
        lambda: len(buffer),
        lambda: buffer.at([0]),
        lambda: buffer.clear(),
        lambda: buffer.flush(),
        lambda: buffer.saved_arrays(),
    ):
        with pytest.raises(CheckpointError, match=rf"{name}\.bin was cut short by another program"):
            use()
    buffer.close()


def test_a_closed_replay_is_not_touched_any_more(tmp_path: Path) -> None:
    buffer = MappedReplay(tmp_path / "replay", 2000, 3)
    push_some(buffer, 0, 100)
    buffer.close()
    buffer.close()
    # Nobody watches the files now: touching what was mapped could kill the process.
    os.truncate(tmp_path / "replay" / "records.bin", 0)
    obs = np.zeros(3, np.float32)
    for use in (
        lambda: buffer.sample(4),
        lambda: buffer.push(obs, 0.0, 0.0, False, False, obs),
        lambda: len(buffer),
        lambda: buffer.saved_arrays(),
    ):
        with pytest.raises(UsageError, match=r"is closed: open it again with MappedReplay\.open$"):
            use()


@pytest.mark.parametrize("name", ["records", "counters", "rng"])
def test_a_file_cut_short_while_closed_is_refused(tmp_path: Path, name: str) -> None:
    with MappedReplay(tmp_path / "replay", 2000, 3) as buffer:
        push_some(buffer, 0, 100)
    os.truncate(tmp_path / "replay" / f"{name}.bin", 8)
    with pytest.raises(CheckpointError, match="damaged"):
        MappedReplay.open(tmp_path / "replay")


def test_contradicting_content_is_refused(tmp_path: Path) -> None:
    with MappedReplay(tmp_path / "replay", 20, 3, next_obs="derived") as buffer:
        push_some(buffer, 0, 10)
    counters = tmp_path / "replay" / "counters.bin"
    good = counters.read_bytes()
    counters.write_bytes(np.array([10, 3, 0, 0, 0, 0, 0, 0], np.int64).tobytes())
    with pytest.raises(CheckpointError, match="damaged"):
        MappedReplay.open(tmp_path / "replay")
    counters.write_bytes(good)
    records = tmp_path / "replay" / "records.bin"
    records.write_bytes(b"\xff" * records.stat().st_size)
    with pytest.raises(CheckpointError, match="damaged"):
        MappedReplay.open(tmp_path / "replay")
    (tmp_path / "replay" / "replay.json").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        MappedReplay.open(tmp_path / "replay")


def test_a_directory_belongs_to_one_buffer_at_a_time(tmp_path: Path) -> None:
    with MappedReplay(tmp_path / "replay", 20, 3):
        with pytest.raises(CheckpointError, match="in use by another buffer"):
            MappedReplay.open(tmp_path / "replay")
        with pytest.raises(UsageError, match=r"open it with MappedReplay\.open"):
            MappedReplay(tmp_path / "replay", 20, 3)
    MappedReplay.open(tmp_path / "replay").close()


def test_nothing_to_open_and_no_room(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no replay"):
        MappedReplay.open(tmp_path)
    with pytest.raises(CheckpointError, match="no room for"):
        MappedReplay(tmp_path / "huge", 10**12, 1000)
    with MappedReplay(tmp_path / "replay", 20, 3) as buffer, pytest.raises(UsageError, match="call flush and copy"):
        buffer.save(tmp_path / "copy")


@pytest.mark.parametrize("name", ["counters", "records", "rng", "finals"])
@pytest.mark.parametrize("content", [None, b"", b"12345678"])
def test_a_file_that_is_missing_or_too_short_is_damage(name: str, content: bytes | None, tmp_path: Path) -> None:
    obs = np.zeros(3, np.float32)
    with MappedReplay(tmp_path / "replay", 200, 3, next_obs="derived") as buffer:
        for _ in range(5):
            buffer.push(obs, 0.0, 0.0, False, False, obs)
    file = tmp_path / "replay" / f"{name}.bin"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}.bin is damaged"):
        MappedReplay.open(tmp_path / "replay")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="give the path of a directory"):
        MappedReplay(tmp_path / "file", 10, 3)
