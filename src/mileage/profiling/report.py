"""A profile as tables and as one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mileage.description import Layer
from mileage.profiling.calibration import Calibration
from mileage.profiling.costs import all_calls
from mileage.profiling.drift import drifts, training
from mileage.profiling.model import Finding
from mileage.profiling.profile import Profile
from mileage.profiling.recommended import recommended
from mileage.profiling.run import EndToEnd
from mileage.report.axes import Area, seconds
from mileage.report.bars import Axis, Curve, curve_chart, phase_bars, phases_over_time
from mileage.report.markup import Html, file_page, join, tag
from mileage.tables import Table, plain

_MIB = 2**20
# Beside the first column, what is no number.
_WORDS = ("part", "evidence", "try", "why", "recommendation")


def table(key: str, title: str, header: Sequence[str], rows: Sequence[tuple[str, ...]], note: str = "") -> Table:
    """One table of a profile: its first column is text, most others are numbers as text."""
    return Table.of(header, rows, left=(header[0], *_WORDS), title=title, note=note, key=key)


def tables(profile: Profile) -> list[Table]:
    """All tables, from the whole to its parts."""
    found = [end_to_end(profile), phases(profile)]
    if profile.calibration is not None:
        found += _calibrated(profile, profile.calibration)
    found.append(memory(profile))
    if profile.findings:
        found.append(findings(profile))
    if profile.calibration is not None:
        found += [overhead(profile, profile.calibration), not_measured(profile.calibration)]
    return [each for each in found if each.rows]


def _calibrated(profile: Profile, found: Calibration) -> list[Table]:
    made = [layers(found)] if found.costs else []
    if found.rollout_parts is not None:
        made.append(rollout(profile, found))
    if found.costs:
        made.append(crossings(found))
    if found.update_stages is not None:
        made.append(internals(found))
    made += [primitives(found), roofline(found)]
    if found.scaling:
        made.append(scaling(found))
    if found.what_ifs:
        made.append(what_ifs(profile, found))
    return [*made, usual(profile, found)]


def seconds_with_unit(value: float) -> str:
    """A duration with a unit that suits it."""
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}" if abs(value) * factor < 999.5 else f"{value * factor:.0f} {unit}"
    return f"{value:.2f} s"


def percent(share: float) -> str:
    """A share of 1 with one decimal."""
    return f"{100.0 * share:.1f} %"


def end_to_end(profile: Profile) -> Table:
    """Total, start-up, compilation, training, and the pair of steps per second."""
    run = profile.run
    pair = (run.steps_per_second, run.steady_steps_per_second)
    rows = [
        ("total wall time", f"{run.wall_seconds:.2f} s"),
        ("init", f"{run.phases.get('init', 0.0):.2f} s"),
        ("compile", f"{run.phases.get('compile', 0.0):.2f} s"),
        ("training (wall − evaluation)", f"{run.train_seconds:.2f} s"),
        ("evaluation", f"{run.phases.get('eval', 0.0):.2f} s"),
        ("environment steps", f"{run.env_steps:,}"),
        ("steps/s", "–" if pair[0] is None else f"{pair[0]:,.0f}"),
        ("steady steps/s", "–" if pair[1] is None else f"{pair[1]:,.0f}"),
        ("ended as", run.state),
    ]
    note = "steps/s is over the training time, steady steps/s over that without init and compile."
    return table("end_to_end", "End to end", ("metric", "value"), rows, note)


def phases(profile: Profile) -> Table:
    """Exclusive phases with shares; they add up to the wall-clock."""
    run = profile.run
    ordered = sorted(run.phases.items(), key=lambda item: -item[1])
    spent = [(name, value) for name, value in ordered if value > 0.0]
    rows = [(name, f"{value:.3f}", percent(run.share(name)), *_entries(run, name)) for name, value in spent]
    whole = sum(run.phases.values())
    rows.append(("sum", f"{whole:.3f}", percent(whole / run.wall_seconds), "", ""))
    note = f"Wall-clock {run.wall_seconds:.3f} s; the sum misses it by {percent(run.sum_error)}."
    return table("phases", "Phases", ("phase", "seconds", "share", "entries", "each"), rows, note)


def _entries(run: EndToEnd, phase: str) -> tuple[str, str]:
    """How often a phase was entered and how long it lasted; `other` is never entered."""
    entries = run.entries.get(phase, 0)
    return (f"{entries:,}", seconds_with_unit(run.mean_seconds(phase))) if entries else ("", "")


def layers(found: Calibration) -> Table:
    """Layers per rollout and per update."""
    split = found.layers
    whole = split.total or 1.0
    rows = []
    for layer in Layer:
        a, b = split.rollout.get(layer, 0.0), split.update.get(layer, 0.0)
        if a or b:
            rows.append((layer.value, seconds_with_unit(a), seconds_with_unit(b), percent((a + b) / whole)))
    rows.append(
        (
            "sum",
            seconds_with_unit(sum(split.rollout.values())),
            seconds_with_unit(sum(split.update.values())),
            percent(1.0),
        )
    )
    rows.append(("the same without probes", "", f"{seconds_with_unit(split.plain)} in all", ""))
    rows.append(
        (
            "the run's phase clock",
            seconds_with_unit(split.measured_rollout),
            seconds_with_unit(split.measured_update),
            "",
        )
    )
    note = (
        f"One iteration, mean of {found.trace.iterations:,} with probes, whose cost is taken off, in turn with as "
        f"many without: the sum differs from those by {100 * split.difference:+.1f} %. Waiting is time off the CPU."
    )
    return table("layers", "Layers", ("layer", "per rollout", "per update", "share"), rows, note)


def rollout(profile: Profile, found: Calibration) -> Table:
    """The fused rollout by parts."""
    parts = found.rollout_parts
    assert parts is not None
    fused = parts.fused or 1.0
    rows = [
        ("environments", seconds_with_unit(parts.environments), percent(parts.environments / fused)),
        ("inference", seconds_with_unit(parts.inference), percent(parts.inference / fused)),
        ("  of it matrix products", seconds_with_unit(parts.blas), percent(parts.blas / fused)),
        ("storage", seconds_with_unit(parts.storage), percent(parts.storage / fused)),
        ("call and meeting of threads", seconds_with_unit(parts.call), percent(parts.call / fused)),
        ("sum of the parts", seconds_with_unit(parts.total), percent(parts.total / fused)),
        ("fused rollout", seconds_with_unit(parts.fused), percent(1.0)),
        ("difference", seconds_with_unit(parts.total - parts.fused), f"{100 * parts.difference:+.1f} %"),
    ]
    note = "Parts are replayed alone on what the rollout stored, in alternation with the whole."
    return table("rollout", "The fused rollout", ("part", "time", "of the whole"), rows, note)


def crossings(found: Calibration) -> Table:
    """Calls that leave Python."""
    calls, limits = all_calls(found.costs), found.limits
    whole = sum(cost.seconds for cost in found.costs) or 1.0
    rows = [
        (
            call.label,
            call.part,
            f"{call.per_iteration:,.6g}",
            seconds_with_unit(call.seconds_each),
            percent(call.seconds / whole),
        )
        for call in calls
    ]
    count = sum(call.per_iteration for call in calls)
    share = count * limits.crossing_seconds / whole
    rows.append(("all", "", f"{count:,.6g}", seconds_with_unit(limits.crossing_seconds) + " empty", percent(share)))
    note = (
        f"A call into a kernel that does nothing takes {seconds_with_unit(limits.crossing_seconds)}"
        f" ({seconds_with_unit(limits.team_crossing_seconds)} on {limits.threads} threads): the last row is that alone."
    )
    header = ("call", "part", "per iteration", "each", "share of the iteration")
    return table("crossings", "Boundary crossings (Python ↔ native)", header, rows, note)


def internals(found: Calibration) -> Table:
    """Stages of one update."""
    stages = found.update_stages
    assert stages is not None
    whole = stages.whole or 1.0
    rows = [(name, seconds_with_unit(value), percent(value / whole)) for name, value in stages.stages.items()]
    rows += [
        (
            "sum of the stages",
            seconds_with_unit(sum(stages.stages.values())),
            percent(sum(stages.stages.values()) / whole),
        ),
        ("whole update", seconds_with_unit(stages.whole), percent(1.0)),
        ("matrix products alone", seconds_with_unit(stages.blas), percent(stages.blas / whole)),
    ]
    note = (
        f"The stages differ from the whole by {100 * stages.difference:+.1f} %. A stage is a difference of two times: "
        "one shorter than their noise may come out below zero."
    )
    return table("internals", "Inside one update", ("stage", "time", "share"), rows, note)


def not_measured(found: Calibration) -> Table:
    """What was to be replayed and was not."""
    why = "interrupted" if found.interrupted else "no time left within the replay's budget"
    rows = [(name, "" if "failed" in name else why) for name in dict.fromkeys(found.skipped)]
    return table("not_measured", "Not measured", ("what", "why"), rows, "--replay-seconds allows more.")


def primitives(found: Calibration) -> Table:
    """Single operations."""
    rows = [(name, seconds_with_unit(value)) for name, value in found.primitives.items()]
    note = "Called from Python one after the other, the call included."
    return table("primitives", "Single operations", ("operation", "time"), rows, note)


def roofline(found: Calibration) -> Table:
    """Phases against the machine's limits."""
    limits = found.limits
    rows = [
        (roof.phase, f"{roof.flops / 1e6:,.3g}", f"{roof.bytes_touched / _MIB:,.3g}", f"{roof.gflops:.3g}",
         f"{roof.limit_gflops:.3g}" + (" (memory)" if roof.memory_bound else ""), percent(roof.of_limit))
        for roof in found.roofline
    ]  # fmt: skip
    note = (
        f"Measured here: {limits.gemm_gflops:.1f} GFLOP/s of single-precision matrix products and "
        f"{limits.memory_gb_per_s:.1f} GB/s of memory on {limits.threads} threads. Operations are the products'; "
        "bytes are all that is touched, cached or not."
    )
    header = ("phase", "MFLOP", "MiB touched", "GFLOP/s", "limit", "of the limit")
    return table("roofline", "Against the machine's limits", header, rows, note)


