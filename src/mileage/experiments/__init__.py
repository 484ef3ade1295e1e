"""The one vocabulary of experiments: arms that take turns, raw samples, caveats with their remedy, verdicts.

Arm        one of the things that are compared: a name, and what an executor makes of it
Turn       whose attempt it is, of what, in which round, how often and how long at most
Executor   makes an attempt and tells the time; `MockExecutor` plays attempts back
Sample     what an attempt took and how it ended, kept as it was measured
run        takes the turns that no sample stands for yet, within a `Budget`
Caveat     why a number is to be read with care: cause, evidence, what to do
Verdict    how a comparison ends; with `Estimate` and the intervals it is a matter of `mileage.stats`
"""

from __future__ import annotations

from mileage.experiments.arms import Arm, Executor, MockExecutor, Outcome, Sample, Turn
from mileage.experiments.caveats import Cause, Caveat, find_caveats, instabilities
from mileage.experiments.turns import Budget, run, schedule
from mileage.stats import Estimate, Verdict

__all__ = [
    "Arm",
    "Budget",
    "Cause",
    "Caveat",
    "Estimate",
    "Executor",
    "MockExecutor",
    "Outcome",
    "Sample",
    "Turn",
    "Verdict",
    "find_caveats",
    "instabilities",
    "run",
    "schedule",
]
