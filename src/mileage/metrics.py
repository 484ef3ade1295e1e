"""What every number of a run means: its phases, its totals, and one table of all metrics made from them.

The formulas are pure functions on one frozen record, each with its denominator. A quantity whose denominator is zero,
or that a run does not have, is `None`: never infinity, never zero. Clock and ledger, reports, exports and tables all
take them from here; `METRICS` says once how each is called, spelled, added up over runs, and where it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, StrEnum, auto
from typing import Protocol

from mileage.errors import UsageError


class Phase(StrEnum):
    """What a run is doing; at any instant exactly one phase is open. Other names are allowed beside these."""

    INIT = "init"
    """Process start, imports, building environments, networks and buffers."""
    COMPILE = "compile"
    """JIT compilation, or loading of compiled kernels (Numba, torch.compile, XLA)."""
    ENV_STEP = "env_step"
    """Environments stepping."""
    ENV_RESET = "env_reset"
    """Episodes starting anew within a step, where Python starts them and in this process."""
    INFERENCE = "inference"
    """Policy forward passes that choose actions."""
    ROLLOUT = "rollout"
    """A fused collection whose environment and inference shares cannot be told apart from outside."""
    STORE = "store"
    """Transitions going into a replay buffer."""
    ADVANTAGE = "advantage"
    """GAE, V-trace, returns, group advantages."""
    LEARN = "learn"
    """Minibatch gather, forward, backward, optimizer."""
    TRANSFER = "transfer"
    """Copies between host and device."""
    SYNC = "sync"
    """Waiting for workers, gradient exchange, parameter broadcast."""
    EVAL = "eval"
    """Held-out evaluation."""
    CHECKPOINT = "checkpoint"
    """Writing checkpoints."""
    LOG = "log"
    """Metrics, ledger writes, progress output."""
    OTHER = "other"
    """Wall-clock minus all of the above."""


OTHER_SHARE_LIMIT = 0.02
"""Above this share of the wall-clock, unexplained time is a finding of its own."""


class Times(Protocol):
    """What a clock says: the wall-clock, and the seconds of each phase."""

    @property
    def wall_seconds(self) -> float:
        """Wall-clock in seconds."""

    @property
    def phases(self) -> dict[str, float]:
        """Seconds per phase."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run has used and reached up to one instant."""

    wall_seconds: float
    phases: Mapping[str, float]
    """Seconds per exclusive phase; they add up to `wall_seconds`."""
    env_steps: int = 0
    instances: int = 1
    price_usd_per_hour: float = 0.0
    target_reached_seconds: float | None = None
    """Wall-clock at the end of the evaluation that first met the target."""
    steps_to_target: int | None = None
    success_rate: float | None = None
    mean_return: float | None = None
    peaks: Mapping[str, float | None] | None = None
    """Highest readings by the name of their metric, such as `peak_rss_gb`."""

    def __post_init__(self) -> None:
        # To the microsecond: a record whose phases overlap or leave a hole must not be reported from.
        claimed = math.fsum(self.phases.values())
        if not math.isclose(claimed, self.wall_seconds, rel_tol=0.0, abs_tol=1e-6):
            raise UsageError(
                f"phases add up to {claimed:.6f} s but wall_seconds is {self.wall_seconds:.6f}: "
                "give the rest as phase 'other'"
            )
        if self.instances < 1 or self.env_steps < 0 or self.price_usd_per_hour < 0:
            raise UsageError("instances must be at least 1, env_steps and price_usd_per_hour must not be negative")

    @classmethod
    def of(
        cls,
        times: Times,
        *,
        env_steps: int = 0,
        instances: int = 1,
        price_usd_per_hour: float = 0.0,
        target_reached_seconds: float | None = None,
    ) -> Totals:
        """The record of a clock's `times()`."""
        return cls(times.wall_seconds, times.phases, env_steps, instances, price_usd_per_hour, target_reached_seconds)

    @classmethod
    def together(cls, totals: Sequence[Totals]) -> Totals:
        """What several runs at the same price have used, as one: times and steps add up, the highest peak counts."""
        phases: dict[str, float] = {}
        for phase, seconds in ((phase, s) for each in totals for phase, s in each.phases.items()):
            phases[phase] = phases.get(phase, 0.0) + seconds
        names = dict.fromkeys(name for each in totals for name in each.peaks or {})
        return cls(
            math.fsum(phases.values()),
            phases,
            sum(each.env_steps for each in totals),
            totals[0].instances,
            totals[0].price_usd_per_hour,
            peaks={name: highest((each.peaks or {}).get(name) for each in totals) for name in names},
        )


def phase_seconds(totals: Totals, phase: str) -> float:
    """Seconds spent in one phase, 0 if it was never open."""
    return totals.phases.get(phase, 0.0)


def eval_seconds(totals: Totals) -> float:
    """Seconds of held-out evaluation."""
    return phase_seconds(totals, Phase.EVAL)


def train_seconds(totals: Totals) -> float:
    """Wall-clock without held-out evaluation."""
    return totals.wall_seconds - eval_seconds(totals)


