"""Runs that are starved in a known way, quiet and beside a busy neighbour: does the profile name it first?

    PYTHONPATH=src python benchmarks/profile_planted.py

Every row is planted several times, half of them while a foreign process burns a core, but for rows about cores and
threads, of which that would change what is true. Each run is a process of its own.
Right is: quiet, the planted bottleneck is the first finding; beside the neighbour, the shared machine is the first and
the planted one the first after it, marked as seen under load. A remedy that a first finding promises and that can be
applied from here is then timed: the same run again with it, in the same conditions. None may promise more than three
times what its own timing shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from _harness import Report, markdown_table

if TYPE_CHECKING:
    from mileage.profiling import Profile

NEVER = 10**9
SHARED = "shared_machine"
QUIET, BUSY = "quiet", "beside a busy neighbour"


class Plant(NamedTuple):
    """A run that is starved, and what must be said of it."""

    algorithm: str
    env: str
    options: dict[str, Any]
    wanted: str
    """The bottleneck that must come first."""
    words: tuple[str, ...] = ()
    """What its evidence or its remedies must say."""
    remedy: dict[str, Any] | None = None
    """Options that the remedy changes, to be timed; None where only a person can apply it."""
    alone: bool = False
    """Whether a busy neighbour changes what is true of it: it takes the core that was idle."""


def plants() -> dict[str, Plant]:
    """All rows."""
    small = {"preset": "none", "n_envs": 8, "n_steps": 64, "hidden": [16, 16], "eval_every": NEVER}
    wide = {"preset": "none", "n_envs": 64, "n_steps": 64, "steps": 400_000, "eval_every": NEVER}
    bridged = {"preset": "none", "n_envs": 4, "n_steps": 64, "eval_every": NEVER}
    return {
        "nothing but the neighbour": Plant(
            "ppo", "CartPole-v1", {"preset": "none", "steps": 300_000, "eval_every": NEVER}, ""
        ),
        "slow reset": Plant(
            "ppo", "SlowReset-v0", bridged | {"steps": 1024}, "reset_bound", ("reset", "ms each")
        ),
        "slow step": Plant("ppo", "SlowStep-v0", bridged | {"steps": 768}, "env_bound", ("stepping",)),
        "network far too large": Plant(
            "ppo", "CartPole-v1", small | {"hidden": [1024, 1024], "steps": 4096}, "network_bound", ("hidden",),
            {"hidden": [64, 64]},
        ),
        "buffer far larger than the cache": Plant(
            "dqn", "WideCartPole-v0",
            {"preset": "none", "n_envs": 8, "capacity": 400_000, "learning_starts": 10_000_000, "hidden": [16, 16],
             "steps": 100_000, "eval_every": NEVER},
            "store_bound", ("capacity",), {"capacity": 4_000},
        ),
        "callback that leaks": Plant(
            "ppo", "CartPole-v1", small | {"steps": 400_000, "callback": "leak"}, "memory_growth",
            ("MiB/s", "profile_planted.py"),
        ),
        "loop in a module's forward": Plant(
            "ppo", "CartPole-v1",
            {"preset": "none", "n_envs": 8, "n_steps": 128, "policy": "loop", "steps": 4096, "eval_every": NEVER},
            "python_loop", ("Loop.forward", "profile_planted.py:"),
        ),
        "panel 50 times too large": Plant(
            "ppo", "CartPole-v1", small | {"eval_every": 4096, "episodes": 5_000, "steps": 60_000},
            "evaluation_bound", ("--episodes", "--eval-every"), {"episodes": 100},
        ),
        "environment that gets slower": Plant(
            "ppo", "Ageing-v0", bridged | {"steps": 3072}, "drift", ("env_step", "times as long")
        ),
        "first compile of a user's environment": Plant(
            "ppo", "Fresh", {"preset": "none", "steps": 8_192, "eval_every": NEVER},
            "compilation_bound", ("compiling",),
        ),
        "SAC at the published settings": Plant(
            "sac", "Pendulum-v1", {"preset": "none", "steps": 8_000, "eval_every": NEVER}, "learner_bound",
        ),
        "tiny minibatches": Plant(
            "ppo", "CartPole-v1", small | {"hidden": [64, 64], "minibatch": 1, "epochs": 10, "steps": 8192},
            "undersized_batch", ("minibatch",), {"minibatch": 8},
        ),
        "evaluation every update": Plant(
            "ppo", "CartPole-v1", small | {"eval_every": 1, "episodes": 1000, "steps": 65_536}, "evaluation_bound",
            ("--eval-every",),
        ),
        "huge checkpoints every update": Plant(
            "ppo", "CartPole-v1",
            small | {"n_steps": 4, "hidden": [512, 512], "epochs": 1, "minibatch": 512, "checkpoint_every": 1,
                     "steps": 4096},
            "checkpoint_bound", ("--checkpoint-every",), {"checkpoint_every": 4096},
        ),
        "callback that waits": Plant(
            "ppo", "CartPole-v1", small | {"callback": "wait", "steps": 32_768}, "logging_bound",
            ("profile_planted.py:",),
        ),
        "one thread": Plant(
            "ppo", "CartPole-v1", wide | {"hidden": [128, 128], "minibatch": 4096, "threads": 1}, "idle_cores",
            ("--threads",), alone=True,
        ),
        "too many threads": Plant(
            "ppo", "CartPole-v1", wide | {"hidden": [16, 16], "minibatch": 2048, "threads": 16},
            "oversubscribed_threads", ("--threads",), alone=True,
        ),
        "torch for one environment": Plant(
            "ppo", "CartPole-v1",
            {"preset": "none", "backend": "torch", "n_envs": 1, "n_steps": 512, "epochs": 1, "minibatch": 512,
             "steps": 40_000, "eval_every": NEVER},
            "inference_dispatch_bound",
        ),
    }  # fmt: skip


# What is planted


def register() -> None:
    """Environments that are slow, each in its own way."""
    import gymnasium
    import numpy as np

    class Timed(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self) -> None:
            self.steps = self.age = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            self.on_reset()
            return np.zeros(4, np.float32), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            self.age += 1
            self.on_step()
            return np.full(4, 0.1, np.float32), 1.0, self.steps >= 16, False, {}

        def on_reset(self) -> None:
            pass

        def on_step(self) -> None:
            pass

    class SlowReset(Timed):
        def on_reset(self) -> None:
            burn(0.03)

    class SlowStep(Timed):
        def on_step(self) -> None:
            time.sleep(0.003)

    class Ageing(Timed):
        def on_step(self) -> None:
            burn(5e-6 * self.age)

    class Wide(gymnasium.ObservationWrapper[Any, Any, Any]):
        observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2000,), np.float32)

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self._obs = np.zeros(2000, np.float32)

        def observation(self, observation: Any) -> Any:
            self._obs[:4] = observation
            return self._obs

    kinds: dict[str, Any] = {"SlowReset-v0": SlowReset, "SlowStep-v0": SlowStep, "Ageing-v0": Ageing}
    kinds["WideCartPole-v0"] = lambda: Wide(gymnasium.make("CartPole-v1").unwrapped)
    for name, kind in kinds.items():
        gymnasium.register(name, kind, max_episode_steps=500)


def burn(seconds: float) -> None:
    """Keep the core busy for so long of its own time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


