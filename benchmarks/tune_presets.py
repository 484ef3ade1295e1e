"""Search an algorithm's hyperparameters for the cheapest way to an environment's target, failed runs counted.

Successive halving over seeds: every configuration runs on a few seeds, the better part on more, and so on. The score
is the expected cost to target: seconds of all runs, failed ones included, divided by the number of runs that reached
it. Seconds are CPU time of one thread by default, so that a busy machine does not decide; evaluation counts as
training does. A run ends at the target, at `--total-steps`, or at `--cap` seconds, whichever comes first. The shipped
preset takes part in every round.

Seeds start at 1000: the shipped tables report on seeds 0 to 9, which no search may see.

python benchmarks/tune_presets.py CartPole-v1 --configs 64 --rungs 3,8,24 --out search.json
python benchmarks/tune_presets.py CartPole-v1 --around preset --configs 32      # local search around what is shipped
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness import shown_command
from mileage.algorithms.registry import find_algorithm
from mileage.measure import fingerprint
from mileage.training.agents import agent_class
from mileage.training.preset_files import RUN_KEYS, load_preset

TARGETS = {
    "CartPole-v1": "mean_return>=475",
    "Acrobot-v1": "mean_return>=-100",
    "MountainCar-v0": "mean_return>=-115",
    "MountainCarContinuous-v0": "mean_return>=90",
    "Pendulum-v1": "mean_return>=-200",
}
FIRST_SEED = 1000

# What a search may choose from; lists are ordered, so that a local search can take a neighbour.
COMMON: dict[str, list[Any]] = {
    "n_envs": [4, 8, 16, 32, 64],
    "n_steps": [8, 16, 32, 64, 128, 256],
    "learning_rate": [3e-4, 5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2],
    "learning_rate_schedule": ["constant", "linear"],
    "gamma": [0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999],
    "gae_lambda": [0.7, 0.8, 0.85, 0.9, 0.95, 0.98],
    "entropy_coef": [0.0, 0.001, 0.003, 0.01, 0.03],
    "value_coef": [0.25, 0.5, 1.0],
    "max_grad_norm": [0.5, 1.0, 5.0],
    "normalise_observations": [False, True],
    "normalise_rewards": [False, True],
    "hidden": [[16, 16], [32, 32], [64, 64]],
    "activation": ["tanh", "relu"],
    # In rollouts, not in steps, so that it stays sensible when the size of a rollout changes.
    "rollouts_per_eval": [1, 2, 3, 4, 6],
}
PPO_SPACE: dict[str, list[Any]] = {
    "epochs": [2, 3, 4, 6, 8, 10, 15, 20],
    "minibatch": [32, 64, 128, 256, 512, 1024],
    "clip": [0.1, 0.15, 0.2, 0.3, 0.4],
    "clip_schedule": ["constant", "linear"],
}
# Where an environment needs other values than the common ones.
SPECIAL: dict[str, dict[str, list[Any]]] = {
    "CartPole-v1": {"normalise_rewards": [False]},
    "MountainCar-v0": {"n_envs": [8, 16, 32, 64, 128], "gamma": [0.98, 0.99, 0.995, 0.999]},
    "MountainCarContinuous-v0": {
        "n_envs": [8, 16, 32, 64, 128],
        "gamma": [0.98, 0.99, 0.995, 0.999, 0.9999],
        "log_std_init": [-1.0, 0.0, 0.5, 1.0, 1.5],
        "entropy_coef": [0.0, 0.001, 0.01, 0.03, 0.1],
    },
    "Pendulum-v1": {"gamma": [0.85, 0.9, 0.93, 0.95, 0.97], "log_std_init": [-1.0, -0.5, 0.0, 0.5]},
}
# Most samples a rollout may hold; larger ones learn too rarely to reach any of these targets soon.
LARGEST_ROLLOUT = 8192

Config = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of one configuration."""

    seed: int
    reached: bool
    seconds: float
    """CPU or wall-clock, as asked for; training and evaluation up to the target or to where the run gave up."""
    steps: int
    best: float
    """The best mean return of all evaluations."""


