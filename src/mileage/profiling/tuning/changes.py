"""Changes that may make a run cheaper: when each applies, what it changes, and what a profile would expect of it.

A fix is a function from one setup to another, so that fixes can be stacked and applied again. Nothing here claims that
a fix helps: trying it finds that out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mileage.measure import Phase
from mileage.profiling.model import Finding, amdahl
from mileage.profiling.tuning.runs import Setup

# Evaluations should cost no more than this share of the rest.
_EVAL_SHARE = 0.05
# An optimizer step on few samples costs as much as one on about this many (small networks, native update).
_STEP_OVERHEAD_SAMPLES = 32
_MOST_MINIBATCH = 256
_MOST_ENVS = 32
_FEWEST_STEPS = 16
_WIDE = 64
_LARGE_BUFFER = 10_000


@dataclass(frozen=True)
class FixEvidence:
    """What is known when fixes are chosen: where a run of the baseline spent its time, and the machine."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the wall-clock by phase, 0 to 1."""
    cores: int = 1
    torch: bool = False
    """Whether the torch back end is installed."""
    findings: tuple[Finding, ...] = ()
    """Of the profiler; where one names a fix, its estimate counts."""

    def share(self, *phases: str) -> float:
        """Share of the wall-clock in `phases` together."""
        return sum(self.shares.get(phase, 0.0) for phase in phases)

    @classmethod
    def of(cls, phases: Mapping[str, float], cores: int, findings: Iterable[Finding] = ()) -> FixEvidence:
        """From the seconds per phase of a run on `cores` cores."""
        wall = sum(phases.values()) or 1.0
        shares = {name: seconds / wall for name, seconds in phases.items()}
        torch = importlib.util.find_spec("torch") is not None
        return cls(shares, cores, torch, tuple(findings))


Change = Callable[[Setup, FixEvidence], Setup | None]
Expectation = Callable[[Setup, Setup, FixEvidence], float | None]