def scaling(found: Calibration) -> Table:
    """Parallel efficiency from one thread on."""
    one = found.scaling.get(1, {})
    rows = []
    for count, by_phase in found.scaling.items():
        for phase, value in by_phase.items():
            speedup = one[phase] / value if phase in one and value else 0.0
            rows.append(
                (f"{phase}, {count} threads", seconds_with_unit(value), f"{speedup:.2f}×", percent(speedup / count))
            )
    header = ("kernel", "best time", "speedup", "parallel efficiency")
    return table("scaling", "Threads", header, rows, "Work that is not cut into as many pieces cannot scale.")


def what_ifs(profile: Profile, found: Calibration) -> Table:
    """Measured alternatives."""
    shares = {phase: profile.run.share(phase) for phase in profile.run.phases}
    rows = [
        (
            change.suggestion,
            ", ".join(f"{phase} ×{ratio:.2f}" for phase, ratio in change.ratios.items()),
            f"{-100 * change.gain(shares):+.1f} %",
        )
        for change in found.what_ifs
    ]
    note = "Seconds of the phase after over before, for as many samples; only a run to target says how it learns."
    return table("what_ifs", "What if", ("change", "effect", "estimated wall"), rows, note)


def usual(profile: Profile, found: Calibration) -> Table:
    """What is usually recommended, in three ranks."""
    each = recommended(profile.run, profile.workload, found)
    rows = [(one.rank, one.what, one.estimate, one.why) for one in each]
    note = "Ranked by what they would save here: high from 5 % of the wall-clock on, medium from 1 %."
    return table(
        "recommended", "Usual recommendations", ("rank", "recommendation", "estimated wall", "why"), rows, note
    )


