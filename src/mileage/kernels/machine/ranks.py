"""How many threads a call is worth, found out while it is used.

A second thread helps a large update on a quiet machine, and hurts a small one, or any whose other core is taken by a
neighbour: the ranks of a kernel meet many times, and each meeting waits for the slowest. No model of the work alone
knows that, so calls are timed. They run in blocks of a few milliseconds; now and then a block is tried with half or
twice as many ranks, and what took less time per call is kept. A trial that loses badly ends at once, and trials that
lose come ever more seldom, so that together they cost a percent or two at the worst. Results do not depend on the
number of ranks, bit for bit, so nothing else changes with it.
"""

from __future__ import annotations

_FIRST_BLOCK, _BLOCK = 3_000_000, 20_000_000
"""Nanoseconds of calls that are averaged: a few calls at first, later several turns of the machine's scheduler."""
_SOONEST, _LATEST = 250_000_000, 8_000_000_000
"""Nanoseconds between trials: doubled by every trial that loses."""
_WORSE = 1.25
"""A block this many times slower than when its number of ranks was chosen calls for a trial."""
_HOPELESS = 1.5
"""A trial this many times slower than what is kept ends before its block does."""
_BETTER = 0.97
"""A trial must be this much faster to be kept, so that noise alone changes little."""


class Ranks:
    """The number of ranks for one kind of call: ask `now` before it and tell `took` after."""

    def __init__(self, most: int) -> None:
        self.now = most
        """Ranks of the next call."""
        self._most = most
        self._kept, self._cost = most, 0.0
        self._trying = False
        self._fewer_next = True
        self._warm = False
        self._block = _FIRST_BLOCK
        self._calls, self._spent = 0, 0
        self._since_trial, self._wait = 0, _SOONEST

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
        if self._trying and self._calls >= 2 and self._spent > _HOPELESS * self._cost * self._calls:
            self._end_trial(won=False)
        elif self._calls >= 2 and self._spent >= self._block:
            self._end_block()

    def _end_block(self) -> None:
        cost = self._spent / self._calls
        if self._trying:
            if cost < _BETTER * self._cost:
                self._kept, self._cost = self.now, cost
                self._end_trial(won=True)
            else:
                self._end_trial(won=False)
            return
        first = self._cost == 0.0
        worse = cost > _WORSE * self._cost
        if first or worse or self._since_trial >= self._wait:
            if worse:
                self._wait = _SOONEST
            self._cost = cost
            self._start_trial()
        else:
            self._cost += 0.25 * (cost - self._cost)
        self._calls = self._spent = 0

    def _start_trial(self) -> None:
        fewer, more = max(1, self._kept // 2), min(self._most, 2 * self._kept)
        choices = [each for each in ((fewer, more) if self._fewer_next else (more, fewer)) if each != self._kept]
        self._trying, self.now = True, choices[0]

    def _end_trial(self, won: bool) -> None:
        self._trying, self.now = False, self._kept
        if won:  # go on in the same direction, at once
            self._wait = 0
        else:
            self._wait = min(max(_SOONEST, 2 * self._wait), _LATEST)
            self._fewer_next = not self._fewer_next
        self._calls = self._spent = self._since_trial = 0
        self._block = _BLOCK
