"""A published profile of another library, on other hardware, beside ours: the same tables, row by row.

    PYTHONPATH=src python benchmarks/published/rlox_profile.py ppo --out docs/reports/profile-ppo-cartpole.md
    PYTHONPATH=src python benchmarks/published/rlox_profile.py sac --out docs/reports/profile-sac-pendulum.md

Figures: profiling report of rlox, 2026-03-28, macOS on Apple Silicon, Python 3.12, PyTorch 2.10.0. They are what that
report says; times on different machines and networks are not a comparison, shares and counts are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mileage import description
from mileage.measure import PhaseClock
from mileage.profiling import primitives as p
from mileage.profiling.calibration import Calibration
from mileage.profiling.export import markdown
from mileage.profiling.profile import Profile, profile_run
from mileage.profiling.recommended import recommended
from mileage.profiling.report import percent, seconds_with_unit, table
from mileage.tables import Table

ABOUT = (
    "The right column is from the profiling report of rlox, 2026-03-28: macOS on Apple Silicon, Python 3.12, "
    "PyTorch 2.10.0. That is other hardware, and other networks and hyperparameters where they are not stated: shares "
    "and counts can be set side by side, times only with that in mind."
)
LABEL = "rlox on Apple Silicon (other hardware)"
# What the published report profiled, and the options that come closest to it.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {"steps": 50_000, "preset": "none", "minibatch": 512}),
    "sac": ("Pendulum-v1", {"steps": 20_000, "preset": "none"}),
}


def beside(profile: Profile) -> list[Table]:
    """Every table of the published report that has to do with this workload, with our figures; [] for others."""
    kind = (profile.workload["algorithm"], profile.workload["env"])
    makers = _WORKLOADS.get(kind)
    if makers is None or profile.calibration is None:
        return []
    return [make(profile, profile.calibration) for make in makers]


def section(profile: Profile) -> str:
    """The tables as a section of a Markdown page."""
    parts = ["## Beside a published profile", ABOUT]
    for each in beside(profile):
        parts += [f"### {each.title}", each.markdown()]
    return "\n\n".join(parts) + "\n"


def _table(key: str, title: str, rows: Sequence[tuple[str, str, str]], note: str = "", first: str = "metric") -> Table:
    return table(f"published_{key}", title, (first, "ours, this machine", LABEL), rows, note)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _end_to_end_ppo(profile: Profile, found: Calibration) -> Table:
    run = profile.run
    init = run.phases.get("init", 0.0) + run.phases.get("compile", 0.0)
    rows = [
        ("Total wall time", f"{run.wall_seconds:.2f} s", "2.66 s"),
        ("Init time (ours: process start, imports, loading kernels)", f"{init:.2f} s", "0.43 s"),
        ("Training time (ours: with held-out evaluation)", f"{run.wall_seconds - init:.2f} s", "2.23 s"),
        ("Steps per second, whole run", _rate(run.steps_per_second), "18,796"),
        ("Steps per second, steady", _rate(run.steady_steps_per_second), "–"),
    ]
    return _table("end_to_end", "End-to-end timing, PPO on CartPole-v1, 50,000 timesteps", rows)


def _phases_ppo(profile: Profile, found: Calibration) -> Table:
    run = profile.run
    groups = {
        "env_step (collect)": (("rollout", "inference", "env_step"), "1.479 s (66.4 %)"),
        "gradient_update (SGD)": (("learn",), "0.674 s (30.2 %)"),
        "gae_compute": (("advantage",), "0.076 s (3.4 %)"),
    }
    tracked = {name: sum(run.phases.get(each, 0.0) for each in phases) for name, (phases, _) in groups.items()}
    whole = sum(tracked.values()) or 1.0
    rows = [(name, f"{value:.3f} s ({percent(value / whole)})", groups[name][1]) for name, value in tracked.items()]
    rows.append(("Total tracked", f"{whole:.3f} s (100.0 %)", "2.229 s (100 %)"))
    return _table("phases", "Phase breakdown, PPO", rows, "Theirs leave out evaluation, start-up and logging.", "phase")


def _end_to_end_sac(profile: Profile, found: Calibration) -> Table:
    run, config = profile.run, profile.workload["config"]
    init = run.phases.get("init", 0.0) + run.phases.get("compile", 0.0)
    starts = int(config["learning_starts"])
    rows = [
        ("Total wall time", f"{run.wall_seconds:.2f} s", "94.42 s"),
        ("Init time (ours: process start, imports, loading kernels)", f"{init:.2f} s", "0.29 s"),
        ("Steps per second, whole run", _rate(run.steps_per_second), "212"),
        ("Steps per second, steady", _rate(run.steady_steps_per_second), "–"),
        ("Learning starts", f"{starts:,} steps", "1,000 steps"),
        ("Effective training steps", f"{max(0, run.env_steps - starts):,}", "19,000"),
    ]
    return _table("end_to_end", "End-to-end timing, SAC on Pendulum-v1, 20,000 timesteps", rows)


def _measured(found: Calibration, rows: Sequence[tuple[str, str | None, str]]) -> list[tuple[str, str, str]]:
    """Rows of single operations: their name, ours by its name in `primitives` (None: we have no such step), theirs."""
    made = []
    for name, ours, theirs in rows:
        value = found.primitives.get(ours) if ours is not None else None
        made.append((name, "none" if ours is None else "–" if value is None else seconds_with_unit(value), theirs))
    return made


def _primitives(profile: Profile, found: Calibration) -> Table:
    rows = _measured(
        found,
        [
            ("VecEnv.step_all (64 envs)", p.STEP_MANY, "48.4 µs"),
            ("ReplayBuffer.push (single)", p.PUSH_ONE, "0.1 µs"),
            ("ReplayBuffer.push_batch (8)", p.PUSH_EIGHT, "0.3 µs"),
            ("ReplayBuffer.sample (256)", p.SAMPLE, "3.7 µs"),
            ("GAE, batched (8 × 128)", p.GAE, "34.7 µs"),
            ("Token KL, Schulman (32 × 2048)", p.TOKEN_KL, "60.6 µs"),
        ],
    )
    note = "Ours are called from Python, the call included, with the observation of this workload."
    return _table("primitives", "Primitives", rows, note, "operation")


def _ppo_operations(profile: Profile, found: Calibration) -> Table:
    rows = _measured(
        found,
        [
            ("policy: action and log-probability (own number of envs; theirs 8)", description.ACT, "123 µs"),
            ("policy: value (own number; theirs 8)", description.VALUE, "19 µs"),
            ("environments step once (own number; theirs 8)", p.STEP_OWN, "96 µs"),
            ("tensor conversion", None, "2 µs"),
        ],
    )
    note = "Our action call computes values too; in a run neither is called: the rollout is one kernel."
    return _table("ppo_operations", "Operations of PPO's collection, per step", rows, note, "operation")


def _sac_operations(profile: Profile, found: Calibration) -> Table:
    rows = _measured(
        found,
        [
            ("environment step (Pendulum)", p.STEP_OWN, "15.2 µs"),
            ("actor sample (single observation)", description.ACT, "49.8 µs"),
            ("replay push", p.PUSH_ONE, "0.5 µs"),
            ("replay sample (256)", p.SAMPLE, "4.0 µs"),
            ("full update (one gradient step)", description.UPDATE, "4,790 µs"),
        ],
    )
    return _table("sac_operations", "Operations of SAC, single environment", rows, "", "operation")


def _sac_update(profile: Profile, found: Calibration) -> Table:
    stages = dict(found.update_stages.stages) if found.update_stages is not None else {}
    sample = found.primitives.get(p.SAMPLE, 0.0)
    groups = {
        "Actor forward, backward, step": (("actor", "actor optimizer"), "2,070 µs (44.0 %)"),
        "Critic forward, backward, step (both)": (("critic", "critic optimizer"), "1,683 µs (35.8 %)"),
        "Target Q (no gradient)": (("target",), "709 µs (15.1 %)"),
        "Polyak soft update": (("polyak",), "197 µs (4.2 %)"),
        "Alpha update": (("temperature",), "39 µs (0.8 %)"),
    }
    ours = {name: sum(stages.pop(each, 0.0) for each in parts) for name, (parts, _) in groups.items()}
    ours["Sample and tensor conversion"] = sample
    theirs = {name: published for name, (_, published) in groups.items()} | {
        "Sample and tensor conversion": "8 µs (0.2 %)",
        "Loop and barriers": "–",
    }
    ours["Loop and barriers"] = sum(stages.values())
    whole = sum(ours.values()) or 1.0
    rows = [
        (name, f"{seconds_with_unit(value)} ({percent(value / whole)})", theirs[name]) for name, value in ours.items()
    ]
    rows.append(("Total", f"{seconds_with_unit(whole)} (100.0 %)", "4,708 µs (100 %)"))
    return _table("sac_update", "Inside one SAC update", rows, "", "component")


def _crossings(profile: Profile, found: Calibration, theirs: Mapping[str, str], title: str, note: str) -> Table:
    calls = [call for cost in found.costs for call in cost.calls]
    rows = [(call.label, f"{call.per_iteration:g} × {seconds_with_unit(call.seconds_each)}", "") for call in calls]
    count = sum(call.per_iteration for call in calls)
    rows += [(name, "", published) for name, published in theirs.items()]
    whole = sum(cost.seconds for cost in found.costs) or 1.0
    share = count * found.limits.crossing_seconds / whole
    rows.append(
        (
            "Total crossings Python ↔ native",
            f"{count:g} at {seconds_with_unit(found.limits.crossing_seconds)} ({percent(share)})",
            note,
        )
    )
    return _table("crossings", title, rows, "", "call")


def _ppo_crossings(profile: Profile, found: Calibration) -> Table:
    theirs = {
        "VecEnv.step_all": "128",
        "policy.get_action_and_logprob": "128 (PyTorch)",
        "policy.get_value": "129 (PyTorch)",
        "compute_gae_batched": "1",
        "Total Rust FFI calls": "129",
    }
    config = profile.workload["config"]
    title = f"Crossings per PPO iteration (ours {config['n_envs']} envs × {config['n_steps']}, theirs 8 × 128)"
    return _crossings(profile, found, theirs, title, "~129 at ~2 µs")


def _sac_crossings(profile: Profile, found: Calibration) -> Table:
    theirs = {"gym.env.step": "1 (Python)", "ReplayBuffer.push": "1", "ReplayBuffer.sample": "1"}
    return _crossings(profile, found, theirs, "Crossings per SAC training step", "2 (push and sample)")


def _layers(found: Calibration, theirs: Mapping[str, str], total: str, title: str) -> Table:
    split = found.layers
    ours = {
        "native kernels": "native",
        "matrix products (BLAS)": "BLAS",
        "torch": "torch",
        "environments": "environment",
        "Python": "Python",
        "waiting": "waiting",
    }
    whole = split.total or 1.0
    rows = []
    for name, layer in ours.items():
        value = split.rollout.get(layer, 0.0) + split.update.get(layer, 0.0)
        rows.append((name, f"{seconds_with_unit(value)} ({percent(value / whole)})", ""))
    rows += [(name, "", published) for name, published in theirs.items()]
    rows.append(("Total", seconds_with_unit(whole), total))
    return _table("layers", title, rows, "", "layer")


def _ppo_layers(profile: Profile, found: Calibration) -> Table:
    theirs = {
        "Rust (VecEnv.step_all + GAE)": "12.3 ms (19.6 %)",
        "PyTorch (policy forward, no grad)": "18.2 ms (29.0 %)",
        "PyTorch (SGD: forward, backward, step)": "28.5 ms (45.5 %)",
        "Python (tensor conversions, bookkeeping)": "3.7 ms (5.9 %)",
    }
    config = profile.workload["config"]
    steps = config["n_envs"] * config["n_steps"]
    title = f"Layers per PPO rollout and update (ours {steps:,} timesteps, theirs 1,024)"
    return _layers(found, theirs, "62.7 ms", title)


def _sac_layers(profile: Profile, found: Calibration) -> Table:
    theirs = {
        "Rust (buffer push + sample)": "4.5 µs (0.1 %)",
        "Python Gymnasium (env.step)": "15.2 µs (0.3 %)",
        "PyTorch inference (actor.sample)": "49.8 µs (1.0 %)",
        "PyTorch training (_update)": "4,790 µs (98.6 %)",
    }
    return _layers(found, theirs, "~4,860 µs", "Layers per SAC training step")


_RECOMMENDED = {
    "one forward pass for actor and critic when collecting": "high: ~10 % of PPO's wall",
    "torch.compile for acting": "high: ~15–25 % of PPO's wall, learning included",
    "torch.compile for learning": "high: ~20–30 % of SAC's wall",
    "many steps in one native call when collecting": "high: ~5–10 % of PPO's wall",
    "targets follow in one call (polyak)": "medium: ~3 % of a SAC update",
    "collect with several environments": "medium: marginal for SAC at 20k steps",
    "choose actions without lists of Python": "medium: < 1 % of PPO's wall",
    "allocate what is stored once": "medium: ~2–3 % of PPO's collection",
    "gradient steps in native code": "low: diminishing returns for PPO",
    "a GPU": "low: would transform the profile",
    "more environments, fewer steps each": "low: a trade-off for PPO",
}


def _recommendations(profile: Profile, found: Calibration) -> Table:
    rows = [
        (each.what, f"{each.rank}: {each.estimate} ({each.why})", _RECOMMENDED[each.what])
        for each in recommended(profile.run, profile.workload, found)
    ]
    return _table("recommendations", "Recommendations", rows, "", "recommendation")


Maker = Callable[[Profile, Calibration], Table]
_WORKLOADS: dict[tuple[str, str], tuple[Maker, ...]] = {
    ("ppo", "CartPole-v1"): (
        _end_to_end_ppo, _phases_ppo, _primitives, _ppo_operations, _ppo_crossings, _ppo_layers, _recommendations,
    ),
    ("sac", "Pendulum-v1"): (
        _end_to_end_sac, _primitives, _sac_operations, _sac_update, _sac_crossings, _sac_layers, _recommendations,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=RUNS)
    parser.add_argument("--out", type=Path, required=True, help="file for the report")
    options = parser.parse_args()
    env, words = RUNS[options.algorithm]
    found = profile_run(options.algorithm, env, clock=PhaseClock.for_run(), **words)
    options.out.write_text(f"{markdown(found)}\n{section(found)}")
    print(found.verdict, f"written to {options.out}", sep="\n")


if __name__ == "__main__":
    main()
