"""The colours of every picture, for light and dark paper; arms are told apart by people who see few colours too."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ARMS = ("#0b62a8", "#c2410c", "#00775a", "#93328a", "#8a6100", "#4b5a6b", "#0e7490", "#a3294d")
"""Of arms on white paper, each with a contrast of at least 4.5 to it."""
_ARMS_DARK = ("#6cb6ff", "#ff9e64", "#4fd6ac", "#e39ad9", "#e6c34a", "#a9b4c0", "#5fd4e6", "#ff8fae")
PHASES = {
    "init": "#a4afba", "compile": "#c3b1de", "env-step": "#5fa9dd", "inference": "#8cc8ee", "rollout": "#5fa9dd",
    "advantage": "#e6c34a", "learn": "#ec8a57", "transfer": "#9cc766", "sync": "#c09a7a", "eval": "#5fc0a0",
    "checkpoint": "#dd94bb", "log": "#98a5e4", "own": "#7fd0c0", "other": "#ced4da",
}  # fmt: skip
"""Of phases, by the end of their class; dark words can be read on all of them."""
_LIGHT = {
    "ink": "#1c2430", "soft": "#55606e", "line": "#dfe4ea", "paper": "#ffffff", "back": "#f6f8fa", "accent": "#0b62a8",
    "good": "#00693f", "bad": "#b42318", "wait": "#7a5400", "grid": "#e3e7ec", "axis": "#8b96a2", "target": "#b42318",
}  # fmt: skip
_DARK = {
    "ink": "#e6ebf1", "soft": "#a3afbc", "line": "#2f3945", "paper": "#161c24", "back": "#0e1319", "accent": "#78bbff",
    "good": "#58d39b", "bad": "#ff8f85", "wait": "#f0c04c", "grid": "#28323d", "axis": "#6d7a88", "target": "#ff8f85",
}  # fmt: skip


def _variables(colours: dict[str, str], arms: tuple[str, ...], scheme: str) -> str:
    named = colours | {f"c{index}": value for index, value in enumerate(arms)}
    return f"color-scheme:{scheme};" + ";".join(f"--{name}:{value}" for name, value in named.items())


@cache
def theme(root: str = ":root") -> str:
    """Style sheet: the colours as variables of `root`, dark where the reader's screen or `data-theme` says so."""
    light, dark = _variables(_LIGHT, ARMS, "light"), _variables(_DARK, _ARMS_DARK, "dark")
    phases = ";".join(f"--p-{name}:{value}" for name, value in PHASES.items())
    return (
        f"{root}{{{light};{phases}}}\n{root}[data-theme=dark]{{{dark}}}\n"
        f"@media (prefers-color-scheme:dark){{{root}:not([data-theme=light]){{{dark}}}}}\n"
        f"@media print{{{root}{{{light}}}}}\n"
    )


@cache
def chart_style() -> str:
    """Style sheet of the charts themselves."""
    return (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")
