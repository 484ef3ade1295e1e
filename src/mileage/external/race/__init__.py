"""Races: recipes, programs and revisions that train to one held-out target, and what that cost each of them.

`run_race` takes a `RaceSpec` (a TOML file) to a `Race`: arms, attempts, verdicts. A race is a directory with a journal
and a ledger; stopped or killed, it goes on where it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mileage.errors import InterruptError, UsageError
from mileage.external.race.arms import BudgetSpentError, RaceExecutor, SessionOverError
from mileage.external.race.journal import FORMAT, Attempt, Journal
from mileage.external.race.result import Race, RaceArm, read_race
from mileage.external.race.spec import ArmSpec, RaceSpec, TunedBy
from mileage.ledger.liveness import host_name
from mileage.ledger.rows import new_run_id
from mileage.measure import Arm, Turn, Verdict, run, schedule, surroundings
from mileage.system import usable_cores


# --- Running a race: rounds in which every arm takes a turn, verdicts at planned looks, seeds where they are open ---
def run_race(
    spec: RaceSpec,
    directory: str | os.PathLike[str],
    *,
    seeds: Sequence[int] | None = None,
    session_seconds: float = math.inf,
    tell: Callable[[str], None] = lambda _: None,
) -> Race:
    """Run a race to its end, or go on with the one in `directory`.

    Args:
        spec: what is raced.
        directory: the race's own, with its journal and its ledger.
        seeds: of those planned, the ones that are taken here; another machine has the others.
        session_seconds: after which no attempt is begun until the race is taken up again.
        tell: gets a sentence for everything that happens.
    """
    place = Path(directory)
    with Journal(place) as journal:
        _check_same(journal, spec, place)
        executor = RaceExecutor(spec, place, journal, session_seconds, tell)
        executor.take_up()
        stages = _Stages(spec, executor, journal, seeds, tell)
        try:
            stages.run()
        except KeyboardInterrupt:
            executor.take_up()  # an attempt that was cut before or after its program was watched
            journal.write("stopped", why="interrupted")
            raise InterruptError(f"interrupted: the same command goes on with the race in {place}") from None
        except SessionOverError:
            journal.write("stopped", why="session")
            tell("the session is over: the same command goes on with the race")
        except BudgetSpentError:
            journal.write("stopped", why="budget")
            tell("the budget is spent")
    return read_race(place)


def _check_same(journal: Journal, spec: RaceSpec, place: Path) -> None:
    """Begin the journal, or see that it is of this race."""
    if journal.head is None:
        facts = {"format": FORMAT, "race_id": new_run_id(), "digest": spec.digest, "spec": spec.as_dict()}
        price = {"usd_per_hour": spec.frozen_price.usd_per_hour, "source": spec.frozen_price.source}
        journal.write("race", **facts, host=host_name(), cores=usable_cores(), price=price)
    elif journal.head.get("digest") != spec.digest:
        raise UsageError(f"{place} holds another race, or this one before its file was changed: name a new directory")


class _Stages:
    """From look to look: every arm has as many attempts as the look needs, those that are decided get no more."""

    def __init__(
        self, spec: RaceSpec, executor: RaceExecutor, journal: Journal, seeds: Sequence[int] | None,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._spec, self._executor, self._journal, self._tell = spec, executor, journal, tell
        self._rounds = None if seeds is None else {seed - spec.first_seed for seed in seeds}
        if self._rounds is not None and not self._rounds <= set(range(spec.most_seeds)):
            last = spec.first_seed + spec.most_seeds - 1
            raise UsageError(f"--seeds must be among those of the race, {spec.first_seed} to {last}")
        self._arms = [Arm(arm.name, arm, arm.about) for arm in spec.arms]

    def run(self) -> None:
        """All stages; the machine is looked at before and after each."""
        before = 0
        names = [arm.name for arm in self._arms]
        for look in self._spec.looks:
            turns = self._turns(names, before, look)
            done = {(each.arm, each.round) for each in self._journal.attempts() if each.counted}
            if any((turn.arm, turn.round) not in done for turn in turns):
                self._read_machine()
                self._take(names, turns)
                self._read_machine()
            before = look
            if look == self._spec.looks[-1] or self._rounds is not None:
                continue
            names = self._open_arms()
            if not names:
                self._tell(f"all verdicts are in after {look} seeds")
                return

    def _turns(self, names: Sequence[str], before: int, look: int) -> list[Turn]:
        """The attempts of one stage in random order within each round, the same each time the race is taken up."""
        every = schedule(names, look, seed=self._spec.order_seed + before)
        first = len(self._spec.arms) * before
        wanted = [turn for turn in every if turn.round >= before]
        numbered = [replace(turn, order=first + place) for place, turn in enumerate(wanted)]
        return [turn for turn in numbered if self._rounds is None or turn.round in self._rounds]

    def _take(self, names: Sequence[str], turns: Sequence[Turn]) -> None:
        arms = [arm for arm in self._arms if arm.name in names]
        done = [each for each in self._journal.attempts() if each.counted]
        run(arms, self._executor, turns, done=done, on_sample=self._say)

    def _say(self, attempt: Attempt, taken: int, planned: int) -> None:
        how = "reached the target" if attempt.outcome == "ok" else f"{attempt.outcome} ({attempt.diagnostic})"
        self._tell(f"{attempt.arm}, seed {attempt.seed}: {how} after {attempt.wall_seconds:.2f} s")

    def _read_machine(self) -> None:
        self._journal.write("machine", host=host_name(), **surroundings.read().as_dict())

    def _open_arms(self) -> list[str]:
        """The arms whose comparison with the reference is undecided, and the reference with them."""
        verdicts = read_race(self._executor.directory).comparisons
        undecided = [name for name, each in verdicts.items() if each.costs.verdict is Verdict.UNDECIDED]
        return [self._spec.reference, *undecided] if undecided else []


__all__ = ["ArmSpec", "Race", "RaceArm", "RaceSpec", "TunedBy", "read_race", "run_race"]