def steps_per_second(totals: Totals) -> float | None:
    """Environment steps per second of `train_seconds`; shown beside `steady_steps_per_second`, never alone."""
    return _ratio(totals.env_steps, train_seconds(totals))


def startup_seconds(totals: Totals) -> float:
    """Seconds of `init` and `compile`."""
    return phase_seconds(totals, Phase.INIT) + phase_seconds(totals, Phase.COMPILE)


def steady_steps_per_second(totals: Totals) -> float | None:
    """Environment steps per second of `train_seconds` without `init` and `compile`."""
    return _ratio(totals.env_steps, train_seconds(totals) - startup_seconds(totals))


def eval_overhead(totals: Totals) -> float | None:
    """Share of the wall-clock spent on held-out evaluation."""
    return _ratio(eval_seconds(totals), totals.wall_seconds)


def other_share(totals: Totals) -> float | None:
    """Share of the wall-clock that no phase claims; above `OTHER_SHARE_LIMIT` it is a finding."""
    return _ratio(phase_seconds(totals, Phase.OTHER), totals.wall_seconds)


def wall_to_target(totals: Totals) -> float | None:
    """Seconds from the start to the end of the evaluation that first met the target, or None if none did."""
    return totals.target_reached_seconds


def billable_seconds(totals: Totals) -> float:
    """All wall-clock, failed and idle time included, times the number of instances."""
    return billable_seconds_of(totals.wall_seconds, totals.instances)


def billable_seconds_of(wall_seconds: float, instances: int) -> float:
    """The same of a wall-clock."""
    return wall_seconds * instances


def cost_usd(totals: Totals) -> float:
    """Dollars for `billable_seconds`; 0 where no price is set."""
    return billable_seconds(totals) / 3600.0 * totals.price_usd_per_hour


def cost_per_billion_steps(totals: Totals) -> float | None:
    """Dollars per 1e9 environment steps."""
    return _ratio(cost_usd(totals), totals.env_steps / 1e9)


def cost_to_target(totals: Totals) -> float | None:
    """Dollars billed until the target was first met, or None if it was not."""
    if totals.target_reached_seconds is None:
        return None
    return totals.target_reached_seconds * totals.instances / 3600.0 * totals.price_usd_per_hour


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def peak(name: str) -> Callable[[Totals], float | None]:
    """The highest reading called `name`, or None where there was none."""
    return lambda totals: (totals.peaks or {}).get(name)


def highest(values: Iterable[float | None]) -> float | None:
    """The largest of those that are there."""
    return max((value for value in values if value is not None), default=None)


def _median(values: Iterable[float | None]) -> float | None:
    import statistics  # only comparisons need it

    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


# How amounts are spelled


def dollars(amount: float) -> str:
    """An amount with cents, or with two significant digits below a cent, down to a millionth of a dollar."""
    if amount == 0 or abs(amount) >= 0.01:
        return f"${amount:,.2f}"
    return f"${amount:.{1 - math.floor(math.log10(abs(amount)))}f}" if abs(amount) >= 1e-6 else "< $0.000001"


_MINUTES_FROM_SECONDS = 120.0


def duration(seconds: float) -> str:
    """Seconds below two minutes, otherwise minutes."""
    return f"{seconds:.2f} s" if seconds < _MINUTES_FROM_SECONDS else f"{seconds / 60:,.1f} min"


def percent(share: float) -> str:
    """A share as percent."""
    return f"{100 * share:.1f} %"


def _of_wall(share: float) -> str:
    return f"{percent(share)} of wall-clock"


def gigabytes(amount: float) -> str:
    """An amount of memory."""
    return f"{amount:.2f} GB"


def count(number: float) -> str:
    """A number without a fraction."""
    return f"{number:,.0f}"


# The table


class Shown(Flag):
    """Where a metric appears besides JSON, CSV and Parquet, which have all of them."""

    NOWHERE = 0
    LIST = auto()
    """A column of `ledger list`."""
    WIDE = auto()
    """The same, where the terminal is wide enough."""
    REPORT = auto()
    """A line below the six of a run's report."""
    COMPARE = auto()
    """A row of `ledger compare`."""
    SEEDS = auto()
    """Part of what several seeds add up to."""
    CHECKPOINT = auto()
    """A column of a run's checkpoints, on a wide terminal."""
    MARKDOWN = auto()
    """A column of the Markdown export."""
    MLLOG = auto()
    """A line of the MLLOG export."""


class Over(Enum):
    """How the figures of several runs become one."""

    MEDIAN = "median"
    HIGHEST = "highest"

    def __call__(self, values: Iterable[float | None]) -> float | None:
        """The one figure of `values`, absent ones left out."""
        return _median(values) if self is Over.MEDIAN else highest(values)