@dataclasses.dataclass
class Candidate:
    """One configuration and its runs so far."""

    name: str
    config: Config
    trials: list[Trial] = dataclasses.field(default_factory=list)

    @property
    def score(self) -> tuple[float, float]:
        """Expected seconds to target; configurations that never reached it come last, by their best return."""
        reached = sum(trial.reached for trial in self.trials)
        seconds = sum(trial.seconds for trial in self.trials)
        return (seconds / reached if reached else math.inf, -statistics.fmean(trial.best for trial in self.trials))

    def summary(self) -> dict[str, Any]:
        times = sorted(trial.seconds if trial.reached else math.inf for trial in self.trials)
        return {
            "name": self.name,
            "runs": len(self.trials),
            "reached": sum(trial.reached for trial in self.trials),
            "expected_seconds": _number(self.score[0]),
            "median_seconds": _number(statistics.median_high(times)),
            "p90_seconds": _number(times[math.ceil(0.9 * len(times)) - 1]),
            "median_steps": statistics.median(trial.steps for trial in self.trials),
            "config": self.config,
        }


def _number(value: float) -> float | None:
    return None if math.isinf(value) else round(value, 4)


def space_of(algorithm: str, env: str) -> dict[str, list[Any]]:
    """Names and values to search for one algorithm and environment."""
    return COMMON | (PPO_SPACE if algorithm == "ppo" else {}) | SPECIAL.get(env, {})


def _possible(config: Mapping[str, Any]) -> bool:
    rollout = config["n_envs"] * config["n_steps"]
    return 64 <= rollout <= LARGEST_ROLLOUT and config.get("minibatch", 1) <= rollout <= 64 * config.get("minibatch", 1)


def sample(space: Mapping[str, Sequence[Any]], rng: random.Random) -> Config:
    """A configuration drawn uniformly from the space."""
    while True:
        config = {name: rng.choice(values) for name, values in space.items()}
        if _possible(config):
            return config


def neighbour(config: Config, space: Mapping[str, Sequence[Any]], rng: random.Random, changes: int) -> Config:
    """`config` with up to `changes` entries moved to a value beside the present one."""
    while True:
        new = dict(config)
        for name in rng.sample(sorted(space), rng.randint(1, changes)):
            values, now = space[name], config.get(name)
            if now in values:
                at = values.index(now) + rng.choice((-2, -1, 1, 2))
                new[name] = values[min(max(at, 0), len(values) - 1)]
            else:
                new[name] = rng.choice(values)
        if new != config and _possible(new):
            return new


def as_preset(config: Config) -> Config:
    """The form presets have: `eval_every` in steps."""
    preset = dict(config)
    rollouts = preset.pop("rollouts_per_eval", None)
    if rollouts is not None:
        preset["eval_every"] = rollouts * preset["n_envs"] * preset["n_steps"]
    return preset


def as_searched(preset: Config, algorithm: str) -> Config:
    """The form a search has: every field present, `rollouts_per_eval` for `eval_every`."""
    defaults = dataclasses.asdict(find_algorithm(algorithm).learner().Config())
    config = defaults | {key: value for key, value in preset.items() if key not in RUN_KEYS}
    config["hidden"] = list(config["hidden"])
    rollout = config["n_envs"] * config["n_steps"]
    config["rollouts_per_eval"] = max(1, round(preset.get("eval_every", rollout) / rollout))
    return config


def run_once(args: argparse.Namespace, config: Config, seed: int) -> Trial:
    """Train with one seed until the target, the last step or the cap."""
    now = time.process_time if args.clock == "cpu" else time.perf_counter
    values = as_preset(config)
    run = {key: values.pop(key) for key in RUN_KEYS if key in values}
    with agent_class(args.algorithm)(args.env, seed=seed, preset="none", threads=args.threads, **values) as agent:
        agent.prepare()
        start = now()

        def within_cap(_: object) -> bool:
            return now() - start < args.cap

        record = agent.learn(
            args.total_steps, target=args.target, eval_every=run.get("eval_every"), callback=within_cap
        )
        seconds = now() - start
    best = max((point.evaluation.mean_return for point in record.evaluations), default=-1e9)
    return Trial(seed, record.reached, seconds, record.steps, best)


