"""What trying fixes brought, for people and programs: a verdict, a table of fixes, the verification, a preset file."""

from __future__ import annotations

import json
from typing import Any

from mileage.measure import ExpectedCost, fingerprint
from mileage.profiling.tuning.arms import (
    NOTABLE,
    ArmComparison,
    Candidate,
    Effect,
    compare,
    cost_of,
    judge,
    median_speed,
    paired,
)
from mileage.profiling.tuning.runs import PLAIN_FIELDS, Setup
from mileage.profiling.tuning.tried import Tried
from mileage.records import ReadRecord, Record
from mileage.tables import Column, Table

# 1: first format.
FORMAT = 1

# Of output that goes to a file.
_PLAIN_WIDTH = 150
# Of the columns that say what was changed; Markdown and JSON have all of it.
_WIDEST = 36
COLUMNS = ("fix", "changes", "estimated", "measured", "to target", "steps/s (steady)", "reached", "verdict")
COMBINATION_COLUMNS = ("arm", "fixes", "to target", "steps/s (steady)", "reached", "verdict")


def verdict(tried: Tried) -> str:
    """The search in one line."""
    found, best = tried.verification, tried.best
    if best is None or found is None:
        why = "interrupted before the verification" if tried.interrupted else _why_nothing(tried)
        return f"NOTHING VERIFIED: {why}"
    if not tried.is_verified:
        more = found.statement.partition("; ")[2] or "too few runs to decide"
        return f"NOT VERIFIED: {best.name}: {_ratio_text(found)}; {more}"
    return f"VERIFIED: {best.name} reaches {tried.target} {_ratio_text(found)}"


def _why_nothing(tried: Tried) -> str:
    if tried.best is not None:
        return "no time was left for the verification; give --budget more seconds"
    if tried.baseline.trials and not any(arm.cost < float("inf") for arm in (tried.baseline, *tried.arms)):
        return f"no run reached {tried.target}; give --budget more seconds or a lower target"
    return "no fix was cheaper than the baseline"


def _ratio_text(found: ArmComparison) -> str:
    if found.ratio is None:
        if found.at_least is not None:
            return f"at least {_times(found.at_least)} times cheaper (95 %); the baseline never reached it"
        return "where the baseline never reached it"
    word = "times cheaper" if found.ratio >= 1 else "times the baseline's cost"
    value = found.ratio if found.ratio >= 1 else 1 / found.ratio
    if found.interval is None:
        return f"{_times(value)} {word} (too few runs for an interval)"
    ends = (found.interval.low, found.interval.high)
    low, high = ends if found.ratio >= 1 else (1 / ends[1], 1 / ends[0])
    return f"{_times(value)} {word} (95 %: {_times(low)} to {_times(high)})"


