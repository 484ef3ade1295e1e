"""Several threads inside one kernel: a team of Python threads, and a barrier that never enters Python.

Numba's own parallel loops cost seconds of compile time. Here every thread calls the same GIL-free kernel with its
rank, and ranks meet in native code (about 0.2 µs where all run; one that waits long sleeps). How work is cut into
pieces depends on the problem alone, never on the number of ranks, so that results are the same bit for bit on any
number of threads.
"""

from __future__ import annotations

import os
import platform
import queue
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage._types import I64
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.kinds import Count, PtrI64
from mileage.kernels.machine.ranks import Ranks

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
