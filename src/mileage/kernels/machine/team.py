"""A team of threads inside one kernel: a barrier, how many threads a call is worth, and how work is shared out.

Numba's own parallel loops cost seconds of compile time. Here every thread calls the same GIL-free kernel with its
rank, and ranks meet in native code (about 0.2 µs where all run; one that waits long sleeps). How work is cut into
pieces depends on the problem alone, never on the number of ranks, so that results are the same bit for bit on any
number of threads.

A second thread helps a large update on a quiet machine, and hurts a small one, or any whose other core is taken by a
neighbour: the ranks of a kernel meet many times, and each meeting waits for the slowest. No model of the work alone
knows that, so calls are timed. Now and then a trial is held: blocks of calls with half or twice as many ranks take
turns with blocks of what is kept, and only what wins nearly all of these turns is kept instead. A machine is noisy; a
single block beside one that was slow by chance would tell more about chance. A trial that loses two turns, or one of
them badly, ends at once, and trials that lose come ever more seldom, so that together they cost a percent or two at the
worst. Results do not depend on the number of ranks, bit for bit, so nothing else changes with it.

Shards never share a result, so that the answer does not depend on how many there are.
"""

from __future__ import annotations

import functools
import os
import platform
import queue
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage.kernels.machine.frames import Count, PtrI64
from mileage.kernels.machine.jit import inner
from mileage.system import usable_cores
from mileage.types import I64

# --- How many threads a call is worth, found out while it is used ---
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


# Spins before going to sleep, some half a millisecond: longer than a rank that was asleep between two calls takes to
# arrive, and little where somebody else has its core. A sleeper leaves its core, and the late rank may move there.
_SPINS = 20_000
_ARRIVED, _GENERATION, _SLEEPERS = 0, 8, 16  # a cache line apart
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE within one process
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}


@intrinsic
def _atomic_add(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.gep(args[0], [args[1]]), args[2], "seq_cst")

    return types.int64(pointer, types.int64, types.int64), codegen


@intrinsic
def _atomic_load(typingctx: Any, pointer: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.gep(args[0], [args[1]]), "seq_cst", 8)

    return types.int64(pointer, types.int64), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    """Tell the core that this is a spinning loop: it leaves its units to the thread beside it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() == "x86_64":
            function_type = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _futex(typingctx: Any, pointer: Any, index: Any, operation: Any, value: Any) -> Any:
    """Sleep while the low half of a word is `value`, or wake up to `value` sleepers; elsewhere than Linux, yield."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        if (number := _FUTEX_CALLS.get(platform.machine())) is None or sys.platform != "linux":
            function_type = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "sched_yield"), [])
            return context.get_dummy_value()
        function_type = ir.FunctionType(long, [long], var_arg=True)
        syscall = cgutils.get_or_insert_function(builder.module, function_type, "syscall")
        word = builder.ptrtoint(builder.gep(args[0], [args[1]]), long)
        builder.call(syscall, [long(number), word, args[2], args[3], long(0), long(0), long(0)])
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64, types.int64), codegen


@inner
def meet(barrier_state: PtrI64, n_ranks: Count) -> None:
    """Wait until all ranks have called this. `barrier_state` points to 24 int64, zero at first, shared by the ranks."""
    if n_ranks > 1:
        generation = _atomic_load(barrier_state, _GENERATION)
        if _atomic_add(barrier_state, _ARRIVED, 1) == n_ranks - 1:
            _atomic_add(barrier_state, _ARRIVED, -n_ranks)
            _atomic_add(barrier_state, _GENERATION, 1)
            if _atomic_load(barrier_state, _SLEEPERS) > 0:
                _futex(barrier_state, _GENERATION, _WAKE, n_ranks)
        else:
            spins = 0
            while _atomic_load(barrier_state, _GENERATION) == generation:
                spins += 1
                _pause()
                if spins > _SPINS:
                    _atomic_add(barrier_state, _SLEEPERS, 1)
                    _futex(barrier_state, _GENERATION, _WAIT, generation & 0xFFFFFFFF)
                    _atomic_add(barrier_state, _SLEEPERS, -1)


def _serve(jobs: queue.SimpleQueue[Any], rank: int, barrier: I64) -> None:
    done = 0
    while (job := jobs.get()) is not None:
        number, function, record, n_ranks = job
        # An interrupted caller posts a job again where it cannot know whether it did.
        if number != done:
            done = number
            function(rank, n_ranks, barrier, record)


def _dismiss(queues: list[queue.SimpleQueue[Any]]) -> None:
    for jobs in queues:
        jobs.put(None)