@dataclass(frozen=True)
class Fix:
    """One change."""

    name: str
    """As `Finding.fix` and `--only` spell it."""
    title: str
    """What it changes, in a few words."""
    change: Change
    """The changed setup, or None where the fix does not apply."""
    estimate: Expectation = lambda before, after, evidence: None
    """Share of the wall-clock that a profile would expect to be saved; None where it cannot tell."""
    prior: float = 0.1
    """Where there is no estimate, the fix is tried as if this were it."""
    same_learning: bool = False
    """Whether a run learns the same, step for step, so that runs with the same seed differ in nothing but time."""
    leap: bool = False
    """Whether it is one of those that are tried all at once, because it seldom does harm where it applies."""

    def apply(self, setup: Setup, evidence: FixEvidence) -> Setup | None:
        """The changed setup, or None where the fix does not apply or changes nothing."""
        changed = self.change(setup, evidence)
        return None if changed is None or changed.key == setup.key else changed

    def expected_gain(self, before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
        """The profiler's estimate if one of its findings names this fix, otherwise the fix's own."""
        named = [finding.estimated_gain for finding in evidence.findings if finding.fix == self.name]
        return max(named) if named else self.estimate(before, after, evidence)


def _is_off_policy(setup: Setup) -> bool:
    return "train_every" in setup.config


# How the machine is used


def _threads_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    share = evidence.share(Phase.ROLLOUT, Phase.LEARN, Phase.EVAL)
    # More threads than cores only wait for each other.
    useful = min(before.threads, evidence.cores)
    return amdahl(share, after.threads / useful) if after.threads > useful else None


def _native(setup: Setup, evidence: FixEvidence) -> Setup | None:
    plain = setup.policy is None or setup.policy in ("mlp", "MlpPolicy")
    return setup.but(backend="native", compile=False) if setup.backend == "torch" and plain else None


def _torch(setup: Setup, evidence: FixEvidence) -> Setup | None:
    # Below this width torch's dispatch costs more than the arithmetic that it would do faster.
    wide = max(setup.config.get("hidden", (0,))) >= 512
    return setup.but(backend="torch") if setup.backend == "native" and evidence.torch and wide else None


def _compiled(setup: Setup, evidence: FixEvidence) -> Setup | None:
    return setup.but(compile=True) if setup.backend == "torch" and not setup.compile else None


def _processes(setup: Setup, evidence: FixEvidence) -> Setup | None:
    several = setup.config["n_envs"] > 1 and evidence.cores > 1
    return setup.but(processes=True) if not setup.native_env and several else None


def _processes_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    return amdahl(evidence.share(Phase.ENV_STEP, Phase.ENV_RESET), min(evidence.cores, before.config["n_envs"]))


def _rarer_evaluations(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """So rare that evaluations take about 5 % of the rest of the time, and no rarer than 10 in a run."""
    share = evidence.share(Phase.EVAL)
    if share <= _EVAL_SHARE:
        return None
    now = max(setup.eval_every, setup.steps_per_iteration)
    wanted = now * share / (1.0 - min(share, 0.99)) / _EVAL_SHARE
    every = int(min(wanted, max(setup.total_steps // 10, now)))
    return setup.but(eval_every=_rounded(every)) if every > now else None


def _evaluations_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    now = max(before.eval_every, before.steps_per_iteration)
    return amdahl(evidence.share(Phase.EVAL), after.eval_every / now)


def _finer_evaluations(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """Where looking costs little, a target met long ago is noticed late."""
    cheap = evidence.share(Phase.EVAL) < _EVAL_SHARE / 2
    return setup.but(eval_every=max(setup.eval_every // 4, 1)) if cheap else None


# How much is done at once


def _more_envs(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """Four times the environments, and the same batch and the same updates per step as before."""
    config = setup.config
    n_envs = config["n_envs"]
    if n_envs * 4 > _MOST_ENVS:
        return None
    if _is_off_policy(setup):
        return setup.but(n_envs=n_envs * 4, gradient_steps=config["gradient_steps"] * 4)
    n_steps = config["n_steps"] // 4
    return setup.but(n_envs=n_envs * 4, n_steps=n_steps) if n_steps >= _FEWEST_STEPS else None


def _more_envs_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    collecting = (Phase.ENV_STEP, Phase.STORE, Phase.INFERENCE, Phase.ROLLOUT, Phase.LOG, Phase.OTHER)
    return amdahl(evidence.share(*collecting), 4.0)


def _larger_minibatch(setup: Setup, evidence: FixEvidence) -> Setup | None:
    now = setup.config.get("minibatch")
    if now is None or now >= _MOST_MINIBATCH:
        return None
    batch = setup.config["n_envs"] * setup.config["n_steps"]
    larger = min(max(now * 4, 64), _MOST_MINIBATCH, batch)
    return setup.but(minibatch=larger) if larger > now else None


def _minibatch_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    """What the same number of samples costs in larger pieces."""
    now, then = (1 + _STEP_OVERHEAD_SAMPLES / setup.config["minibatch"] for setup in (before, after))
    return amdahl(evidence.share(Phase.LEARN), now / then)


def _usual_batch(setup: Setup, evidence: FixEvidence) -> Setup | None:
    if not _is_off_policy(setup) or setup.config["batch"] >= _MOST_MINIBATCH:
        return None
    return setup.but(batch=min(setup.config["batch"] * 4, _MOST_MINIBATCH))


def _smaller_batch(setup: Setup, evidence: FixEvidence) -> Setup | None:
    if not _is_off_policy(setup) or setup.config["batch"] < 2 * _WIDE:
        return None
    return setup.but(batch=setup.config["batch"] // 2)


def _smaller_batch_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    ratio = (before.config["batch"] + _STEP_OVERHEAD_SAMPLES) / (after.config["batch"] + _STEP_OVERHEAD_SAMPLES)
    return amdahl(evidence.share(Phase.LEARN), ratio)


def _usual_rollout(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """Rollouts of 1,024 to 4,096 samples; outside, updates are noisy or rare."""
    if _is_off_policy(setup) or "epochs" not in setup.config:
        return None
    n_envs, n_steps = setup.config["n_envs"], setup.config["n_steps"]
    if n_envs * n_steps < 1024:
        return setup.but(n_steps=-(-1024 // n_envs))
    return setup.but(n_steps=max(4096 // n_envs, 1)) if n_envs * n_steps > 4096 else None


# How it learns


def _preset(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """The hyperparameters that mileage ships for this algorithm and environment, instead of the user's."""
    from mileage.algorithms.registry import find_algorithm
    from mileage.training.preset_files import MACHINE_KEYS, RUN_KEYS, load_preset

    known = load_preset(setup.algorithm, setup.env_id)
    if not known:
        return None
    run = {name: known.pop(name) for name in (*RUN_KEYS, *MACHINE_KEYS) if name in known}
    config: Any = find_algorithm(setup.algorithm).learner().Config(**known)
    return setup.but(config=dict(vars(config)), eval_every=run.get("eval_every", setup.eval_every))


def _rate(setup: Setup, factor: float) -> Setup | None:
    """Another learning rate, unless it would leave the range in which one is usual."""
    rate = setup.config["learning_rate"] * factor
    usual = rate <= 1e-2 if factor > 1 else rate >= 1e-4
    return setup.but(learning_rate=_rounded(rate)) if usual else None


def _updates_per_step(setup: Setup) -> float:
    config = setup.config
    return float(config["gradient_steps"] / (config["train_every"] * config["n_envs"]))


def _more_updates(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """Up to one update per environment step: four times as many, or as many as it takes."""
    if not _is_off_policy(setup) or _updates_per_step(setup) >= 1.0:
        return None
    return setup.but(gradient_steps=min(max(setup.config["gradient_steps"], 1) * 4, setup.steps_per_iteration))


def _fewer_updates(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """Half the updates per environment step."""
    if not _is_off_policy(setup) or _updates_per_step(setup) < 0.25:
        return None
    config = setup.config
    if config["gradient_steps"] >= 2:
        return setup.but(gradient_steps=config["gradient_steps"] // 2)
    return setup.but(train_every=config["train_every"] * 2)


def _fewer_updates_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    return amdahl(evidence.share(Phase.LEARN), _updates_per_step(before) / _updates_per_step(after))


def _earlier_start(setup: Setup, evidence: FixEvidence) -> Setup | None:
    starts = setup.config.get("learning_starts", 0)
    least = max(setup.config.get("batch", 0), 500)
    return setup.but(learning_starts=max(starts // 4, least)) if starts > least else None


def _smaller_network(setup: Setup, evidence: FixEvidence) -> Setup | None:
    hidden = setup.config.get("hidden", ())
    if not hidden or max(hidden) <= _WIDE:
        return None
    return setup.but(hidden=tuple(max(width // 2, min(width, _WIDE)) for width in hidden))


def _smaller_network_gain(before: Setup, after: Setup, evidence: FixEvidence) -> float | None:
    ratio = (max(before.config["hidden"]) / max(after.config["hidden"])) ** 2
    return amdahl(evidence.share(Phase.LEARN, Phase.INFERENCE, Phase.ROLLOUT), ratio)


def _smaller_buffer(setup: Setup, evidence: FixEvidence) -> Setup | None:
    """A tenth of the replay buffer, where storing takes long."""
    capacity = setup.config.get("capacity", 0)
    if evidence.share(Phase.STORE) < 2 * _EVAL_SHARE or capacity < _LARGE_BUFFER:
        return None
    return setup.but(capacity=max(capacity // 10, 16 * setup.config["batch"]))


def _shorter_horizon(setup: Setup, evidence: FixEvidence) -> Setup | None:
    gamma = setup.config["gamma"]
    return setup.but(gamma=0.95) if gamma > 0.97 else setup.but(gamma=0.99) if gamma < 0.9 else None


def _usual_epochs(setup: Setup, evidence: FixEvidence) -> Setup | None:
    epochs = setup.config.get("epochs")
    if epochs is None:
        return None
    return setup.but(epochs=epochs * 2) if epochs <= 5 else setup.but(epochs=epochs // 2) if epochs > 10 else None


def _faster_targets(setup: Setup, evidence: FixEvidence) -> Setup | None:
    tau = setup.config.get("tau", 1.0)
    return setup.but(tau=_rounded(tau * 2)) if tau <= 0.01 else None


def _rounded(value: float) -> Any:
    """To two significant digits, as a person would write it."""
    return type(value)(float(f"{value:.2g}"))


FIXES: tuple[Fix, ...] = (
    Fix("eval_every", "evaluations as rare as they must be", _rarer_evaluations, _evaluations_gain,
        same_learning=True, leap=True),
    Fix("checkpoint_every", "checkpoints at the end only",
        lambda setup, _: setup.but(checkpoint_every=0) if setup.checkpoint_every else None,
        same_learning=True, leap=True),
    Fix("threads", "all cores", lambda setup, evidence: setup.but(threads=evidence.cores), _threads_gain,
        same_learning=True, leap=True),
    Fix("one_thread", "one thread", lambda setup, _: setup.but(threads=1), same_learning=True),
    Fix("backend_native", "native back end, forward passes fused into the rollout", _native, leap=True),
    Fix("backend_torch", "torch back end", _torch),
    Fix("torch_compile", "torch.compile", _compiled),
    Fix("processes", "a process per environment", _processes, _processes_gain, same_learning=True),
    Fix("n_envs", "4 × the environments, batch and updates per step kept", _more_envs, _more_envs_gain, leap=True),
    Fix("minibatch", "larger minibatches", _larger_minibatch, _minibatch_gain, leap=True),
    Fix("batch", "larger batches", _usual_batch),
    # Tuned for nothing but the time to target: the first thing to try where it exists.
    Fix("preset", "the shipped preset of the environment", _preset, prior=0.6),
    Fix("update_ratio", "more updates per step", _more_updates, leap=True),
    Fix("learning_rate", "learning rate × 4", lambda setup, _: _rate(setup, 4.0), leap=True),
    Fix("hidden", "narrower networks", _smaller_network, _smaller_network_gain, leap=True),
    Fix("fewer_updates", "half the updates per step", _fewer_updates, _fewer_updates_gain),
    Fix("learning_starts", "learning starts earlier", _earlier_start, leap=True),
    Fix("gamma", "another discount", _shorter_horizon),
    Fix("n_steps", "rollouts of the usual size", _usual_rollout),
    Fix("normalise_rewards", "scaled rewards", lambda setup, _: (
        setup.but(normalise_rewards=True) if setup.config.get("normalise_rewards") is False else None)),
    Fix("epochs", "a usual number of epochs", _usual_epochs),
    Fix("tau", "faster target networks", _faster_targets),
    Fix("smaller_batch", "half the batch", _smaller_batch, _smaller_batch_gain),
    Fix("capacity", "a replay buffer that caches can hold", _smaller_buffer),
    Fix("eval_often", "evaluations 4 × as often", _finer_evaluations, same_learning=True),
    Fix("lower_rate", "learning rate ÷ 4", lambda setup, _: _rate(setup, 0.25)),
)  # fmt: skip
"""Every fix, in the order in which they are tried where nothing speaks for one of them."""

NOT_TRIED = {
    "warmup": "compiles kernels ahead; runs of an experiment have them compiled already",
    "episodes": "changes the exam, which all arms must sit alike",
}
"""What a finding may suggest and an experiment cannot measure, with the reason."""
