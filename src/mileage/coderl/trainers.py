"""The pool as the reward of TRL and verl: completions made candidates, and a function served to other processes.

A Unix socket that only this user can open, a key that only this process's children know, JSON both ways. One thread for
each caller; calls of several run at the same time.

Any text and any shape of message gives a candidate; whether that candidate applies is for the pool to say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, cast

from mileage.coderl.config import RewardResult
from mileage.coderl.patching import PatchSample, PatchVerdict
from mileage.coderl.pool import BuildReward
from mileage.errors import InfraError
from mileage.records import Record

# --- A function of this process, called from others: for trainers that score in worker processes ---
KEY_BYTES = 32


class Server:
    """Answers records with records until it is closed."""

    def __init__(self, answer: Callable[[Record], object]) -> None:
        self._answer = answer
        self._directory = Path(tempfile.mkdtemp(prefix="mileage-pool-"))
        self.address = str(self._directory / "socket")
        self.key = os.urandom(KEY_BYTES)
        self._listener = Listener(self.address, family="AF_UNIX", backlog=64, authkey=self.key)
        self._open = True
        threading.Thread(target=self._accept, name="pool-server", daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            # A caller that does not know the key, or leaves at once, is no reason to stop.
            with contextlib.suppress(Exception):
                connection = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="pool-caller", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                question = json.loads(connection.recv_bytes())
                try:
                    answer = {"answer": self._answer(question)}
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                connection.send_bytes(json.dumps(answer).encode())

    def close(self) -> None:
        """Take no more calls."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.close()
            self._directory.rmdir()


def ask(address: str, key: bytes, question: Record) -> object:
    """What the server at `address` answers."""
    try:
        with Client(address, family="AF_UNIX", authkey=key) as connection:
            connection.send_bytes(json.dumps(question, default=str).encode())
            answer = json.loads(connection.recv_bytes())
    except (OSError, EOFError) as error:
        raise InfraError(f"the pool does not answer: {error}") from None
    if "error" in answer:
        raise InfraError(f"the pool failed: {answer['error']}")
    return answer["answer"]


# --- From what a model said to a candidate: the answer without the draft, the code without the prose ---
_THINKING = "think|thinking|thought|reasoning"
_OPEN = re.compile(rf"^[ \t]*<({_THINKING})>", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(rf"<(/?)({_THINKING})>", re.IGNORECASE)
# Without an opening one, a closing tag begins or ends its line: elsewhere it is part of a text or of code.
_CLOSE = re.compile(rf"^[ \t]*</({_THINKING})>|</({_THINKING})>(?=[ \t\r]*$)", re.IGNORECASE | re.MULTILINE)
# How gpt-oss says that what follows is not for itself.
_FINAL = "<|channel|>final<|message|>"
# Possessive: a run of marks that is no fence is not tried again from each of its marks.
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)([^\n]*+)\n", re.MULTILINE)
_DIFF = re.compile(r"^(?:diff --git |--- [^\n]*\n\+\+\+ )", re.MULTILINE)

# From the text of a completion and the row of the dataset it belongs to, to a candidate.
ToSample = Callable[[str, Record], PatchSample]


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, a message, or the last message of a conversation; of parts, those of text."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        return _content_text(completion.get("content"))
    if not isinstance(completion, Sequence) or not completion:
        return ""
    messages = [message for message in completion if isinstance(message, Mapping)]
    answers = [message for message in messages if message.get("role", "assistant") == "assistant"]
    return completion_text((answers or messages)[-1]) if messages else ""


def _content_text(content: Any) -> str:
    """The text of a message: a string, or the text parts among others such as images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def answer_of(text: str) -> str:
    """`text` without what the model thought: <think> blocks, one that was opened by the prompt, one that never ends."""
    text = text.rpartition(_FINAL)[2]
    closed, opened = _CLOSE.search(text), _OPEN.search(text)
    if closed and (opened is None or closed.start() < opened.start()):
        text = text[closed.end() :]
    kept: list[str] = []
    position = 0
    while opened := _OPEN.search(text, position):
        kept.append(text[position : opened.start()])
        position = _end_of_thought(text, opened.end())
    return "".join(kept) + text[position:]


def _end_of_thought(text: str, start: int) -> int:
    """Where the block ends that began before `start`: at its own closing tag, else at the last one there is."""
    depth, end = 1, len(text)
    for tag in _TAG.finditer(text, start):
        depth += -1 if tag[1] else 1
        end = tag.end() if tag[1] else end
        if depth == 0:
            break
    return end


def code_of(text: str) -> str:
    """The first fenced block of `text` (``` or ~~~, closed or not), or all of it if there is none."""
    for match in _FENCE.finditer(text):
        mark, info = match[1], match[2]
        if mark[0] == "`" and "`" in info:
            continue  # code within a line
        end = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}+[ \t\r]*+$", re.MULTILINE).search(text, match.end())
        return text[match.end() : end.start() if end else len(text)]
    return text


def candidate(path: str | None = None) -> ToSample:
    """A rule that reads the answer of a completion as a diff, or else as the new content of `path`.

    A `path` column of the dataset goes before the `path` given here.
    """

    def to_sample(text: str, row: Record) -> PatchSample:
        code = code_of(answer_of(text))
        name = str(row.get("id", ""))
        if _DIFF.search(code):
            return PatchSample(name, patch=code)
        return PatchSample(name, path=row.get("path") or path, content=code)

    return to_sample


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
