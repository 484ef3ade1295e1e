"""How many threads a call is worth, found out while it is used.

A second thread helps a large update on a quiet machine, and hurts a small one, or any whose other core is taken by a
neighbour: the ranks of a kernel meet many times, and each meeting waits for the slowest. No model of the work alone
knows that, so calls are timed. Now and then a trial is held: blocks of calls with half or twice as many ranks take
turns with blocks of what is kept, and only what wins nearly all of these turns is kept instead. A machine is noisy; a
single block beside one that was slow by chance would tell more about chance. A trial that loses two turns, or one of
them badly, ends at once, and trials that lose come ever more seldom, so that together they cost a percent or two at the
worst. Results do not depend on the number of ranks, bit for bit, so nothing else changes with it.
"""

from __future__ import annotations

_FIRST_BLOCK, _BLOCK = 3_000_000, 20_000_000
"""Nanoseconds of calls that make a block: a few calls at first, later several turns of the machine's scheduler."""
_SOONEST, _LATEST = 250_000_000, 8_000_000_000
"""Nanoseconds between trials: doubled by every trial that loses."""
_TURNS, _LOSSES = 5, 2
"""A trial is won by so many turns, and lost by so many."""
_CLEAR, _CLEAR_TURNS = 1.5, 3
"""What is so many times faster in a turn has won as if in so many; what is so many times slower has lost the trial."""
_BETTER = 0.97
"""A trial must be this much faster over all its turns to be kept, so that noise alone changes little."""
_WORSE, _IN_A_ROW, _MUCH_WORSE = 1.25, 3, 3.0
"""So many blocks, one after the other and so many times slower than before, or one much slower, call for a trial."""


class Ranks:
    """The number of ranks for one kind of call: ask `now` before it and tell `took` after."""

    def __init__(self, most: int) -> None:
        self.now = most
        """Ranks of the next call."""
        self._most = most
        self._kept, self._cost = most, 0.0
        self._warm = False
        self._block = _FIRST_BLOCK
        self._calls, self._spent = 0, 0
        self._slow_blocks = 0
        self._since_trial, self._wait = 0, _SOONEST
        self._tried: int | None = None
        """What is on trial; None while nothing is."""
        self._fewer_next = True
        self._begin_turns()

    def _begin_turns(self) -> None:
        self._turns = self._won = self._lost = 0
        self._costs: dict[int, float] = {}
        """Of the turn that is being taken, by number of ranks."""
        self._totals = [0.0, 0.0]
        """Of what is on trial and of what is kept, over all turns so far."""

    def took(self, nanoseconds: int) -> None:
        """One call with `now` ranks took this long."""
        if self._most < 2:
            return
        if not self._warm:  # the first call loads code and touches memory
            self._warm = True
            return
        self._calls += 1
        self._spent += nanoseconds
        self._since_trial += nanoseconds
        few = self._calls < 2
        hopeless = (_MUCH_WORSE if few else _CLEAR) * self._cost * self._calls
        if self.now == self._tried and self._spent > hopeless:
            self._end_trial(won=False)
        elif self._spent >= self._block and not few:
            self._end_block()

    def _end_block(self) -> None:
        cost = self._spent / self._calls
        self._calls = self._spent = 0
        if self._tried is not None:
            self._take_turn(cost)
            return
        first = self._cost == 0.0
        self._slow_blocks = self._slow_blocks + 1 if cost > _WORSE * self._cost else 0
        changed = self._slow_blocks >= _IN_A_ROW or (cost > _MUCH_WORSE * self._cost > 0.0)
        self._cost = cost if first or changed else self._cost + 0.25 * (cost - self._cost)
        if first or changed or self._since_trial >= self._wait:
            if changed:
                self._wait = _SOONEST
            self._start_trial()

    def _start_trial(self) -> None:
        fewer, more = max(1, self._kept // 2), min(self._most, 2 * self._kept)
        choices = [each for each in ((fewer, more) if self._fewer_next else (more, fewer)) if each != self._kept]
        self._tried = self.now = choices[0]
        self._slow_blocks = 0
        self._begin_turns()

    def _take_turn(self, cost: float) -> None:
        """A block of the trial has ended; two of them, in changing order, are a turn."""
        assert self._tried is not None
        self._costs[self.now] = cost
        if len(self._costs) < 2:
            self.now = self._kept if self.now == self._tried else self._tried
            return
        tried, kept = self._costs[self._tried], self._costs[self._kept]
        self._totals = [self._totals[0] + tried, self._totals[1] + kept]
        self._turns += 1
        if tried < kept:
            self._won += _CLEAR_TURNS if _CLEAR * tried < kept else 1
        else:
            self._lost += 1
        self._costs = {}
        if self._lost >= _LOSSES:
            self._end_trial(won=False)
        elif self._won >= _TURNS:
            self._end_trial(won=self._totals[0] < _BETTER * self._totals[1])

    def _end_trial(self, won: bool) -> None:
        assert self._tried is not None
        if won:  # go on in the same direction, at once
            self._kept, self._cost = self._tried, self._totals[0] / self._turns
            self._wait = 0
        else:
            self._cost = self._totals[1] / self._turns if self._turns else self._cost
            self._wait = min(max(_SOONEST, 2 * self._wait), _LATEST)
            self._fewer_next = not self._fewer_next
            self._block = _BLOCK
        self._tried, self.now = None, self._kept
        self._calls = self._spent = self._since_trial = 0