@dataclass(frozen=True)
class RunMetric:
    """One quantity of a run."""

    name: str
    """In rows, JSON, CSV and Parquet."""
    title: str
    """In reports and comparisons."""
    heading: str
    """Of a column."""
    unit: str
    """What it is counted in, with its denominator."""
    of: Callable[[Totals], float | None]
    """The formula."""
    spell: Callable[[float], str] = count
    """How a value is printed."""
    shown: Shown = Shown.NOWHERE
    over: Over = Over.MEDIAN
    absent: str = "–"
    """What stands in a report for a value that is not there."""
    priced: bool = False
    """Whether it means nothing without a price."""
    tag: str | None = None
    """In TensorBoard."""
    aliases: tuple[str, ...] = ()
    """Names of the same figure in files of other tools, best first."""

    def spelled(self, value: float | None, absent: str | None = None) -> str:
        """`value` as text."""
        return (self.absent if absent is None else absent) if value is None else self.spell(value)


_S = Shown
_OUTCOME = _S.LIST | _S.MARKDOWN
_SPEED = _S.COMPARE | _S.MARKDOWN
_PEAK = _S.REPORT | _S.COMPARE | _S.SEEDS | _S.CHECKPOINT
METRICS: tuple[RunMetric, ...] = (
    RunMetric("env_steps", "steps", "steps", "env steps", lambda t: t.env_steps,
              shown=_OUTCOME | _S.WIDE),
    RunMetric("wall_seconds", "total wall-clock", "wall", "s", lambda t: t.wall_seconds, duration,
              _OUTCOME | _S.WIDE, tag="time/wall_seconds",
              aliases=("time/time_elapsed", "time_total_s", "_runtime", "Relative", "relative_time", "elapsed")),
    RunMetric("train_seconds", "training time", "train", "s", train_seconds, duration, _S.COMPARE,
              tag="time/train_seconds",
              aliases=("training/walltime",)),
    RunMetric("eval_seconds", "evaluation time", "eval", "s", eval_seconds, duration,
              _S.MARKDOWN | _S.COMPARE,
              tag="time/eval_seconds", aliases=("eval/walltime",)),
    RunMetric("billable_seconds", "billable time", "billable", "s × instances", billable_seconds, duration),
    RunMetric("steps_per_second", "steps/s of training", "steps/s", "env steps / training s", steps_per_second,
              shown=_SPEED),
    RunMetric("steady_steps_per_second", "steps/s, steady", "steady",
              "env steps / (training − init − compile) s", steady_steps_per_second, shown=_S.COMPARE),
    RunMetric("eval_overhead", "evaluation overhead", "overhead", "evaluation s / wall s", eval_overhead, _of_wall,
              _S.REPORT | _S.COMPARE | _S.SEEDS),
    RunMetric("success_rate", "held-out success", "success", "successes / episodes", lambda t: t.success_rate,
              "{:.2f}".format, _OUTCOME | _S.WIDE | _S.COMPARE, tag="eval/success_rate",
              aliases=("heldout_success", "eval/success_rate")),
    RunMetric("mean_return", "mean return", "return", "return / episode", lambda t: t.mean_return, "{:,.1f}".format,
              _OUTCOME, tag="eval/mean_return",
              aliases=("eval/mean_reward", "eval/episode_reward", "eval/mean_return")),
    RunMetric("steps_to_target", "steps to target", "steps to target", "env steps", lambda t: t.steps_to_target,
              shown=_S.COMPARE),
    RunMetric("wall_to_target", "wall-clock to target", "to target", "s", wall_to_target, duration,
              _OUTCOME | _S.COMPARE,
              absent="not reached"),
    RunMetric("cost_usd", "total compute cost", "cost", "$", cost_usd, dollars, _OUTCOME | _S.MLLOG, priced=True,
              tag="cost/usd"),
    RunMetric("cost_to_target", "cost to target", "to target", "$", cost_to_target, dollars, _S.MARKDOWN | _S.MLLOG,
              absent="not reached", priced=True),
    RunMetric("cost_per_billion_steps", "cost per billion steps", "$/1e9 steps", "$ / 1e9 env steps",
              cost_per_billion_steps, dollars, priced=True),
    RunMetric("peak_rss_gb", "peak memory", "memory", "GB", peak("peak_rss_gb"), gigabytes,
              _PEAK | _S.MARKDOWN | _S.MLLOG, Over.HIGHEST, tag="memory/peak_rss_gb"),
    RunMetric("peak_gpu_gb", "peak GPU memory", "GPU memory", "GB", peak("peak_gpu_gb"), gigabytes,
              _PEAK, Over.HIGHEST, absent="none", tag="memory/peak_gpu_gb"),
)  # fmt: skip
"""Every metric of a run. One more line here is one more figure in every place that `shown` names."""

BY_NAME: Mapping[str, RunMetric] = {metric.name: metric for metric in METRICS}
PEAKS: tuple[str, ...] = tuple(metric.name for metric in METRICS if metric.over is Over.HIGHEST)
"""The metrics of which the highest reading so far is kept."""


def shown(where: Shown) -> list[RunMetric]:
    """The metrics that appear in `where`, in order."""
    return [metric for metric in METRICS if where in metric.shown]
