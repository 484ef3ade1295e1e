"""Splitting calls over threads."""

from __future__ import annotations

import itertools

import pytest

from mileage.kernels.machine import team as _shards


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shards, "PARALLEL_WORK", 1)
    monkeypatch.setattr(_shards, "_cores", lambda: 3)


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 47, 48, 100, 1000])
def test_shards_cover_everything_once_on_aligned_borders(n: int) -> None:
    seen: list[tuple[int, int]] = []

    _shards.run_shards(lambda start, stop: seen.append((start, stop)), n, 1)
    seen.sort()
    assert seen[0][0] == 0
    assert seen[-1][1] == n
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(seen))
    assert all(start % 16 == 0 for start, _ in seen)


@pytest.mark.usefixtures("three_cores")
def test_errors_come_through() -> None:
    def fail(start: int, stop: int) -> None:
        if start > 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _shards.run_shards(fail, 100, 1)


def test_little_work_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shards, "_cores", lambda: 3)
    calls: list[tuple[int, int]] = []
    _shards.run_shards(lambda start, stop: calls.append((start, stop)), 1000, 1)
    assert calls == [(0, 1000)]
