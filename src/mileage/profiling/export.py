"""A profile in other formats: Markdown, a page, a Chrome trace, a speedscope file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from mileage.errors import looked_up
from mileage.profiling.costs import part_of
from mileage.profiling.drift import Moment
from mileage.profiling.profile import Profile
from mileage.profiling.report import page, tables
from mileage.records import Record, strict_json
from mileage.tables import markdown as escaped


def export(profile: Profile, kind: str) -> str:
    """The profile as text in one of `FORMATS`."""
    return looked_up("format", kind, FORMATS)(profile)


def title(profile: Profile) -> str:
    """What was profiled, in a few words."""
    work = profile.workload
    name = work["algorithm"] or work.get("name", "run")
    return f"{name} on {work['env'] or 'its environment'}, {profile.run.env_steps:,} steps"


def machine_line(profile: Profile) -> str:
    """Where the run was measured."""
    work, machine = profile.workload, profile.workload["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items() if version)
    return (
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('os')}, Python {machine.get('python')}, "
        f"{versions}; back end {work['backend']}, {work['threads']} threads, seed {work['seed']}."
    )


def markdown(profile: Profile) -> str:
    """The whole profile in Markdown."""
    parts = [
        f"# Profile: {escaped(title(profile))}",
        f"**{escaped(profile.verdict)}**",
        escaped(machine_line(profile)),
        "Configuration: " + escaped(", ".join(f"{name} {value}" for name, value in profile.workload["config"].items())),
    ]
    for table in tables(profile):
        parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(parts) + "\n"


def html_page(profile: Profile) -> str:
    """The whole profile as one page that opens from disk."""
    return page(profile, title(profile), machine_line(profile))


def _run_spans(profile: Profile) -> list[tuple[str, float, float]]:
    """The run's phases one after the other, in µs: their sums, not when they happened."""
    spans, start = [], 0.0
    for name, seconds in profile.run.phases.items():
        if seconds > 0.0:
            spans.append((name, start, start + 1e6 * seconds))
            start += 1e6 * seconds
    return spans


def chrome_trace(profile: Profile) -> str:
    """For Perfetto: the run's memory and phases as it went, their sums as a row, and replayed iterations with calls."""
    events: list[Record] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "replayed iterations"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "the run: sums of its phases"}},
    ]
    for name, start, end in _run_spans(profile):
        events.append({"ph": "X", "pid": 1, "tid": 2, "name": name, "cat": "run", "ts": start, "dur": end - start})
    events += _counted(profile.run.moments)
    if profile.calibration is not None:
        spans = profile.calibration.trace.shown
        first = min((span.start for span in spans), default=0)
        for span in spans:
            category = span.kind if span.kind != "phase" else part_of(span.name)
            times = {"ts": (span.start - first) / 1e3, "dur": (span.end - span.start) / 1e3}
            events.append({"ph": "X", "pid": 1, "tid": 1, "name": span.name, "cat": category} | times)
    found = {"displayTimeUnit": "ms", "otherData": {"verdict": profile.verdict}, "traceEvents": events}
    return strict_json(found) + "\n"


def _counted(moments: Sequence[Moment]) -> list[Record]:
    """The run as it went: memory, and the share of each phase between two looks at its clock."""
    name = {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "the run as it went"}}
    events: list[Record] = [name] if moments else []
    for each in moments:
        at = {"ph": "C", "pid": 2, "ts": 1e6 * each.times.wall_seconds}
        events.append({"name": "memory, MiB", "args": {"MiB": each.rss_mib}} | at)
    for earlier, later in itertools.pairwise(moments):
        whole = max(later.times.wall_ns - earlier.times.wall_ns, 1)
        before, after = earlier.times.phases_ns, later.times.phases_ns
        shares = {str(phase): (spent - before.get(phase, 0)) / whole for phase, spent in after.items()}
        at = {"ph": "C", "pid": 2, "ts": 1e6 * earlier.times.wall_seconds}
        events.append({"name": "phases, share of the time", "args": shares} | at)
    return events


def speedscope(profile: Profile) -> str:
    """The same as `chrome_trace` in speedscope's evented format, nested by time."""
    names: dict[str, int] = {}

    def frame(name: str) -> int:
        return names.setdefault(name, len(names))

    profiles = []
    lanes = {"the run: sums of its phases": _run_spans(profile), "replayed iterations": _nested(profile)}
    for label, spans in lanes.items():
        if spans:
            events = _evented(spans, frame)
            ends = {"startValue": events[0]["at"], "endValue": events[-1]["at"], "events": events}
            profiles.append({"type": "evented", "name": label, "unit": "microseconds"} | ends)
    found = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title(profile),
        "exporter": "mileage profile",
        "shared": {"frames": [{"name": name} for name in names]},
        "profiles": profiles,
    }
    return strict_json(found) + "\n"


def _nested(profile: Profile) -> list[tuple[str, float, float]]:
    if profile.calibration is None:
        return []
    spans = profile.calibration.trace.shown
    first = min((span.start for span in spans), default=0)
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    return [(span.name, (span.start - first) / 1e3, (span.end - first) / 1e3) for span in ordered]


def _evented(spans: list[tuple[str, float, float]], frame: Callable[[str], int]) -> list[Record]:
    """Opening and closing events of spans that lie within each other or apart, in order."""
    events: list[Record] = []
    stack: list[tuple[int, float]] = []
    for name, start, end in spans:
        while stack and stack[-1][1] <= start:
            index, at = stack.pop()
            events.append({"type": "C", "frame": index, "at": at})
        # What began before its parent ended ends with it: the clock's last digits may say otherwise.
        end = min(end, stack[-1][1]) if stack else end
        events.append({"type": "O", "frame": frame(name), "at": start})
        stack.append((frame(name), end))
    while stack:
        index, at = stack.pop()
        events.append({"type": "C", "frame": index, "at": at})
    return events


FORMATS: dict[str, Callable[[Profile], str]] = {
    "md": markdown,
    "html": html_page,
    "trace": chrome_trace,
    "speedscope": speedscope,
}