LEAKED: list[bytearray] = []


def leak(_: object) -> None:
    """A callback that keeps what it should not."""
    LEAKED.append(bytearray(b"x" * 512 * 1024))


def wait(_: object) -> None:
    """A callback that holds the training up."""
    time.sleep(0.05)


def loop_policy() -> Any:
    """A module whose forward pass goes through its inputs one after the other."""
    import torch
    from torch import nn

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.value = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)

        def forward(self, obs: Any) -> Any:
            hidden = torch.tanh(self.first(obs))
            total = torch.zeros_like(hidden)
            for column in range(hidden.shape[1]):
                total[:, column] = hidden[:, column] * torch.sigmoid(hidden[:, column])
            return self.head(total), self.value(total)

    return Loop()


FRESH = """
import mileage
from mileage.envs import uniform

@mileage.env(state_size=2, actions=2, max_steps=200)
class Fresh:
    def reset(state, rng):
        state[0] = uniform(rng, -0.1, 0.1)
        state[1] = {constant}

    def step(state, action, rng):
        state[0] = 0.9 * state[0] + 0.1 * (action - 0.5)
        return 1.0 - state[0] * state[0], abs(state[0]) > 3.0
"""


# Running


def profile_here(name: str, remedied: bool = False, **how: Any) -> tuple[Profile, float]:
    """One planted run profiled in this process, and the seconds it took; `how` are arguments of `profile_run`."""
    from mileage.measure import PhaseClock

    clock = PhaseClock.for_run()
    from mileage.profiling import profile_run

    plant = plants()[name]
    options = dict(plant.options) | ((plant.remedy or {}) if remedied else {}) | how
    register()
    if "callback" in options:
        options["callback"] = {"leak": leak, "wait": wait}[options["callback"]]
    if options.get("policy") == "loop":
        options["policy"] = loop_policy()
    options.setdefault("episodes", 4)
    env = plant.env
    with tempfile.TemporaryDirectory() as folder:
        if env == "Fresh":
            # No constant has been met before: the cache cannot have it.
            file = Path(folder) / "fresh.py"
            file.write_text(FRESH.format(constant=f"0.{time.time_ns()}"))
            env = f"{file}:Fresh"
        if options.get("checkpoint_every"):
            options["checkpoint"] = str(Path(folder) / "policy.safetensors")
        began = time.monotonic()
        found = profile_run(plant.algorithm, env, clock=clock, **options)
    return found, time.monotonic() - began