def _times(value: float) -> str:
    """A factor to two or three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary(tried: Tried) -> list[str]:
    """The verdict and what stands behind it, a few lines."""
    lines = [verdict(tried)]
    found = tried.verification
    if found is not None and tried.best is not None:
        lines.append(f"  baseline: {_cost_text(found.baseline, tried)}")
        lines.append(f"  {tried.best.name}: {_cost_text(found.arm, tried)}")
        lines.append(f"  changes: {changes(tried.baseline.setup, tried.best.setup)}")
    faster = [arm.name for arm in tried.arms if judge(arm, tried.baseline)[0] is Effect.FASTER_ONLY]
    if faster:
        lines.append(f"  more steps/s, but no less wall-clock to target: {', '.join(faster)}")
    end = " (interrupted)" if tried.interrupted else ""
    lines.append(f"  {tried.runs} runs in {tried.spent_seconds:.0f} s of {tried.budget_seconds:.0f} s{end}")
    return lines


def _cost_text(cost: ExpectedCost, tried: Tried) -> str:
    of = f"{cost.successes} of {cost.runs} fresh runs reached the target"
    if cost.value is None:
        return f"not reached, {money(cost.spent, tried)} spent; {of}"
    if cost.interval is None:
        return f"{money(cost.value, tried)} expected to target ({cost.statement}); {of}"
    span = cost.interval.spelled(lambda seconds: money(seconds, tried))
    return f"{money(cost.value, tried)} expected to target (95 %: {span}); {of}"


def money(seconds: float, tried: Tried) -> str:
    """Seconds, and dollars where a price is set."""
    text = f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"
    price = tried.price_usd_per_hour
    return f"{text} (${seconds / 3600 * price:.2g})" if price else text


def changes(before: Setup, after: Setup) -> str:
    """What differs, as `minibatch 16 → 64, …`."""
    found = before.differences(after)
    return ", ".join(f"{name} {_plain(old)} → {_plain(new)}" for name, (old, new) in found.items()) or "nothing"


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "×".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def fix_rows(tried: Tried) -> list[tuple[str, ...]]:
    """One row of cells per fix, in the order of `COLUMNS`; the baseline first."""
    return [_row(tried.baseline, tried)] + [_row(arm, tried) for arm in tried.arms]


def combination_rows(tried: Tried) -> list[tuple[str, ...]]:
    """One row of cells per combination, in the order of `COMBINATION_COLUMNS`."""
    return [_short_row(arm, tried, ("kept" if arm.adopted else "")) for arm in tried.combinations]


def worth_rows(tried: Tried) -> list[tuple[str, ...]]:
    """One row of cells per change of the best arm that was taken back, in the order of `COMBINATION_COLUMNS`."""
    return [_short_row(arm, tried, _worth(arm, tried)) for arm in tried.without]


def _worth(arm: Candidate, tried: Tried) -> str:
    """How much dearer the best arm is without the change, on the seeds of that experiment."""
    if arm.adopted:
        return "not needed: taken back"
    if tried.best is None or not any(trial.reached for trial in arm.trials):
        return "needed"
    best = tried.best.on(arm.seeds)
    ratio = cost_of(arm.trials) / cost_of(best)
    if ratio < 1 + NOTABLE:
        return "makes no difference"
    # As `ledger compare` speaks: a ratio is said where its interval excludes 1, and undecided is called so.
    found = paired(compare(best, tried.best.setup, arm.trials, arm.setup), best, arm.trials)
    return f"{ratio:.2g} × as dear" if found.dearer else "seems dearer: undecided"


def _short_row(arm: Candidate, tried: Tried, verdict: str) -> tuple[str, ...]:
    _, _, _, _, to_target, speed, reached, _ = _row(arm, tried)
    return (arm.name, arm.title, to_target, speed, reached, verdict)


def tables(tried: Tried) -> list[Table]:
    """Each fix alone, combinations, and the best without one of its changes; those that have rows."""
    made = (
        ("Each fix alone", COLUMNS, fix_rows(tried)),
        ("Combinations", COMBINATION_COLUMNS, combination_rows(tried)),
        ("The best without one of its changes", COMBINATION_COLUMNS, worth_rows(tried)),
    )
    return [Table.of(map(_column, names), rows, title=title) for title, names, rows in made if rows]


def _column(name: str) -> Column:
    wide = name in ("fix", "changes", "arm", "fixes")
    return Column(name, right=not wide and name != "verdict", wrap=not wide, widest=_WIDEST if wide else None)


def _row(arm: Candidate, tried: Tried) -> tuple[str, ...]:
    outcome, found = judge(arm, tried.baseline)
    is_baseline = arm is tried.baseline
    cost = None if not arm.trials else compare(arm.trials, arm.setup, arm.trials, arm.setup).arm
    speeds = median_speed(arm.trials, steady=False), median_speed(arm.trials, steady=True)
    return (
        arm.name,
        "" if is_baseline else changes(tried.baseline.setup, arm.setup),
        "" if is_baseline else "–" if arm.estimated_gain is None else _percent(-arm.estimated_gain),
        "" if is_baseline else _measured(found),
        _to_target(cost, tried),
        "–" if speeds[0] is None or speeds[1] is None else f"{speeds[0]:,.0f} ({speeds[1]:,.0f})",
        f"{sum(trial.reached for trial in arm.trials)} of {len(arm.trials)}",
        "" if is_baseline else outcome.value,
    )


def _measured(found: ArmComparison | None) -> str:
    if found is None or found.gain is None:
        return "–"
    ends = found.gain_interval
    if ends is None:
        return f"{_percent(-found.gain)} ({found.arm.runs} run{'' if found.arm.runs == 1 else 's'})"
    return f"{_percent(-found.gain)} [{_percent(-ends[1])}, {_percent(-ends[0])}]"


def _percent(share: float) -> str:
    return f"{100 * share:+.0f} %".replace("-", "−")


def _to_target(cost: ExpectedCost | None, tried: Tried) -> str:
    if cost is None:
        return "–"
    if cost.value is None:
        return f"not in {money(cost.spent, tried)}"
    if cost.interval is None:
        return money(cost.value, tried)
    return f"{money(cost.value, tried)} [{cost.interval.spelled('{:.2f}'.format, ', ')}]"


def show(tried: Tried) -> None:
    """Print verdict and tables to the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    for line in summary(tried):
        console.print(line, markup=False, soft_wrap=True)
    for table in tables(tried):
        console.print(table.terminal())


