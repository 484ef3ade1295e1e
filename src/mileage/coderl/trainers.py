"""The pool as the reward of other people's trainers: TRL's GRPOTrainer and verl. Neither library is imported."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mileage._records import Record
from mileage.coderl.corpus import PatchSample
from mileage.coderl.reward import BuildReward, RewardResult

_FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_DIFF = re.compile(r"^(?:diff --git |--- )", re.MULTILINE)

# From the text of a completion and the row of the dataset it belongs to, to a candidate.
ToSample = Callable[[str, Record], PatchSample]
TrlReward = Callable[..., list[float]]
AsyncTrlReward = Callable[..., Awaitable[list[float]]]
VerlScore = Callable[..., Record]
AsyncVerlScore = Callable[..., Awaitable[Record]]


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or the last message of a conversation."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1]["content"]) if completion else ""


def code_of(text: str) -> str:
    """The first fenced block of `text`, or all of it if there is none."""
    match = _FENCE.search(text)
    return match[1] if match else text


def candidate(path: str | None = None) -> ToSample:
    """A rule that reads a completion as a diff, or else as the new content of `path`.

    A `path` column of the dataset goes before the `path` given here.
    """

    def to_sample(text: str, row: Record) -> PatchSample:
        code = code_of(text)
        name = str(row.get("id", ""))
        if _DIFF.search(code):
            return PatchSample(name, patch=code)
        return PatchSample(name, path=row.get("path") or path, content=code)

    return to_sample


def _samples(completions: Sequence[Any], columns: Record, to_sample: ToSample) -> list[PatchSample]:
    """The candidates of a batch; `columns` holds one list per dataset column, as long as the batch."""
    lists = {
        name: values for name, values in columns.items() if isinstance(values, list) and len(values) == len(completions)
    }
    return [
        to_sample(completion_text(completion), {name: values[index] for name, values in lists.items()})
        for index, completion in enumerate(completions)
    ]


def trl_reward(pool: BuildReward, to_sample: ToSample | None = None, name: str = "build_reward") -> TrlReward:
    """A reward function for `trl.GRPOTrainer(reward_funcs=...)`; `name` is what its logs call it."""
    rule = to_sample or candidate()

    def function(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [result.reward for result in pool.reward(_samples(completions, columns, rule))]

    function.__name__ = name
    return function


def async_trl_reward(
    pool: BuildReward, to_sample: ToSample | None = None, name: str = "build_reward"
) -> AsyncTrlReward:
    """The same as a coroutine function, which TRL awaits together with its other rewards."""
    rule = to_sample or candidate()

    async def function(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [result.reward for result in await pool.areward(_samples(completions, columns, rule))]

    function.__name__ = name
    return function


def _verl_sample(solution: str, ground_truth: Any, extra_info: Record | None, rule: ToSample) -> PatchSample:
    row = dict(extra_info or {})
    if isinstance(ground_truth, dict):
        row = {**ground_truth, **row}
    return rule(solution, row)


def _verl_score(result: RewardResult) -> Record:
    return {"score": result.reward, "verdict": str(result.verdict), "diagnostic": result.diagnostic}


def verl_compute_score(pool: BuildReward, to_sample: ToSample | None = None) -> VerlScore:
    """A `compute_score(data_source, solution_str, ground_truth, extra_info)` for verl."""
    rule = to_sample or candidate()

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any = None, extra_info: Record | None = None, **_: Any
    ) -> Record:
        return _verl_score(pool.reward([_verl_sample(solution_str, ground_truth, extra_info, rule)])[0])

    return compute_score


def async_verl_compute_score(pool: BuildReward, to_sample: ToSample | None = None) -> AsyncVerlScore:
    """The same as a coroutine function, for verl's asynchronous reward managers."""
    rule = to_sample or candidate()

    async def compute_score(
        data_source: str, solution_str: str, ground_truth: Any = None, extra_info: Record | None = None, **_: Any
    ) -> Record:
        results = await pool.areward([_verl_sample(solution_str, ground_truth, extra_info, rule)])
        return _verl_score(results[0])

    return compute_score
