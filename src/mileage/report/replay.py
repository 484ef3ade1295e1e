"""Episodes to watch: held-out episodes of a saved policy, drawn from the states of native environments.

Only environments that are built in are drawn, and only a checkpoint whose file is the one that the run wrote down is
opened: nothing that a ledger names is imported or run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mileage.errors import MileageError
from mileage.ledger.address import is_opened
from mileage.ledger.rows import Checkpoint
from mileage.ledger.runs import RecordedRun
from mileage.records import strict_json
from mileage.report.arms import Exam
from mileage.report.axes import path as path_data
from mileage.report.curves import evaluated
from mileage.report.document import Made, Section, Words
from mileage.report.markup import Html, join, number, tag

MOST_FRAMES = 200
LARGEST_FILE = 50_000_000
"""Bytes of a checkpoint that is opened for a replay."""
State = Sequence[float]


@dataclass(frozen=True)
class Drawing:
    """How an environment looks: what stands still, what moves, and where a state puts it."""

    still: Html
    moving: Html
    parts: tuple[str, ...]
    """Names of what moves, each by its `transform`."""
    place: Callable[[State], tuple[str, ...]]
    """The transforms of the parts in a state."""
    seconds_per_step: float


@dataclass(frozen=True)
class ReplayedEpisode:
    """One episode that was played again."""

    name: str
    seed: int
    recorded: float
    """Its return when the run was evaluated."""
    played: float
    """Its return now."""
    states: tuple[tuple[float, ...], ...]


def _cart(state: State) -> tuple[str, ...]:
    return f"translate({number(200 + 70 * state[0])} 150)", f"rotate({number(math.degrees(state[2]))})"


def _pendulum(state: State) -> tuple[str, ...]:
    return (f"rotate({number(-math.degrees(state[0]))})",)


def _height(x: float) -> float:
    return 0.45 * math.sin(3.0 * x) + 0.55


def _hill(x: float) -> tuple[float, float]:
    return 20 + 360 * (x + 1.2) / 1.8, 185 - 150 * _height(x)


def _car(state: State) -> tuple[str, ...]:
    x, y = _hill(state[0])
    slope = math.atan2(-150 * 1.35 * math.cos(3.0 * state[0]), 200)
    return (f"translate({number(x)} {number(y)}) rotate({number(math.degrees(slope))})",)


def _acrobot(state: State) -> tuple[str, ...]:
    return f"rotate({number(-math.degrees(state[0]))})", f"rotate({number(-math.degrees(state[1]))})"


def _part(name: str, *inside: Html, **attributes: str) -> Html:
    return tag("g", *inside, data_part=name, **attributes)


def _drawings() -> dict[str, Drawing]:
    ground = tag("line", x1=0, y1=165, x2=400, y2=165, class_="ground")
    pole = _part("pole", tag("line", x1=0, y1=0, x2=0, y2=-95, class_="rod"))
    cart = _part(
        "cart",
        tag("rect", x=-28, y=-14, width=56, height=24, rx=4, class_="body"),
        pole,
        tag("circle", cx=0, cy=0, r=4, class_="joint"),
    )
    rod = _part("rod", tag("line", x1=0, y1=0, x2=0, y2=-75, class_="rod"))
    pendulum = tag("g", rod, tag("circle", cx=0, cy=0, r=6, class_="joint"), transform="translate(200 100)")
    hill = tag("path", d=path_data(_hill(-1.2 + 1.8 * i / 60) for i in range(61)), class_="ground")
    goal = [_hill(x) for x in (0.5, 0.45)]
    flags = [
        tag("path", d=path_data([(x, y), (x, y - 32), (x + 16, y - 26), (x, y - 20)]), class_="flag") for x, y in goal
    ]
    car = _part(
        "car",
        tag("rect", x=-15, y=-16, width=30, height=11, rx=3, class_="body"),
        tag("circle", cx=-9, cy=-4, r=4, class_="joint"),
        tag("circle", cx=9, cy=-4, r=4, class_="joint"),
    )
    lower = tag(
        "g",
        _part(
            "lower", tag("line", x1=0, y1=0, x2=0, y2=45, class_="rod"), tag("circle", cx=0, cy=0, r=4, class_="joint")
        ),
        transform="translate(0 45)",
    )
    upper = tag(
        "g",
        _part(
            "upper",
            tag("line", x1=0, y1=0, x2=0, y2=45, class_="rod"),
            lower,
            tag("circle", cx=0, cy=0, r=5, class_="joint"),
        ),
        transform="translate(200 100)",
    )
    line = tag("line", x1=40, y1=55, x2=360, y2=55, class_="goal")
    return {
        "CartPole-v1": Drawing(ground, cart, ("cart", "pole"), _cart, 0.02),
        "Pendulum-v1": Drawing(Html(""), pendulum, ("rod",), _pendulum, 0.05),
        "MountainCar-v0": Drawing(join((hill, flags[0])), car, ("car",), _car, 0.03),
        "MountainCarContinuous-v0": Drawing(join((hill, flags[1])), car, ("car",), _car, 0.03),
        "Acrobot-v1": Drawing(line, upper, ("upper", "lower"), _acrobot, 0.1),
    }


DRAWINGS = _drawings()


def replays(exam: Exam) -> Section | None:
    """The median and the worst held-out episode of the arm's run in the middle; None where none can be shown."""
    parts: list[Made | Words] = []
    for arm in exam.arms:
        drawing = DRAWINGS.get(arm.first.env)
        candidates = [run for run in arm.ended if run.episodes and saved(run) is not None]
        if drawing is None or not candidates:
            continue
        ordered = sorted(candidates, key=lambda run: run.metric("mean_return") or 0.0)
        run = ordered[len(ordered) // 2]
        try:
            episodes = play(run)
        except MileageError as error:
            parts.append(Words(f"{arm.label}: no episode can be shown, because {error}", "small"))
            continue
        said = f"{arm.label}, seed {run.seed}: the policy of {run.run_id}, in {drawing.seconds_per_step:g} s steps."
        boxes = [_box(episode, drawing) for episode in episodes]
        parts += [Words(said), Made(tag("div", *boxes, class_="replays"), _spoken(episodes))]
    return Section("Held-out episodes", parts) if parts else None


def saved(run: RecordedRun) -> Checkpoint | None:
    """The last checkpoint of a run that is still the file that the run wrote, and was evaluated as it is."""
    for row in reversed(run.checkpoints):
        if row.path is None or row.sha256 is None:
            continue
        judged = [each.seq for each, _ in evaluated(run) if each.step == row.step]
        if not judged or run.episodes[0].seq not in judged:
            return None
        return row if _is_file(Path(row.path), row.sha256) else None
    return None


def _is_file(path: Path, sha256: str) -> bool:
    try:
        if is_opened(path) or not path.is_file() or path.stat().st_size > LARGEST_FILE:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def play(run: RecordedRun) -> list[ReplayedEpisode]:
    """The median and the worst episode of the panel, played again by the run's saved policy."""
    from mileage.training.agents import load

    row = saved(run)
    assert row is not None
    assert row.path is not None
    ordered = sorted((e for e in run.episodes if e.episode_return is not None), key=lambda e: e.episode_return or 0.0)
    chosen = {"median": ordered[len(ordered) // 2], "worst": ordered[0]}
    agent = load(row.path, threads=1)
    found = []
    for name, episode in chosen.items():
        states, total = _states(agent, episode.seed)
        found.append(ReplayedEpisode(name, episode.seed, episode.episode_return or 0.0, total, states))
    return found


def _states(agent: object, seed: int) -> tuple[tuple[tuple[float, ...], ...], float]:
    """The states of one episode from its first to its last, and its return."""
    from mileage.envs.native.vector import NativeEnv, VecEnv
    from mileage.training.agent import Agent

    assert isinstance(agent, Agent)
    assert isinstance(agent.spec, NativeEnv)
    env = VecEnv(agent.spec, 1)
    observation, _ = env.reset(seed=[seed])
    states, total = [tuple(float(x) for x in env.state[0])], 0.0
    for _ in range(agent.spec.max_steps or 1_000):
        action, _ = agent.predict(observation)
        observation, reward, terminated, truncated, _ = env.step(np.asarray(action))
        total += float(reward[0])
        if terminated[0] or truncated[0]:
            break
        states.append(tuple(float(x) for x in env.state[0]))
    return tuple(states), total


def _box(episode: ReplayedEpisode, drawing: Drawing) -> Html:
    stride = -(-len(episode.states) // MOST_FRAMES)
    frames = [list(drawing.place(state)) for state in episode.states[::stride]]
    data = {
        "parts": list(drawing.parts),
        "attributes": ["transform"] * len(drawing.parts),
        "frames": frames,
        "stride": stride,
        "milliseconds": max(round(1000 * drawing.seconds_per_step * stride), 16),
    }
    label = f"{episode.name} held-out episode, seed {episode.seed}, return {episode.played:,.1f}"
    moving = drawing.moving
    for part, transform in zip(drawing.parts, frames[0], strict=True):  # as it stands before a script moves it
        moving = Html(moving.replace(f'data-part="{part}"', f'data-part="{part}" transform="{transform}"', 1))
    svg = tag("svg", drawing.still, moving, viewBox="0 0 400 200", role="img", aria_label=label, class_="chart")
    same = (
        ""
        if math.isclose(episode.recorded, episode.played, rel_tol=1e-6, abs_tol=1e-6)
        else (f"; when it was recorded, {episode.recorded:,.1f}")
    )
    title = tag(
        "p",
        tag("strong", f"{episode.name.capitalize()} episode"),
        f", held-out seed {episode.seed}: return {episode.played:,.1f} in {len(episode.states)} steps{same}",
    )
    slider = tag(
        "input", type="range", min=0, max=len(frames) - 1, value=0, aria_label=f"step of the {episode.name} episode"
    )
    controls = tag(
        "div", tag("button", "Play", type="button"), slider, tag("output", "step 0"), class_="controls", hidden=True
    )
    packed = tag(
        "script", Html(strict_json(data, separators=(",", ":")).replace("<", "\\u003c")), type="application/json"
    )
    return tag("div", title, svg, controls, packed, class_="replay")


def _spoken(episodes: Sequence[ReplayedEpisode]) -> str:
    return "; ".join(f"{each.name} episode, seed {each.seed}: return {each.played:,.1f}" for each in episodes)