def memory(profile: Profile) -> Table:
    """Highest resident memory by phase, and buffers predicted and seen."""
    run = profile.run
    rows = [(f"peak in {phase}", "", f"{mib:,.1f}") for phase, mib in sorted(run.memory_mib.items())]
    if run.peak_rss_gb is not None:
        rows.append(("peak of the run", "", f"{run.peak_rss_gb * 1024:,.1f}"))
    buffers = profile.calibration.buffers if profile.calibration is not None else ()
    rows += [
        (f"{buffer.name} buffer" if buffer.name in ("rollout", "replay") else buffer.name,
         f"{buffer.predicted_bytes / _MIB:,.2f}", f"{buffer.seen_bytes / _MIB:,.2f}")
        for buffer in buffers
    ]  # fmt: skip
    note = "Resident MiB of the process tree; a phase too short to be met has no row. Buffers are allocated bytes."
    return table("memory", "Memory", ("what", "predicted MiB", "seen MiB"), rows, note)


def findings(profile: Profile) -> Table:
    """Diagnoses in order."""
    rows = [
        (str(number), finding.bottleneck.label, percent(finding.share), finding.evidence, finding.suggestion,
         f"−{percent(finding.estimated_gain)}" if finding.estimated_gain > 0 else "–")
        for number, finding in enumerate(profile.findings, start=1)
    ]  # fmt: skip
    header = ("#", "bottleneck", "share", "evidence", "try", "estimated wall")
    return table("findings", "Findings", header, rows, "Estimates are Amdahl's, on shares of the wall-clock.")


