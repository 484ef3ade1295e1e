"""A profile in other formats: Markdown, an HTML section, a Chrome trace, a speedscope file."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace

from mileage._errors import UnknownNameError
from mileage._records import Record, strict_json
from mileage.profiling.costs import part_of
from mileage.profiling.profile import Profile
from mileage.profiling.tables import tables
from mileage.text import markdown as escaped


def export(profile: Profile, kind: str) -> str:
    """The profile as text in one of `FORMATS`."""
    try:
        return FORMATS[kind](profile)
    except KeyError:
        raise UnknownNameError("format", kind, FORMATS) from None


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


def html_section(profile: Profile) -> str:
    """The whole profile as one HTML section, without styles or scripts of its own."""
    parts = [
        '<section class="profile">',
        f"<h1>Profile: {html.escape(title(profile))}</h1>",
        f'<p class="verdict"><strong>{html.escape(profile.verdict)}</strong></p>',
        f"<p>{html.escape(machine_line(profile))}</p>",
    ]
    for table in tables(profile):
        parts += [f"<h2>{html.escape(table.title)}</h2>", replace(table, key=f"profile-{table.key}").html()]
    return "\n".join([*parts, "</section>"]) + "\n"


def _run_spans(profile: Profile) -> list[tuple[str, float, float]]:
    """The run's phases one after the other, in µs: their sums, not when they happened."""
    spans, start = [], 0.0
    for name, seconds in profile.run.phases.items():
        if seconds > 0.0:
            spans.append((name, start, start + 1e6 * seconds))
            start += 1e6 * seconds
    return spans


def chrome_trace(profile: Profile) -> str:
    """Replayed iterations with their phases and calls (chrome://tracing, Perfetto), and the run's phases as one row."""
    events: list[Record] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "replayed iterations"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "the run: sums of its phases"}},
    ]
    for name, start, end in _run_spans(profile):
        events.append({"ph": "X", "pid": 1, "tid": 2, "name": name, "cat": "run", "ts": start, "dur": end - start})
    if profile.calibration is not None:
        spans = profile.calibration.trace.shown
        first = min((span.start for span in spans), default=0)
        for span in spans:
            category = span.kind if span.kind != "phase" else part_of(span.name)
            times = {"ts": (span.start - first) / 1e3, "dur": (span.end - span.start) / 1e3}
            events.append({"ph": "X", "pid": 1, "tid": 1, "name": span.name, "cat": category} | times)
    found = {"displayTimeUnit": "ms", "otherData": {"verdict": profile.verdict}, "traceEvents": events}
    return strict_json(found) + "\n"


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
    "html": html_section,
    "trace": chrome_trace,
    "speedscope": speedscope,
}