def markdown(tried: Tried) -> str:
    """Verdict, tables and every run, as a section of a Markdown page."""
    first, *more = summary(tried)
    lines = ["## What the fixes bought", "", first, "", *(f"- {line.strip()}" for line in more)]
    for table in tables(tried):
        lines += ["", f"### {table.title}", "", table.markdown()]
    if tried.verified:
        lines += ["", "### Verification, run by run", ""]
        rows = [
            (
                n,
                each.arm,
                each.seed,
                f"{each.seconds:.2f}",
                "reached" if each.reached else each.reason,
                f"{each.steps:,}",
            )
            for n, each in enumerate(tried.verified, start=1)
        ]
        header = ("run", "arm", "seed", "seconds", "ended", "steps")
        lines.append(Table.of(header, rows, left=("arm", "ended")).markdown())
    return "\n".join(lines) + "\n"


def as_dict(tried: Tried) -> Record:
    """Plain data: verdict, every arm, every run, the machine."""
    found = tried.verification
    plain = ("target", "budget_seconds", "spent_seconds", "price_usd_per_hour", "interrupted")
    return {
        "format": FORMAT,
        "machine": fingerprint().as_dict(),
        "verdict": verdict(tried),
        "verified": tried.is_verified,
        **{name: getattr(tried, name) for name in plain},
        "phase_shares": dict(tried.evidence.shares),
        "baseline": _arm_dict(tried.baseline, tried),
        "fixes": [_arm_dict(arm, tried) for arm in tried.arms],
        "combinations": [_arm_dict(arm, tried) for arm in tried.combinations],
        "without_one_change": [_arm_dict(arm, tried) for arm in tried.without],
        "best": None if tried.best is None else {"name": tried.best.name, "setup": setup_dict(tried.best.setup)},
        "verification": None if found is None else found.as_dict(),
        "verification_runs": [trial.as_dict() for trial in tried.verified],
        "runs_cut_by_the_budget": [trial.as_dict() for trial in tried.cut],
    }


def setup_dict(setup: Setup) -> Record:
    """A setup as plain data."""
    config = {name: list(v) if isinstance(v, tuple) else v for name, v in sorted(setup.config.items())}
    plain = {name: getattr(setup, name) for name in PLAIN_FIELDS}
    return {"algorithm": setup.algorithm, "env": setup.env_id, **plain, "config": config}


def _arm_dict(arm: Candidate, tried: Tried) -> Record:
    outcome, found = judge(arm, tried.baseline)
    return {
        "name": arm.name,
        "fixes": list(arm.fixes),
        "title": arm.title,
        "adopted": arm.adopted,
        "setup": setup_dict(arm.setup),
        "estimated_gain": arm.estimated_gain,
        "measured_gain": None if found is None else found.gain,
        "measured_gain_interval": None if found is None or found.gain_interval is None else list(found.gain_interval),
        "outcome": None if arm is tried.baseline else outcome.value,
        "comparison": None if found is None or arm is tried.baseline else found.as_dict(),
        "runs": [trial.as_dict() for trial in arm.trials],
    }


def preset_text(tried: Tried) -> str:
    """The best verified configuration as a preset file."""
    assert tried.best is not None
    assert tried.verification is not None
    setup = tried.best.setup
    lines = [
        f"# {setup.algorithm} on {json.dumps(setup.env_id)[1:-1]}, found by `mileage profile --try`.",
        f"# Reaches {tried.target} {_ratio_text(tried.verification)} than what it began with,",
        f"# {changes(tried.baseline.setup, setup)}".replace("\n", " "),
        f"# Use: mileage train {setup.algorithm} {json.dumps(setup.env_id)[1:-1]} --preset THIS_FILE",
        "",
        f"[{json.dumps(setup.env_id)}]",
        f"total_steps = {setup.total_steps}",
        f"eval_every = {setup.eval_every}",
    ]
    machine = {"threads": setup.threads, "backend": setup.backend}
    machine |= {"processes": True} if setup.processes else {}
    machine |= {"compile": setup.compile} if setup.compile else {}
    return "\n".join(lines + _toml(machine) + _toml(setup.config)) + "\n"


def _toml(values: ReadRecord) -> list[str]:
    # Numbers, flags, strings and lists of them are written the same in JSON and TOML.
    return [f"{name} = {json.dumps(list(v) if isinstance(v, tuple) else v)}" for name, v in values.items()]