class Team:
    """A fixed number of threads that run kernels together: `function(rank, n_ranks, barrier, record)`.

    The caller is rank 0. Every such kernel ends with `meet`, so that `run` returns when the work is done. An adaptive
    team finds out for each kernel how many of its ranks make it faster.
    """

    def __init__(self, n_ranks: int, adaptive: bool = False) -> None:
        self.n_ranks = n_ranks
        self._adaptive = adaptive and n_ranks > 1
        self._choices: dict[tuple[object, int], Ranks] = {}
        self._runs = 0
        self._begin()
        _teams.add(self)

    def _begin(self) -> None:
        """Start the threads."""
        self._barrier: I64 = np.zeros(24, np.int64)
        self._jobs: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(self.n_ranks - 1)]
        self._threads = [
            threading.Thread(target=_serve, args=(jobs, rank, self._barrier), name=f"mileage-{rank}", daemon=True)
            for rank, jobs in enumerate(self._jobs, start=1)
        ]
        for thread in self._threads:
            thread.start()
        # Threads know nothing of the team, so that one nobody holds any more ends by itself.
        self._stop = weakref.finalize(self, _dismiss, self._jobs)

    def forked(self) -> None:
        """A child process has none of its parent's threads: the next run starts them anew."""
        self._stop.detach()
        self._threads = []

    def run(self, function: Any, record: Any, pieces: int) -> Any:
        """Run `function` on as many ranks as there are `pieces` of work, and return what rank 0 returned.

        A rank without work would only spin at the barrier, and slow the others down on cores that share their units.
        """
        n_ranks = min(self.n_ranks, pieces)
        if not self._adaptive or n_ranks < 2:
            return self._run(function, record, n_ranks)
        if (choice := self._choices.get((function, n_ranks))) is None:
            choice = self._choices[function, n_ranks] = Ranks(n_ranks)
        start = time.perf_counter_ns()
        found = self._run(function, record, choice.now)
        choice.took(time.perf_counter_ns() - start)
        return found

    def _run(self, function: Any, record: Any, n_ranks: int) -> Any:
        if n_ranks < 2:
            return function(0, 1, self._barrier, record)
        if not self._threads:
            self._begin()
        self._runs += 1
        job = (self._runs, function, record, n_ranks)
        generation = int(self._barrier[_GENERATION])
        try:
            for jobs in self._jobs[: n_ranks - 1]:
                jobs.put(job)
            return function(0, n_ranks, self._barrier, record)
        except BaseException:
            # An interrupt. Had rank 0 taken part, the ranks would have met; as it has not, they wait for it.
            if int(self._barrier[_GENERATION]) == generation:
                for jobs in self._jobs[: n_ranks - 1]:
                    jobs.put(job)
                function(0, n_ranks, self._barrier, record)
            raise

    def close(self) -> None:
        """Stop the threads; the team goes on with the caller alone."""
        self._stop()
        for thread in self._threads:
            thread.join()
        self._jobs, self._threads = [], []
        self.n_ranks = 1


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _after_fork() -> None:
    for team in list(_teams):
        team.forked()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


# --- Splitting one kernel call over threads, where the work pays for waking them ---
# Elementary steps (about 0.5 ns each, 1 ms in all) below which waking a thread (about 50 µs) does not pay.
PARALLEL_WORK = 1 << 21
# Shard borders fall on whole cache lines of float32.
_ALIGNMENT = 16


_cores = functools.cache(usable_cores)


@functools.cache
def _pool(owner: int) -> ThreadPoolExecutor:
    """Threads of the process `owner`: a fork does not inherit its parent's."""
    return ThreadPoolExecutor(max_workers=max(1, _cores() - 1), thread_name_prefix="mileage-shard")


def run_shards(function: Any, n: int, work_each: int, *args: Any) -> None:
    """Call `function(start, stop, *args)` over [0, n), on several threads if `n * work_each` pays.

    Threads take shards as they come: the caller does what a thread that finds no free core has not begun.
    """
    if n * work_each < PARALLEL_WORK:
        function(0, n, *args)
        return
    cores = _cores()
    # Not more shards than cores: narrow columns are slow to read.
    width = -(-n // cores // _ALIGNMENT) * _ALIGNMENT
    starts = range(0, n, width)
    # Threads share the iterator: taking the next one is a single step.
    turns = iter(starts)

    def drain() -> None:
        for start in turns:
            function(start, min(n, start + width), *args)

    helpers = []
    if cores > 1 and len(starts) > 1:
        pool = _pool(os.getpid())
        helpers = [pool.submit(drain) for _ in range(min(cores, len(starts)) - 1)]
    try:
        drain()
    finally:
        # One that has not begun by now has nothing left to do.
        running = [helper for helper in helpers if not helper.cancel()]
        wait(running)
    for helper in running:
        helper.result()


# --- How a batch is cut into pieces for threads: by the size of the problem alone, never by the number of threads ---
# Below this many multiplications per chunk, meeting at a barrier costs more than a second thread brings.
LEAST_WORK = 1_200_000
# Every chunk has a gradient of its own, which is written and added up whatever its rows, and a matrix product of few
# rows spends its time rearranging weights: 16 rows at a time take 1.7 times as long as 128. Two chunks pay from the
# first number of rows each, more from the second.
_FEW_ROWS, ENOUGH_ROWS = 32, 128
MOST_CHUNKS = 16


def chunk_rows(batch: int, n_params: int) -> int:
    """Rows per chunk for a batch through networks with `n_params` parameters in all."""
    least = -(-LEAST_WORK // n_params)
    two = min(2, batch // max(_FEW_ROWS, least))
    chunks = min(MOST_CHUNKS, max(1, two, batch // max(ENOUGH_ROWS, least)))
    return -(-batch // chunks)


def n_chunks(batch: int, n_params: int) -> int:
    """Chunks that a batch is cut into."""
    return -(-batch // chunk_rows(batch, n_params))


def layout(sizes: dict[str, int], end: str) -> dict[str, int]:
    """Where parts of `sizes` floats start, one after the other on multiples of 16; under `end`, where the last ends."""
    offsets, start = {}, 0
    for name, size in sizes.items():
        offsets[name] = start
        start += -(-size // 16) * 16
    return offsets | {end: start}
