"""The cost report of one run: six lines that belong together, and where the time went.

Every number keeps its denominator: throughput uses training seconds, wall-clock to target uses training plus
evaluation, cost uses all billable time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mileage.ledger.prices import NO_PRICE
from mileage.ledger.rows import End, Phase, Run
from mileage.meter import (
    OTHER_SHARE_LIMIT,
    Totals,
    cost_per_billion_steps,
    eval_overhead,
    steady_steps_per_second,
    steps_per_second,
)

_MINUTES_FROM_SECONDS = 120.0


@dataclass(frozen=True)
class PhaseShare:
    """One line of the phase table."""

    phase: str
    seconds: float
    share: float
    entries: int


@dataclass(frozen=True)
class CostReport:
    """What one run achieved and what it cost. Absent numbers are None, never 0."""

    run_id: str
    name: str
    state: str
    reason: str
    target: str | None
    env_steps: int
    wall_seconds: float
    train_seconds: float
    eval_seconds: float
    billable_seconds: float
    steps_per_second: float | None
    steady_steps_per_second: float | None
    eval_overhead: float | None
    success_rate: float | None
    mean_return: float | None
    target_reached: bool | None
    steps_to_target: int | None
    wall_to_target: float | None
    cost_to_target: float | None
    price_usd_per_hour: float
    instances: int
    instance: str | None
    cost_usd: float
    cost_per_billion_steps: float | None
    peak_rss_gb: float | None
    peak_gpu_gb: float | None
    checkpoints: int
    phases: tuple[PhaseShare, ...]
    beside: tuple[PhaseShare, ...]

    @classmethod
    def of(cls, run: Run, end: End, phases: Sequence[Phase] = ()) -> CostReport:
        """Return the report of a run from its rows alone."""
        totals = _totals(run, end)
        return cls(
            run_id=run.run_id,
            name=run.name,
            state=end.state,
            reason=end.reason,
            target=run.target,
            env_steps=end.env_steps,
            wall_seconds=end.wall_seconds,
            train_seconds=end.train_seconds,
            eval_seconds=end.eval_seconds,
            billable_seconds=end.billable_seconds,
            steps_per_second=steps_per_second(totals),
            steady_steps_per_second=steady_steps_per_second(totals),
            eval_overhead=eval_overhead(totals),
            success_rate=end.success_rate,
            mean_return=end.mean_return,
            target_reached=None if run.target is None else end.wall_to_target is not None,
            steps_to_target=end.steps_to_target,
            wall_to_target=end.wall_to_target,
            cost_to_target=end.cost_to_target,
            price_usd_per_hour=run.price_usd_per_hour,
            instances=run.instances,
            instance=run.instance,
            cost_usd=end.cost_usd,
            cost_per_billion_steps=cost_per_billion_steps(totals),
            peak_rss_gb=end.peak_rss_gb,
            peak_gpu_gb=end.peak_gpu_gb,
            checkpoints=end.checkpoints,
            phases=_shares([phase for phase in phases if not phase.beside], end.wall_seconds),
            beside=_shares([phase for phase in phases if phase.beside], end.wall_seconds),
        )

    @property
    def priced(self) -> bool:
        """Whether a price was set; otherwise dollars mean nothing."""
        return self.price_usd_per_hour > 0

    def headline(self) -> list[str]:
        """Return the six lines."""
        price = self.priced
        return [
            f"train throughput: {self._throughput()}",
            f"total wall-clock: {duration(self.wall_seconds)}",
            f"held-out success: {self._success()}",
            f"target reached: {'no target set' if self.target_reached is None else self.target_reached}",
            f"total compute cost: {dollars(self.cost_usd) if price else NO_PRICE}",
            f"cost per billion steps: {_or_dash(self.cost_per_billion_steps, dollars) if price else NO_PRICE}",
        ]

    def details(self) -> list[str]:
        """Return what the six lines leave out."""
        lines = [f"state: {self.state}" + (f" ({self.reason})" if self.reason else "")]
        if self.target is not None:
            lines.append(f"wall-clock to target: {_or_dash(self.wall_to_target, duration, 'not reached')}")
            cost = _or_dash(self.cost_to_target, dollars, "not reached") if self.priced else NO_PRICE
            lines.append(f"cost to target: {cost}")
        lines.append(f"evaluation overhead: {_or_dash(self.eval_overhead, percent)} of wall-clock")
        lines.append(f"peak memory: {memory(self.peak_rss_gb, self.peak_gpu_gb)}")
        rate = f"{dollars(self.price_usd_per_hour)}/h × {self.instances}" if self.priced else NO_PRICE
        lines.append(f"price: {rate}" + (f" ({self.instance})" if self.instance else ""))
        return lines

    def phase_table(self) -> list[tuple[str, str, str, str]]:
        """Return the phases, longest first and `other` last, as phase, seconds, share and entries."""
        return [
            (phase.phase, f"{phase.seconds:.3f}", percent(phase.share), f"{phase.entries:,}")
            for phase in (*self.phases, *self.beside)
        ]

    def warnings(self) -> list[str]:
        """Return what a reader has to know before using the numbers."""
        found = []
        share = next((phase.share for phase in self.phases if phase.phase == "other"), 0.0)
        if share > OTHER_SHARE_LIMIT:
            found.append(f"{percent(share)} of the wall-clock is in no phase: wrap it in run.phase(...)")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        values = dict(self.__dict__)
        for name in ("phases", "beside"):
            values[name] = {
                phase.phase: {"seconds": phase.seconds, "share": phase.share, "entries": phase.entries}
                for phase in values[name]
            }
        return values

    def _throughput(self) -> str:
        if self.steps_per_second is None or self.steady_steps_per_second is None:
            return "no training time"
        return f"{self.steps_per_second:,.0f} env steps/s (steady {self.steady_steps_per_second:,.0f})"

    def _success(self) -> str:
        if self.success_rate is not None:
            return f"{self.success_rate:.2f}"
        if self.mean_return is not None:
            return f"not defined (mean return {self.mean_return:,.1f})"
        return "not evaluated"


def _totals(run: Run, end: End) -> Totals:
    known = {"eval": end.eval_seconds, "init": end.init_seconds, "compile": end.compile_seconds}
    # Phases may have been written before a crash: the end row is what counts, and the rest is nobody's.
    rest = end.wall_seconds - sum(known.values())
    return Totals(
        end.wall_seconds,
        {**known, "other": rest},
        end.env_steps,
        run.instances,
        run.price_usd_per_hour,
        end.wall_to_target,
    )


def _shares(phases: Sequence[Phase], wall_seconds: float) -> tuple[PhaseShare, ...]:
    ordered = sorted(phases, key=lambda phase: (phase.phase == "other", -phase.seconds))
    return tuple(
        PhaseShare(phase.phase, phase.seconds, phase.seconds / wall_seconds if wall_seconds > 0 else 0.0, phase.entries)
        for phase in ordered
    )


def dollars(amount: float) -> str:
    """Return an amount with cents, or with two significant digits below a cent."""
    if amount == 0 or abs(amount) >= 0.01:
        return f"${amount:,.2f}"
    return f"${amount:.2g}" if abs(amount) >= 1e-4 else f"${amount:.1e}"


def memory(peak_rss_gb: float | None, peak_gpu_gb: float | None) -> str:
    """Return the peak memory of the machine and of the fullest GPU."""
    return f"{_or_dash(peak_rss_gb, _gb)}, GPU {_or_dash(peak_gpu_gb, _gb, 'none')}"


def duration(seconds: float) -> str:
    """Return seconds below two minutes, otherwise minutes."""
    return f"{seconds:.2f} s" if seconds < _MINUTES_FROM_SECONDS else f"{seconds / 60:,.1f} min"


def percent(share: float) -> str:
    """Return a share as percent."""
    return f"{100 * share:.1f} %"


def _gb(amount: float) -> str:
    return f"{amount:.2f} GB"


def _or_dash(value: float | None, spell: Any, absent: str = "–") -> str:
    return absent if value is None else str(spell(value))
