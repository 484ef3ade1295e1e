"""A watched program in other formats: JSON, Markdown, a page, a Chrome trace (Perfetto), a speedscope file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mileage._errors import looked_up
from mileage._records import Record, strict_json
from mileage.text import markdown as escaped
from mileage.text import plain
from mileage.watching.layers import Layer, Layered
from mileage.watching.mileage_inside.lanes import KINDS
from mileage.watching.page import page
from mileage.watching.tables import findings, tables
from mileage.watching.trace import Frame
from mileage.watching.watch import Watched

_MOST_CALLS = 20_000
_LAYERS = list(Layer)


def export(watched: Watched, kind: str) -> str:
    """As text in one of `FORMATS`."""
    return looked_up("format", kind, FORMATS)(watched)


def json_text(watched: Watched) -> str:
    """Everything but the samples."""
    return strict_json(watched.as_dict(), indent=2) + "\n"


def markdown(watched: Watched) -> str:
    """Verdict, findings and tables."""
    parts = [f"# Profile: {escaped(' '.join(watched.command))}", f"**{escaped(watched.verdict)}**"]
    for table in (findings(watched), *tables(watched)):
        parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(parts) + "\n"


def chrome_trace(watched: Watched) -> str:
    """The run as it went, for Perfetto: stacks, layers and timed calls of every process, and memory."""
    events: list[Record] = []
    for run in watched.processes:
        pid = run.process.pid
        for thread, name in enumerate(("stacks of the main thread", "layers", "timed calls"), start=1):
            events.append({"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": {"name": name}})
        for frame, start, end in _spans(run):
            where = f"{plain(frame.path)}:{frame.line}"
            name = plain(frame.function, 200)
            events.append(_span(pid, 1, name, watched, start, end) | {"args": {"where": where}})
        for number, start, end in _merged(run.layers.tolist(), run.process.main[:, :2].tolist()):
            events.append(_span(pid, 2, str(_LAYERS[number]), watched, start, end))
        for start, end, own, kind in run.process.calls.kept[:_MOST_CALLS].tolist():
            events.append(_span(pid, 3, KINDS[kind], watched, start, end) | {"args": {"own_ms": own / 1e6}})
    resources = watched.evidence.resources
    for second, size in zip(resources.seconds, resources.rss_gb, strict=True):
        events.append({"ph": "C", "pid": 0, "name": "memory", "ts": second * 1e6, "args": {"GB": size}})
    for second, busy in zip(resources.seconds, resources.gpu, strict=False):
        events.append({"ph": "C", "pid": 0, "name": "GPU", "ts": second * 1e6, "args": {"busy": busy or 0.0}})
    found = {"displayTimeUnit": "ms", "otherData": {"verdict": watched.verdict}, "traceEvents": events}
    return strict_json(found) + "\n"


def _span(pid: int, thread: int, name: str, watched: Watched, start: int, end: int) -> Record:
    times = {"ts": (start - watched.began_ns) / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "pid": pid, "tid": thread, "name": name, "cat": "run"} | times


def _merged(labels: list[int], samples: list[list[int]]) -> Iterator[tuple[int, int, int]]:
    """Samples in a row with the same label as one span."""
    label, start, end = -1, 0, 0
    for each, (when, wall) in zip(labels, samples, strict=True):
        if each != label or when - wall > end:
            if label >= 0:
                yield label, start, end
            label, start = each, when - wall
        end = when
    if label >= 0:
        yield label, start, end


def _spans(run: Layered) -> list[tuple[Frame, int, int]]:
    """Frames that stay from one sample to the next as spans, callers before what they call."""
    frames, above = run.process.frames, run.process.above
    open_: list[tuple[int, int]] = []
    found: list[tuple[Frame, int, int]] = []

    def close(down_to: int, at: int) -> None:
        while len(open_) > down_to:
            number, start = open_.pop()
            found.append((frames[number], start, at))

    last = 0
    for when, wall, stack in run.process.main[:, [0, 1, 3]].tolist():
        numbers = []
        while stack:
            numbers.append(stack)
            stack = above[stack]
        numbers.reverse()
        kept = 0
        while kept < min(len(numbers), len(open_)) and _same(frames[numbers[kept]], frames[open_[kept][0]]):
            kept += 1
        close(kept, last)
        open_ += [(number, when - wall) for number in numbers[kept:]]
        last = when
    close(0, last)
    return sorted(found, key=lambda each: (each[1], -each[2]))


def _same(a: Frame, b: Frame) -> bool:
    return (a.path, a.function, a.first_line) == (b.path, b.function, b.first_line)


def speedscope(watched: Watched) -> str:
    """Samples of every process with their whole stacks, in the order they were taken."""
    names: dict[tuple[str, str, int], int] = {}
    profiles = []
    for run in watched.processes:
        stacks = [
            [
                names.setdefault((frame.path, frame.function, frame.line), len(names))
                for frame in run.process.stack(number)
            ]
            for number in run.process.main[:, 3].tolist()
        ]
        weights = run.process.main[:, 1].tolist()
        profiles.append(
            {"type": "sampled", "name": f"process {run.process.pid}", "unit": "nanoseconds", "startValue": 0,
             "endValue": sum(weights), "samples": stacks, "weights": weights}
        )  # fmt: skip
    frames = [{"name": plain(function), "file": plain(path), "line": line} for path, function, line in names]
    found = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": plain(" ".join(watched.command)),
        "exporter": "mileage profile",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return strict_json(found) + "\n"


FORMATS: dict[str, Callable[[Watched], str]] = {
    "md": markdown,
    "html": page,
    "trace": chrome_trace,
    "speedscope": speedscope,
    "json": json_text,
}
