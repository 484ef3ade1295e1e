"""The process that has the libraries: reads jobs from standard input, one JSON object a line, and answers likewise.

    {"do": "hello"}                                                       -> {"libraries", "versions", "python"}
    {"do": "build", "key", "primitive", "params", "library"}              -> {"label", "units"} or {"absent": why}
    {"do": "sample", "key", "repeats"}                                    -> {"wall", "cpu"}
    {"do": "drop"}                                                        -> {}, with all arms forgotten

Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any, TextIO

from mileage.measure import Arm, Sample, Turn
from mileage.measure.timing import ClockExecutor, Work
from mileage.profiling.bench.cases import Way, same

from .arms import PEERS, Peer

_DISTRIBUTIONS = {
    "NumPy": "numpy", "torch": "torch", "JAX": "jax", "rlox": "rlox", "SB3": "stable-baselines3", "cpprb": "cpprb",
    "tianshou": "tianshou", "torchrl": "torchrl", "Gymnasium": "gymnasium", "gymnax": "gymnax", "envpool": "envpool",
    "rejax": "rejax",
}  # fmt: skip
# How long to wait at most for threads that spin, how long to look, and what counts as idle.
SETTLE_SECONDS, _LOOK_SECONDS, _IDLE_SHARE = 0.3, 0.003, 0.1


class Worker:
    """Builds arms, checks them, and times the one it is told to."""

    def __init__(self) -> None:
        self._arms: dict[str, Way] = {}
        self._answers: dict[str, Any] = {}

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; what goes wrong is an answer too."""
        actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._hello, "build": self._build, "sample": self._sample, "drop": self._drop,
        }  # fmt: skip
        try:
            return actions[request["do"]](request)
        except Exception as error:
            traceback.print_exc()
            return {"absent": f"{type(error).__name__}: {error}".splitlines()[0]}

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        present = {peer.library for peers in PEERS.values() for peer in peers if peer.installed()}
        versions = {}
        for library in sorted(present):
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[library] = metadata.version(_DISTRIBUTIONS[library])
        return {"libraries": sorted(present), "versions": versions, "python": platform.python_version()}

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        peer = next(each for each in PEERS[request["primitive"]] if each.library == request["library"])
        variants = peer.arms(request["params"])
        if not variants:
            return {"absent": "does not do this"}
        problem = self._check(peer, request, variants)
        if problem:
            return {"absent": problem}
        best = min(variants, key=_quick_seconds) if len(variants) > 1 else variants[0]
        self._arms[request["key"]] = best
        settle()
        return {"label": best.label if len(variants) > 1 else "", "units": best.units}

    def _check(self, peer: Peer, request: dict[str, Any], variants: list[Way]) -> str:
        """Why the library's answer is wrong, or nothing."""
        if any(variant.answer is None for variant in variants):
            return ""
        name = json.dumps([request["primitive"], request["params"]], sort_keys=True)
        if name not in self._answers:
            (reference,) = PEERS[request["primitive"]][0].arms(request["params"])
            assert reference.answer is not None
            self._answers = {name: reference.answer(reference.run())}
        for variant in variants:
            assert variant.answer is not None
            if not same(variant.answer(variant.run()), self._answers[name]):
                return "its answer differs from NumPy's"
        return ""

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        sample = timed(self._arms[request["key"]], request["repeats"])
        settle()
        return {"wall": sample.wall_seconds, "cpu": sample.cpu_seconds}

    def _drop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._arms.clear()
        self._answers.clear()
        gc.collect()
        return {}


def timed(arm: Way, repeats: int) -> Sample:
    """Seconds per job over `repeats` calls, by the harness that times our own arms."""
    work = Arm(arm.label, Work(arm.run, arm.prepare, arm.units))
    return ClockExecutor().attempt(work, Turn(arm.label, repeats=repeats))


def settle() -> None:
    """Wait until no thread of this process uses a core.

    Threads of OpenMP and BLAS spin for a while after their work, which would slow whoever is timed next: on cores that
    share their units, to half its speed.
    """
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(_LOOK_SECONDS)
        if time.process_time() - before < _IDLE_SHARE * _LOOK_SECONDS:
            return


def _quick_seconds(arm: Way) -> float:
    """How long the arm takes, roughly, after it has warmed up."""
    timed(arm, 2)
    seconds = max(timed(arm, 1).wall_seconds * arm.units, 1e-9)
    repeats = int(min(max(1.0, 0.004 / seconds), 1000))
    return min(timed(arm, repeats).wall_seconds for _ in range(3))


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    worker = Worker()
    for line in requests:
        answers.write(json.dumps(worker.reply(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and what was standard output, which from now on is standard error."""
    warnings.simplefilter("ignore")  # peers warn about one another's versions
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
