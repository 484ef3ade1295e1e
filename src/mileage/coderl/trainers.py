"""The pool as the reward of other people's trainers: TRL's GRPOTrainer and verl. Neither library is imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from mileage._records import Record
from mileage.coderl.completions import ToSample, candidate, completion_text
from mileage.coderl.corpus import PatchSample, PatchVerdict
from mileage.coderl.reward import BuildReward, RewardResult
from mileage.coderl.serving import Server, ask

TrlReward = Callable[..., list[float | None]]
AsyncTrlReward = Callable[..., Awaitable[list[float | None]]]
AsyncVerlScore = Callable[..., Awaitable["Score"]]


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
    """A reward function for `trl.GRPOTrainer(reward_funcs=...)`; `name` is what its logs call it.

    A candidate that the machine failed to judge has the reward None, which TRL leaves out.
    """
    rule = to_sample or candidate()

    def function(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [result.reward for result in pool.reward(_samples(completions, columns, rule))]

    function.__name__ = name
    return function


def async_trl_reward(
    pool: BuildReward, to_sample: ToSample | None = None, name: str = "build_reward"
) -> AsyncTrlReward:
    """The same as a coroutine function, which TRL awaits together with its other rewards."""
    rule = to_sample or candidate()

    async def function(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [result.reward for result in await pool.areward(_samples(completions, columns, rule))]

    function.__name__ = name
    return function


class Score(dict[str, Any]):
    """What verl gets for a solution: a dictionary with `score`, which managers that want a pair find at index 0."""

    def __missing__(self, key: object) -> Any:
        if key == 0:
            return self["score"]
        raise KeyError(key)


class _Means:
    """The mean score of each group of solutions to one problem, and of all.

    verl has no way to leave a solution out. One that the machine failed to judge gets the mean of its group: its
    advantage is then 0, the others keep theirs, and `masked` says so.
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, group: str, score: float) -> None:
        for name in (group, ""):
            self._sums[name][0] += score
            self._sums[name][1] += 1

    def get(self, group: str) -> float:
        total, count = self._sums[group] if group in self._sums else self._sums[""]
        return total / count if count else 0.0


class VerlScore:
    """A `compute_score` for verl's managers `naive`, `dapo`, `batch` and `prime`.

    `batch` hands over all solutions at once and keeps the whole pool busy. `prime` calls from processes of its own:
    there, a copy of this object asks the original one.
    """

    def __init__(self, pool: BuildReward, to_sample: ToSample | None = None) -> None:
        self._pool = pool
        self._rule = to_sample or candidate()
        self._means = _Means()
        self._server: Server | None = None
        self._remote: tuple[str, bytes] | None = None

    def __call__(
        self,
        data_source: Any = None,
        solution_str: Any = None,
        ground_truth: Any = None,
        extra_info: Any = None,
        *,
        data_sources: Sequence[Any] | None = None,
        solution_strs: Sequence[Any] | None = None,
        ground_truths: Sequence[Any] | None = None,
        extra_infos: Sequence[Any] | None = None,
        **_: Any,
    ) -> Any:
        """The score of one solution, or a list of them where `solution_strs` holds a batch."""
        if solution_strs is None:
            return self.scores([solution_str], [_row(ground_truth, extra_info)])[0]
        none = [None] * len(solution_strs)
        truths = none if ground_truths is None else ground_truths
        extras = none if extra_infos is None else extra_infos
        return self.scores(list(solution_strs), [_row(*pair) for pair in zip(truths, extras, strict=True)])

    def scores(self, solutions: Sequence[Any], rows: Sequence[Record]) -> list[Score]:
        """The scores of solutions with the rows of the dataset they belong to."""
        if self._remote:
            question = {"solutions": [completion_text(text) for text in solutions], "rows": list(rows)}
            return [Score(score) for score in cast("list[Record]", ask(*self._remote, question))]
        samples = [self._rule(completion_text(text), row) for text, row in zip(solutions, rows, strict=True)]
        return self.judged(self._pool.reward(samples), rows)

    def judged(self, results: Sequence[RewardResult], rows: Sequence[Record]) -> list[Score]:
        """The scores of results; those of the judged ones first, since the others get their mean."""
        groups = [_group(row) for row in rows]
        for result, group in zip(results, groups, strict=True):
            if result.reward is not None:
                self._means.add(group, result.reward)
        return [
            Score(
                score=self._means.get(group) if result.reward is None else result.reward,
                verdict=str(result.verdict),
                diagnostic=result.diagnostic,
                masked=result.verdict is PatchVerdict.INFRA_ERROR,
            )
            for result, group in zip(results, groups, strict=True)
        ]

    def __getstate__(self) -> Record:
        """What a copy in another process needs: the address of this one."""
        if self._remote is None and self._server is None:
            self._server = Server(lambda question: self.scores(question["solutions"], question["rows"]))
            self._pool.on_close(self._server.close)
        return {"remote": self._remote or (self._server and (self._server.address, self._server.key))}

    def __setstate__(self, state: Record) -> None:
        self._remote = state["remote"]


def _row(ground_truth: Any, extra_info: Any) -> Record:
    row = dict(extra_info) if isinstance(extra_info, dict) else {}
    return {**ground_truth, **row} if isinstance(ground_truth, dict) else row


def _group(row: Record) -> str:
    """Which problem a row is: verl numbers them; failing that, by all that is said about it."""
    if row.get("index") is not None:
        return str(row["index"])
    return repr(sorted((str(key), str(value)) for key, value in row.items() if key != "rollout_reward_scores")) or "?"


def verl_compute_score(pool: BuildReward, to_sample: ToSample | None = None) -> VerlScore:
    """A `compute_score(data_source, solution_str, ground_truth, extra_info)` for verl, and the same for batches."""
    return VerlScore(pool, to_sample)


def async_verl_compute_score(pool: BuildReward, to_sample: ToSample | None = None) -> AsyncVerlScore:
    """The same as a coroutine function, for verl's asynchronous reward managers."""
    rule = to_sample or candidate()
    scorer = VerlScore(pool, rule)

    async def compute_score(
        data_source: Any = None, solution_str: Any = None, ground_truth: Any = None, extra_info: Any = None, **_: Any
    ) -> Score:
        row = _row(ground_truth, extra_info)
        return scorer.judged(await pool.areward([rule(completion_text(solution_str), row)]), [row])[0]

    return compute_score