def halving(args: argparse.Namespace, candidates: list[Candidate], report: Callable[[str], None]) -> list[Candidate]:
    """Run the rungs; return all candidates, the survivors of the last rung first."""
    alive, out = list(candidates), []
    for rung, n_seeds in enumerate(args.rungs):
        for candidate in alive:
            for seed in range(args.first_seed + len(candidate.trials), args.first_seed + n_seeds):
                candidate.trials.append(run_once(args, candidate.config, seed))
                reached = sum(trial.reached for trial in candidate.trials)
                if len(candidate.trials) >= 3 and not reached:
                    break  # three failures: not worth more
        alive.sort(key=lambda candidate: candidate.score)
        report(f"rung {rung}: {len(alive)} configurations, {n_seeds} seeds each")
        for candidate in alive[:8]:
            row = candidate.summary()
            report(
                f"  {row['name']:>8} {row['reached']}/{row['runs']} expected {row['expected_seconds']} s,"
                f" median {row['median_seconds']}, p90 {row['p90_seconds']}, steps {row['median_steps']:.0f}"
            )
        if rung + 1 < len(args.rungs):
            keep = max(args.least, math.ceil(len(alive) * args.keep))
            kept = [c for i, c in enumerate(alive) if i < keep or c.name == "preset"]
            out[:0] = [c for c in alive if c not in kept]
            alive = kept
    return alive + out


def make_candidates(args: argparse.Namespace) -> list[Candidate]:
    """The shipped preset, the contenders of `--also`, and random configurations or neighbours of one of those."""
    rng = random.Random(args.search_seed)
    space = space_of(args.algorithm, args.env)
    for assignment in args.fix:
        name, _, value = assignment.partition("=")
        space[name] = [json.loads(value)]
    named: dict[str, Config] = {}
    shipped = load_preset(args.algorithm, args.env)
    if shipped:
        named["preset"] = as_searched(shipped, args.algorithm)
    if args.also:
        for name, table in tomllib.loads(args.also.read_text()).items():
            named[name] = as_searched(table, args.algorithm)
    candidates = [Candidate(name, config) for name, config in named.items()]
    seen = list(named.values())
    for i in range(args.configs):
        config = seen[0] if seen else sample(space, rng)
        while config in seen:
            if args.around:
                config = neighbour(named[rng.choice(args.around.split(","))], space, rng, args.changes)
            else:
                config = sample(space, rng)
        seen.append(config)
        candidates.append(Candidate(f"{'near' if args.around else 'random'}{i}", config))
    return candidates


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--target", help="by default the environment's usual one")
    parser.add_argument("--configs", type=int, default=32, help="how many configurations to draw")
    parser.add_argument("--around", help="draw neighbours of these instead: `preset` or names in --also, by commas")
    parser.add_argument("--changes", type=int, default=3, help="most entries a neighbour differs in")
    parser.add_argument("--fix", action="append", default=[], metavar="NAME=JSON", help="hold one entry fixed")
    parser.add_argument("--also", type=Path, help="TOML file with a table per further contender")
    parser.add_argument("--rungs", default="3,8,24", help="seeds per configuration, round by round")
    parser.add_argument("--keep", type=float, default=0.25, help="share of configurations that a round keeps")
    parser.add_argument("--least", type=int, default=3, help="fewest configurations that a round keeps")
    parser.add_argument("--total-steps", type=int, default=200_000)
    parser.add_argument("--cap", type=float, default=3.0, help="seconds after which a run has failed")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--search-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    args.target = args.target or TARGETS[args.env]
    args.rungs = [int(n) for n in args.rungs.split(",")]
    if args.first_seed < FIRST_SEED:
        parser.error(f"--first-seed must be at least {FIRST_SEED}: lower seeds are for reporting")
    return args


def main() -> None:
    args = parse()
    start = time.perf_counter()
    ranked = halving(args, make_candidates(args), lambda line: print(line, flush=True))
    print(f"{sum(len(c.trials) for c in ranked)} runs in {time.perf_counter() - start:.0f} s; the best:")
    for candidate in ranked[:3]:
        row = candidate.summary()
        print(f"{row['name']}: {row['reached']}/{row['runs']}, expected {row['expected_seconds']} s")
        print("  " + json.dumps(as_preset(candidate.config)))
    if args.out:
        search = {key: value for key, value in vars(args).items() if key not in ("out", "also")}
        result = {
            "command": shown_command(sys.argv),
            "search": search,
            "machine": fingerprint().as_dict(),
            "candidates": [c.summary() | {"trials": [dataclasses.asdict(t) for t in c.trials]} for c in ranked],
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
