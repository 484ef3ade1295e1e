"""A watched program as a page, as JSON, Markdown, a Chrome trace and a speedscope file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import pairwise

import numpy as np

from mileage.errors import looked_up
from mileage.profiling.findings.programs import ProgramFinding
from mileage.profiling.programs.layers import Layered, ProgramLayer
from mileage.profiling.programs.mileage_inside.lanes import KINDS
from mileage.profiling.programs.report import findings, share_of, tables
from mileage.profiling.programs.trace import StackFrame
from mileage.profiling.programs.watch import Watched
from mileage.profiling.traces import icicle, tree
from mileage.records import Record, strict_json
from mileage.tables import markdown as escaped
from mileage.tables import plain
from mileage.types import F64

_BINS = 160
_ROW = 21
_L = ProgramLayer
_HUES = {_L.STEP: 25, _L.RESET: 50, _L.BACKWARD: 265, _L.OPTIMIZER: 290, _L.EVALUATION: 340,
         _L.LOGGING: 95, _L.CHECKPOINT: 120, _L.CALLBACK: 0, _L.GENERATE: 315, _L.REPLAY: 75,
         _L.FORWARD: 235, _L.JAX: 210, _L.LOADING: 150, _L.WAITING: 10, _L.COMPILE: 170,
         _L.IMPORT: 190, _L.TORCH: 250}  # fmt: skip
_LAYERS = list(ProgramLayer)
_SPARKS = (
    ProgramLayer.STEP,
    ProgramLayer.RESET,
    ProgramLayer.BACKWARD,
    ProgramLayer.OPTIMIZER,
    ProgramLayer.LOGGING,
    ProgramLayer.CALLBACK,
    ProgramLayer.REPLAY,
)


def page(watched: Watched) -> str:
    """The whole page."""
    style, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    title = _text(" ".join(watched.command), 300)
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Profile: {title}</title>", f"<style>{style}</style></head><body><main>",
        f"<h1>Profile: {title}</h1>", f'<p class="verdict">{_text(watched.verdict, 1000)}</p>',
        _findings(watched), *_pictures(watched), *_tables(watched), _footer(watched),
        f"</main><script>{script}</script></body></html>", "",
    ])  # fmt: skip


def _asset(name: str) -> str:
    return (resources.files("mileage.profiling.programs") / "assets" / name).read_text(encoding="utf-8")


def _text(text: str, limit: int = 500) -> str:
    return html.escape(plain(text, limit))


def _findings(watched: Watched) -> str:
    items = "".join(_finding(each) for each in watched.findings)
    return f'<h2>Findings</h2><ol class="findings">{items}</ol>' if items else ""


def _finding(each: ProgramFinding) -> str:
    most = share_of(each)
    load = ' <span class="soft">(seen under load)</span>' if each.under_load else ""
    lead = f"<strong>{_text(each.trouble.upper())}</strong>" + (f", at most {most}" if most else "")
    tried = f'<br><span class="try">Try: {_text(each.remedy, 1000)}.</span>'
    return f"<li>{lead}{load}: {_text(each.evidence, 1000)}.{tried}</li>"


def _pictures(watched: Watched) -> list[str]:
    run = watched.run
    if run is None:
        return []
    return [
        "<h2>The run</h2>", _timeline(watched, run), _memory(watched), "<h2>Calls over time</h2>", _sparks(run),
        "<h2>The program's own code</h2>", _icicle(run),
    ]  # fmt: skip


def _tables(watched: Watched) -> list[str]:
    return [f'<h2>{_text(each.title)}</h2><div class="wide">{each.html()}</div>' for each in tables(watched)]


def _footer(watched: Watched) -> str:
    run = watched.run
    python = "" if run is None else f"Python {run.process.python}, {len(run.seconds):,} samples of the main thread; "
    return f"<footer><p>{_text(python + watched.ended.reason)}; made by mileage profile.</p></footer>"


# The timeline


def _colour(layer: ProgramLayer) -> str:
    return "var(--line)" if layer is ProgramLayer.OTHER else f"hsl({_HUES[layer]} var(--s) var(--l))"


def _timeline(watched: Watched, run: Layered) -> str:
    """Shares of layers in each of many short stretches of the run, one above the other."""
    stretch = watched.wall_seconds / _BINS
    seconds: F64 = np.zeros((_BINS, len(_LAYERS)))
    ends = (run.process.main[:, 0] - watched.began_ns) / 1e9
    starts = ends - run.process.main[:, 1] / 1e9
    for start, end, layer in zip(starts.tolist(), ends.tolist(), run.layers.tolist(), strict=True):
        for at in range(max(0, int(start / stretch)), min(_BINS - 1, int(end / stretch)) + 1):
            seconds[at, layer] += max(0.0, min(end, (at + 1) * stretch) - max(start, at * stretch))
    shares = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), stretch)
    used = list(run.by_layer())
    bars = []
    for at in range(_BINS):
        top = 100.0
        for layer in used:
            height = 100.0 * float(shares[at, _LAYERS.index(layer)])
            if height >= 0.5:
                top -= height
                bars.append(
                    f'<rect x="{at}" y="{top:.1f}" width="1.02" height="{height:.1f}" style="fill:{_colour(layer)}"/>'
                )
    key = "".join(f'<li><i style="background:{_colour(layer)}"></i>{_text(layer)}</li>' for layer in used)
    return (f'<svg viewBox="0 0 {_BINS} 100" preserveAspectRatio="none" style="height:160px" role="img" '
            f'aria-label="What the main thread did over time">{"".join(bars)}</svg>{_axis(watched.wall_seconds)}'
            f'<ul class="key">{key}</ul>')  # fmt: skip


def _axis(seconds: float) -> str:
    return f'<div class="axis"><span>0 s</span><span>{seconds / 2:.1f} s</span><span>{seconds:.1f} s</span></div>'


def _memory(watched: Watched) -> str:
    readings = watched.evidence.resources
    if len(readings.seconds) < 2:
        return ""
    peak = max(readings.rss_gb) or 1.0
    lines = [_polyline(readings.seconds, [size / peak for size in readings.rss_gb], watched.wall_seconds)]
    said = f"Memory of all its processes, up to {peak:.2f} GB"
    if readings.gpu:
        busy = [each or 0.0 for each in readings.gpu]
        lines.append(_polyline(readings.seconds, busy, watched.wall_seconds, ' stroke-dasharray="4 3"'))
        said += "; dashed: the busiest GPU, from idle to busy"
    return (f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" style="height:70px;margin-top:.8rem" role="img" '
            f'aria-label="Memory over time">{"".join(lines)}</svg><p class="soft">{said}.</p>')  # fmt: skip


def _polyline(times: tuple[float, ...], heights: list[float], whole: float, more: str = "") -> str:
    points = " ".join(f"{1000 * at / whole:.1f},{96 - 92 * each:.1f}" for at, each in zip(times, heights, strict=True))
    return f'<polyline points="{points}"{more}/>'


def _sparks(run: Layered) -> str:
    """The median of each kind of call from the beginning of the run to its end."""
    found = []
    for layer in _SPARKS:
        own = run.process.calls.own(str(layer))
        if len(own) < 24:
            continue
        edges = np.linspace(0, len(own), 25).astype(np.int64).tolist()
        medians = [float(np.median(own[a:b])) / 1e6 for a, b in pairwise(edges)]
        top = max(medians) or 1.0
        times = tuple(number / (len(medians) - 1) for number in range(len(medians)))
        line = _polyline(times, [each / top for each in medians], 1.0)
        said = f"{layer}: {medians[0]:.3g} to {medians[-1]:.3g} ms"
        picture = f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{_text(said)}">'
        found.append(f"<figure>{picture}{line}</svg><figcaption>{_text(said)}</figcaption></figure>")
    if not found:
        return '<p class="soft">No call was made often enough.</p>'
    return f'<div class="spark">{"".join(found)}</div>'


def _icicle(run: Layered) -> str:
    boxes = icicle(tree(run))
    rows = 1 + max(each.depth for each in boxes)
    parts = []
    for each in boxes:
        share = f"{each.box.seconds:.2f} s, {each.width:.1%}"
        title = _text(f"{each.box.name} {each.box.where}: {share}")
        own = ' class="own"' if each.box.own else ""
        parts.append(
            f'<button type="button"{own} data-x="{each.left:.6f}" data-w="{each.width:.6f}" title="{title}" '
            f'style="top:{_ROW * each.depth}px;left:{100 * each.left:.4f}%;width:{100 * each.width:.4f}%">'
            f"{_text(each.box.name, 120)}</button>"
        )
    said = ("Callers above what they call, as wide as their time; orange is the program's own code, grey are "
            "libraries. A box that is chosen fills the width; the first one brings all back.")  # fmt: skip
    boxed = f'<div class="icicle" style="height:{_ROW * rows}px">{"".join(parts)}</div>'
    return f'<p class="soft">{said}</p>{boxed}<p class="soft" id="box">&nbsp;</p>'


# --- A watched program in other formats: JSON, Markdown, a page, a Chrome trace (Perfetto), a speedscope file ---
_MOST_CALLS = 20_000


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


def _spans(run: Layered) -> list[tuple[StackFrame, int, int]]:
    """Frames that stay from one sample to the next as spans, callers before what they call."""
    frames, above = run.process.frames, run.process.above
    open_: list[tuple[int, int]] = []
    found: list[tuple[StackFrame, int, int]] = []

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


def _same(a: StackFrame, b: StackFrame) -> bool:
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
