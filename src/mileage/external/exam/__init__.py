"""The held-out exam of anybody's policy, in a process of its own; panels by file or environment."""

from __future__ import annotations

from pathlib import Path

from mileage.errors import UsageError
from mileage.external.exam.actors import Actor
from mileage.external.exam.examiner import Examiner, examine
from mileage.external.exam.sources import PolicySource
from mileage.ledger.panels import DEFAULT_PANEL_SIZE, Panel
from mileage.ledger.targets import Target
from mileage.records import ReadRecord


# --- Panels by what a user says: a file with one, or an environment ---
def find_panel(
    text: str, episodes: int | None = None, *, target: str | Target | None = None, success: str | None = None,
    deterministic: bool = True, env_kwargs: ReadRecord | None = None,
) -> Panel:  # fmt: skip
    """The panel in the file `text.json`, or the usual one of the environment `text`, as an agent there would sit it."""
    if text.endswith(".json"):
        changed = (episodes is not None, success is not None, not deterministic, bool(env_kwargs))
        if any(changed):
            raise UsageError(f"{text} is a panel already: episodes, success, sampling and options are in it")
        try:
            return Panel.from_json(Path(text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"panel {text} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    from mileage.envs.registry import resolve
    from mileage.training.evaluation import episode_limit

    goal = None if target is None else Target.parse(target)
    spec = resolve(text, **(env_kwargs or {}))
    return Panel.default(
        text, DEFAULT_PANEL_SIZE if episodes is None else episodes, env_kwargs=env_kwargs,
        env_version=str(spec.version), success=success, max_episode_steps=episode_limit(spec),
        aggregate="mean_return" if goal is None else str(goal.aggregate), deterministic=deterministic,
    )  # fmt: skip


__all__ = ["Actor", "Examiner", "PolicySource", "examine", "find_panel"]
