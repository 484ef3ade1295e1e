"""The number of ranks a call is given, from what its calls took."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mileage.kernels.machine.team import Ranks

MS = 1_000_000


def played(ranks: Ranks, cost: Callable[[int], int], seconds: float) -> dict[int, int]:
    """Nanoseconds spent with each number of ranks over so many seconds of calls."""
    spent: dict[int, int] = {}
    while sum(spent.values()) < seconds * 1e9:
        now, took = ranks.now, cost(ranks.now)
        ranks.took(took)
        spent[now] = spent.get(now, 0) + took
    return spent


@pytest.mark.parametrize("most", [2, 3, 4, 8])
def test_ranks_that_help_are_kept(most: int) -> None:
    ranks = Ranks(most)
    spent = played(ranks, lambda n: 2 * MS // n, 10)
    assert spent[most] > 0.98 * sum(spent.values())


@pytest.mark.parametrize("most", [2, 4, 8])
def test_ranks_that_hurt_stay_away(most: int) -> None:
    spent = played(Ranks(most), lambda n: MS * n, 10)
    assert spent[1] > 0.98 * sum(spent.values())


def test_a_number_in_between_is_found() -> None:
    spent = played(Ranks(8), lambda n: MS * (1 + abs(n - 4)), 10)
    assert spent[4] > 0.98 * sum(spent.values())


def test_a_neighbour_that_comes_and_goes_is_followed() -> None:
    ranks = Ranks(2)
    played(ranks, lambda n: 2 * MS // n, 2)
    busy = played(ranks, lambda n: 2 * MS if n == 1 else 20 * MS, 5)
    assert busy[1] > 0.95 * sum(busy.values())
    quiet = played(ranks, lambda n: 2 * MS // n, 30)
    assert quiet[2] > 0.7 * sum(quiet.values())


def test_calls_that_stall_now_and_then_are_judged_by_what_they_take_in_all() -> None:
    """Two ranks are twice as fast but for one call in ten, which waits for a core: on the whole they are slower."""
    count = 0

    def cost(n: int) -> int:
        nonlocal count
        count += 1
        return MS if n == 1 else MS // 2 + (10 * MS if count % 10 == 0 else 0)

    spent = played(Ranks(2), cost, 20)
    assert spent[1] > 0.9 * sum(spent.values())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("gain", "better"), [(1.15, 2), (1.0 / 1.15, 1)])
def test_a_machine_that_is_slow_by_turns_does_not_decide(gain: float, better: int, seed: int) -> None:
    """Stretches of 5 to 60 ms in which everything takes up to twice as long: what is faster by 15 % is still found."""
    draw = random.Random(seed)
    left, slow = 0.0, 1.0

    def cost(n: int) -> int:
        nonlocal left, slow
        if left <= 0.0:
            left, slow = draw.uniform(5, 60) * MS, draw.choice([1.0, 1.0, 1.0, draw.uniform(1.0, 2.0)])
        took = MS / (gain if n == 2 else 1.0) * slow * draw.uniform(0.9, 1.1)
        left -= took
        return int(took)

    spent = played(Ranks(2), cost, 30)
    assert spent.get(better, 0) > 0.8 * sum(spent.values())


def test_one_rank_is_one_rank() -> None:
    ranks = Ranks(1)
    played(ranks, lambda n: MS, 1)
    assert ranks.now == 1