@contextlib.contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """A process that burns a core, if asked for."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def profiled(name: str, busy: bool, remedied: bool = False) -> dict[str, Any]:
    """One planted run in a process of its own."""
    command = [sys.executable, __file__, "--one", name, *(["--remedied"] if remedied else [])]
    with neighbour(busy):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(plant: Plant, found: dict[str, Any], busy: bool) -> tuple[bool, str]:
    """Whether the right thing is said first, and what is said first."""
    findings = list(found["findings"])
    shared = bool(findings) and findings[0]["bottleneck"] == SHARED
    said = found["verdict"]
    if shared != busy:
        return False, said
    rest = findings[1:] if shared else findings
    if not plant.wanted:
        return True, said
    if not rest or rest[0]["bottleneck"] != plant.wanted:
        return False, said
    first = rest[0]
    text = f"{first['evidence']} {first['suggestion']}"
    marked = not busy or bool(first.get("under_load"))
    return marked and all(word in text for word in plant.words), said


def kept_promise(plant: Plant, found: dict[str, Any], busy: bool) -> dict[str, float] | None:
    """What the first finding with a remedy that can be applied here promises, and what the run then takes."""
    promised = next((f["estimated_gain"] for f in found["findings"] if f["bottleneck"] == plant.wanted), 0.0)
    if plant.remedy is None or not promised:
        return None
    before = found["run"]["wall_seconds"]
    after = profiled_name(plant, busy)
    return {"promised": promised, "seen": 1.0 - after / before}


def profiled_name(plant: Plant, busy: bool) -> float:
    """Wall-clock of the same run with its remedy."""
    name = next(name for name, each in plants().items() if each == plant)
    return float(profiled(name, busy, remedied=True)["run"]["wall_seconds"])


def main() -> None:
    """Plant, judge and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of every row in both conditions")
    parser.add_argument("--only", action="append", help="these rows alone (may be repeated)")
    parser.add_argument("--kept", type=Path, required=False, help="folder for runs: those there are not made again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many; then go on")
    parser.add_argument("--report", action="store_true", help="write the report of what there is")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--remedied", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found, seconds = profile_here(options.one, options.remedied)
        print(json.dumps(found.as_dict() | {"seconds_in_all": seconds}))
        return
    chosen = {name: plant for name, plant in plants().items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory() as temporary:
        kept = options.kept or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        whole = measured(chosen, options.repeats, kept, options.seconds)
        data = {name: gathered(name, kept) for name in chosen}
    rows = [shown(name, plant, data[name]) for name, plant in chosen.items()]
    print(*("  |  ".join(each) for each in rows), sep="\n")
    if options.report or (whole and options.only is None):
        print(*report(rows, data).write(), sep="\n")


def measured(chosen: dict[str, Plant], repeats: int, kept: Path, seconds: float) -> bool:
    """Make the runs that are not there yet, every row once before any is made again; False if time ran out."""
    end = time.monotonic() + seconds
    for number in range(repeats):
        for name, plant in chosen.items():
            for busy in (False,) if plant.alone else (False, True):
                file = kept / f"{slug(name)}-{'busy' if busy else 'quiet'}-{number}.json"
                if file.exists():
                    continue
                if time.monotonic() > end:
                    return False
                file.write_text(json.dumps(one(name, plant, busy, timed_too=number == 0)))
    return True


def slug(name: str) -> str:
    """A name for files."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def one(name: str, plant: Plant, busy: bool, timed_too: bool) -> dict[str, Any]:
    """One run, what was said of it, and whether that was right."""
    found = profiled(name, busy)
    right, said = judged(plant, found, busy)
    print(f"{name}, {BUSY if busy else QUIET}: {'right' if right else 'WRONG'}: {said}", file=sys.stderr, flush=True)
    run = {"busy": busy, "right": right, "said": said, "wall": found["run"]["wall_seconds"],
           "load": found["run"]["load"], "findings": found["findings"], "in_all": found["seconds_in_all"]}  # fmt: skip
    return run | {"promise": kept_promise(plant, found, busy) if timed_too else None}


def gathered(name: str, kept: Path) -> dict[str, Any]:
    """All runs of a row."""
    runs = [json.loads(file.read_text()) for file in sorted(kept.glob(f"{slug(name)}-*.json"))]
    return {"runs": runs, "promises": [run["promise"] | {"busy": run["busy"]} for run in runs if run["promise"]]}


def shown(name: str, plant: Plant, found: dict[str, Any]) -> list[str]:
    """One row of the table."""
    counts = []
    for busy in (False, True):
        each = [run["right"] for run in found["runs"] if run["busy"] is busy]
        counts.append(f"{sum(each)} of {len(each)}" if each else "–")
    kept = "; ".join(
        f"−{100 * each['promised']:.0f} % promised, {-100 * each['seen']:+.0f} % seen"
        + (" (busy)" if each["busy"] else "")
        for each in found["promises"]
    )
    quiet = next((run["said"] for run in found["runs"] if not run["busy"]), "–")
    return [name, plant.wanted or "none of its own", *counts, kept or "–", quiet]


def report(rows: list[list[str]], data: dict[str, Any]) -> Report:
    """The table with what it means."""
    header = ["planted", "finding", QUIET, BUSY, "remedy, applied and timed", "said first, the first time"]
    about = (
        "Quiet, right is the planted finding first and no word of a shared machine; beside a process that burns a "
        "core, the shared machine first and the planted finding first after it, marked as seen under load."
    )
    return Report("profile_planted", "Planted bottlenecks, and what a profile says first",
                  [about, markdown_table(header, rows)], data)  # fmt: skip


if __name__ == "__main__":
    main()
