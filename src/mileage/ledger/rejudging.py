"""Judging a recorded run by another target than its own, from the episodes that were played."""

from __future__ import annotations

import dataclasses

from mileage._errors import UsageError
from mileage.ledger.panels import Aggregate
from mileage.ledger.rows import Checkpoint, End, EndState, Episode
from mileage.ledger.runs import RecordedRun, evaluation_of, finite
from mileage.ledger.summary import Progress
from mileage.ledger.targets import Target

_JUDGED = (EndState.REACHED, EndState.NOT_REACHED, EndState.FINISHED, EndState.CLAIMED)


def rejudged(recorded: RecordedRun, target: Target) -> RecordedRun:
    """The run as if `target` had been its own; its checkpoints and episodes must have been read.

    Nothing is written. Without episodes, as in what was imported from another tool, a checkpoint meets no target.
    """
    if target.aggregate is Aggregate.SUCCESS_RATE and recorded.run.success is None:
        raise UsageError(f"target {target} cannot judge run {recorded.run_id}: its panel defines no success")
    played: dict[int, list[Episode]] = {}
    for episode in recorded.episodes:
        played.setdefault(episode.seq, []).append(episode)
    checkpoints = tuple(_judged(row, target, played.get(row.seq, [])) for row in recorded.checkpoints)
    return dataclasses.replace(
        recorded,
        run=recorded.run._replace(target=str(target)),
        checkpoints=checkpoints,
        end=None if recorded.end is None else _end(recorded.end, Progress.of(checkpoints)),
    )


def stopped_short(recorded: RecordedRun, target: Target) -> bool:
    """Whether the run ended because it had met its own target, and had not met `target` by then."""
    if recorded.end is None or recorded.target is None or Target.parse(recorded.target) == target:
        return False
    return recorded.state == EndState.REACHED and not rejudged(recorded, target).reached


def _judged(row: Checkpoint, target: Target, played: list[Episode]) -> Checkpoint:
    if not played:
        return row._replace(target_value=None, target_met=None)
    evaluation = evaluation_of(sorted(played, key=lambda episode: episode.episode))
    return row._replace(target_value=finite(target.value(evaluation)), target_met=target.met(evaluation))


def _end(end: End, progress: Progress) -> End:
    state = end.state
    if state in _JUDGED:
        state = (EndState.REACHED if progress.first_reached else EndState.NOT_REACHED).value
    return end._replace(state=state, **progress.judged())