def overhead(profile: Profile, found: Calibration) -> Table:
    """What profiling itself took."""
    run, cost = profile.run, found.trace.cost
    rows = [
        (
            "phase clock (part of every run)",
            seconds_with_unit(run.clock_seconds),
            percent(run.clock_seconds / run.wall_seconds),
        ),
        (
            "memory readings (beside)",
            seconds_with_unit(run.memory_seconds),
            percent(run.memory_seconds / run.wall_seconds),
        ),
        ("probe, each call", seconds_with_unit(cost.inside + cost.outside), "in the replay only, taken off"),
        ("probe, each phase", seconds_with_unit(cost.phase + cost.phase_inside), "in the replay only, taken off"),
        ("replay and calibration", seconds_with_unit(found.seconds), "after the run"),
    ]
    return table("overhead", "The profiler's own cost", ("what", "time", "of the run"), rows)


# --- A profile as one page that opens from disk: findings first, then the run over time, then what they stand on ---
# Fewer looks at a run make no picture.
_FEWEST = 3


def page(profile: Profile, title: str, machine: str) -> str:
    """The whole page."""
    name = f"Profile: {plain(title, 300)}"
    work = profile.workload["config"]
    settings = ", ".join(f"{key} {value}" for key, value in work.items())
    return str(
        file_page(
            name,
            tag("h1", name),
            tag("p", machine, class_="lead"),
            tag("p", tag("strong", profile.verdict), class_="verdict"),
            _findings(profile),
            _pictures(profile),
            tag("section", tag("h2", "Configuration"), tag("p", settings or "none", class_="small"), class_="card"),
            join(_tables(profile)),
        )
    )


def _findings(profile: Profile) -> Html | None:
    if not profile.findings:
        return None
    items = join(_finding(each) for each in profile.findings)
    return tag("section", tag("h2", "Findings"), tag("ol", items), class_="card")


def _finding(each: Finding) -> Html:
    load = tag("span", " (seen under load)", class_="small") if each.under_load else None
    brings = f" ({each.estimate})" if each.estimate else ""
    advice = tag("p", f"Try {each.suggestion}{brings}.")
    return tag("li", tag("strong", each.bottleneck.label), load, f": {each.evidence}.", advice)


def _pictures(profile: Profile) -> Html:
    """The run's phases in all, and over time with its memory where it was looked at often enough."""
    label = str(profile.workload["algorithm"] or "run")
    parts = [tag("h2", "The run"), _box(phase_bars([(label, profile.run.phases)]))]
    moments = profile.run.moments
    if len(moments) >= _FEWEST:
        readings = [(each.times.wall_seconds, each.times.phases) for each in moments]
        points = tuple((each.times.wall_seconds, each.rss_mib) for each in moments)
        memory = curve_chart(
            [Curve("resident memory", points)], Axis("seconds since the start", seconds), Axis("MiB"),
            area=Area(height=200), from_zero=True,
        )  # fmt: skip
        parts += [tag("h3", "Phases over time"), _box(phases_over_time(readings))]
        parts += [tag("h3", "Memory over time"), _box(memory)]
        drifting = drifts(training(moments))
        said = [
            f"An entry of {each.phase} took {1e3 * each.first_each:.3g} ms at the start and "
            f"{1e3 * each.last_each:.3g} ms at the end."
            for each in drifting
        ] or ["No phase's entries took longer and longer."]
        parts += [tag("p", each, class_="small") for each in said]
    return tag("section", *parts, class_="card")


def _box(picture: Html) -> Html:
    return tag("div", picture, class_="chart-box", tabindex="0", role="group", aria_label="chart")


def _tables(profile: Profile) -> Iterator[Html]:
    for each in tables(profile):
        if each.key == "findings":
            continue
        table = Html(replace(each, key=f"profile-{each.key}").html())
        note = tag("p", each.note, class_="small") if each.note else None
        yield tag("section", tag("h2", each.title), tag("div", table, class_="scroll"), note, class_="card")
