"""`mileage profile --try -- python train.py`: what can be changed from outside, measured by running the program.

Arms take turns: the program as it is, and with one variable of its environment or one argument changed.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mileage._errors import UsageError
from mileage._records import Record
from mileage.experiments import Arm, Budget, Outcome, Sample, Turn, Verdict, run, schedule
from mileage.stats import FEWEST_RUNS, Estimate, median_ratio_estimate, verdict_of_ratio
from mileage.tables import Table

BASELINE = "as it is"
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_MOST_ARMS = 24
_MOST_ROUNDS = 30
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_XLA = "XLA_FLAGS"


@dataclass(frozen=True)
class Start:
    """How a program is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempted:
    """What the arms took."""

    samples: tuple[Sample, ...]
    arms: tuple[Arm[Start], ...]
    interrupted: bool = False

    def seconds(self, arm: str) -> list[float]:
        """Of its good runs."""
        return [each.wall_seconds for each in self.samples if each.arm == arm and each.outcome is Outcome.OK]

    def ratio(self, arm: str) -> Estimate | None:
        """How long it takes, as a multiple of the program as it is; None without good runs of both."""
        mine, theirs = self.seconds(arm), self.seconds(BASELINE)
        return median_ratio_estimate(mine, theirs) if mine and theirs else None

    def words(self, arm: str) -> str:
        """How it compares; nothing is called faster whose interval reaches to no difference."""
        ratio = self.ratio(arm)
        if arm == BASELINE or ratio is None or ratio.value is None:
            failed = [each for each in self.samples if each.arm == arm and each.outcome is not Outcome.OK]
            return f"failed: {failed[0].diagnostic}" if failed and not self.seconds(arm) else ""
        if ratio.interval is None:
            return f"too few rounds to say: at least {FEWEST_RUNS} are needed"
        found = verdict_of_ratio(ratio)
        return {Verdict.A_CHEAPER: "faster", Verdict.B_CHEAPER: "slower"}.get(found, "no difference shown")

    def table(self) -> Table:
        """One row per arm."""
        rows = []
        for arm in self.arms:
            mine, ratio = sorted(self.seconds(arm.name)), self.ratio(arm.name)
            middle = f"{mine[len(mine) // 2]:.2f}" if mine else "–"
            shown = "" if ratio is None or ratio.value is None or arm.name == BASELINE else f"{ratio.value:.2f}"
            if shown and ratio is not None and ratio.interval is not None:
                shown += f" [{ratio.interval.low:.2f}, {ratio.interval.high:.2f}]"
            rows.append((arm.name, len(mine), middle, shown, self.words(arm.name)))
        return Table.of(("start", "runs", "median s", "times as long", "so"), rows,
                        left={"start", "so", "times as long"}, title="Tried",
                        note="Arguments may change what is learned: seconds say nothing of that.",
                        key="tried")  # fmt: skip

    def as_dict(self) -> Record:
        """As plain data, every run included."""
        return {"arms": [{"name": arm.name, "command": list(arm.subject.command),
                          "environment": dict(arm.subject.environment), "seconds": self.seconds(arm.name),
                          "result": self.words(arm.name)} for arm in self.arms],
                "interrupted": self.interrupted}  # fmt: skip


def starts(command: Sequence[str], templates: Sequence[str] = (), *, uses_jax: bool = False) -> tuple[Arm[Start], ...]:
    """The program as it is, with one thread and with as many as there are cores, and with the arguments of `templates`.

    A template is arguments with choices in braces, such as `--num-envs {4,8,16}`: they replace arguments of the same
    name, or are added.
    """
    plain = tuple(command)
    arms = [Arm(BASELINE, Start(plain))]
    cores = len(os.sched_getaffinity(0))
    for number in sorted({1, cores}):
        environment = {name: str(number) for name in _THREADS}
        if uses_jax and number == 1:
            environment[_XLA] = f"{os.environ.get(_XLA, '')} --xla_cpu_multi_thread_eigen=false".strip()
        if any(os.environ.get(name) != value for name, value in environment.items()):
            about = " ".join(f"{name}={value}" for name, value in environment.items())
            arms.append(Arm(f"{number} thread{'s' * (number > 1)}", Start(plain, environment), about))
    for template in templates:
        arms += [Arm(" ".join(words), Start(with_arguments(plain, words))) for words in chosen(template)]
    if len(arms) > _MOST_ARMS:
        raise UsageError(f"--try-arg makes {len(arms)} starts, at most {_MOST_ARMS} can be tried: give fewer choices")
    return tuple({arm.name: arm for arm in arms}.values())


def chosen(template: str) -> list[tuple[str, ...]]:
    """Every choice of a template as words."""
    parts = _TEMPLATE.split(template)
    if len(parts) == 1 or "{" in "".join(parts[::2]) or "}" in "".join(parts[::2]) or not all(parts[1::2]):
        raise UsageError(f'--try-arg {template!r} cannot be read: write choices in braces, as "--num-envs {{4,8,16}}"')
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return [tuple("".join(each).split()) for each in itertools.product(*choices)]


def with_arguments(command: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """`command` with arguments changed: values of options that are there already, or else added at its end."""
    found, new = list(command), list(words)
    while new:
        name, equals, _ = new[0].partition("=")
        size = 1
        while size < len(new) and not (new[size].startswith("-") and not new[size][1:2].isdigit()) and not equals:
            size += 1
        mine, new = new[:size], new[size:]
        at = next((i for i, word in enumerate(found) if name.startswith("-") and word.partition("=")[0] == name), None)
        if at is None:
            found += mine
        elif "=" in found[at]:
            found[at : at + 1] = mine
        else:
            found[at : at + size] = mine
    return tuple(found)


class ProgramExecutor:
    """Runs a program to its end, its output left unread."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def prepare(self, arm: Arm[Start], kind: str) -> None:
        """Nothing: the run that was watched has warmed what can be warm."""

    def attempt(self, arm: Arm[Start], turn: Turn) -> Sample:
        """Start it and wait."""
        before, began = os.times(), time.monotonic()
        done = subprocess.run(
            arm.subject.command, env=os.environ | dict(arm.subject.environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        wall, after = time.monotonic() - began, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        outcome = Outcome.OK if done.returncode == 0 else Outcome.FAILED
        why = "" if outcome is Outcome.OK else f"exit code {done.returncode}" + (f", {said[-1][:200]}" if said else "")
        return Sample(arm.name, wall, cpu, outcome, diagnostic=why)


def attempt(
    arms: Sequence[Arm[Start]], *, budget_seconds: float, say: Callable[[str], None] = lambda _: None,
    executor: ProgramExecutor | None = None,
) -> Attempted:  # fmt: skip
    """Run the arms in turn until the budget is spent, once each at least; Ctrl-C keeps what is known."""
    kept: list[Sample] = []

    def keep(sample: Sample, done: int, of: int) -> None:
        kept.append(sample)
        say(f"{sample.arm}: {sample.wall_seconds:.1f} s" + (f" ({sample.diagnostic})" if sample.diagnostic else ""))

    budget = Budget(budget_seconds, least_rounds=1)
    turns = schedule([arm.name for arm in arms], _MOST_ROUNDS, seed=0)
    try:
        run(arms, executor or ProgramExecutor(), turns, budget=budget, on_sample=keep)
    except KeyboardInterrupt:
        return Attempted(tuple(kept), tuple(arms), interrupted=True)
    return Attempted(tuple(kept), tuple(arms))
