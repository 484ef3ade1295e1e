"""A watched program as one page: findings, a timeline, an icicle of its own code; no other file, and no request."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from itertools import pairwise

import numpy as np

from mileage._types import F64
from mileage.text import plain
from mileage.watching.findings import Finding
from mileage.watching.layers import Layer, Layered
from mileage.watching.tables import share_of, tables
from mileage.watching.tree import icicle, tree
from mileage.watching.watch import Watched

_BINS = 160
_ROW = 21
_HUES = {Layer.STEP: 25, Layer.RESET: 50, Layer.BACKWARD: 265, Layer.OPTIMIZER: 290, Layer.EVALUATION: 340,
         Layer.LOGGING: 95, Layer.CHECKPOINT: 120, Layer.CALLBACK: 0, Layer.GENERATE: 315, Layer.REPLAY: 75,
         Layer.FORWARD: 235, Layer.JAX: 210, Layer.LOADING: 150, Layer.WAITING: 10, Layer.COMPILE: 170,
         Layer.IMPORT: 190, Layer.TORCH: 250}  # fmt: skip
_LAYERS = list(Layer)
_SPARKS = (Layer.STEP, Layer.RESET, Layer.BACKWARD, Layer.OPTIMIZER, Layer.LOGGING, Layer.CALLBACK, Layer.REPLAY)


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
    return (resources.files("mileage.watching") / "assets" / name).read_text(encoding="utf-8")


def _text(text: str, limit: int = 500) -> str:
    return html.escape(plain(text, limit))


def _findings(watched: Watched) -> str:
    items = "".join(_finding(each) for each in watched.findings)
    return f'<h2>Findings</h2><ol class="findings">{items}</ol>' if items else ""


def _finding(each: Finding) -> str:
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


def _colour(layer: Layer) -> str:
    return "var(--line)" if layer is Layer.OTHER else f"hsl({_HUES[layer]} var(--s) var(--l))"


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
