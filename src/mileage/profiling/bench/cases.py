"""The jobs of `mileage bench`: every primitive at the sizes that matter, its inputs, and ways to do it."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mileage.errors import UnknownNameError
from mileage.records import Record
from mileage.types import F32, I64, Array

# --- The inputs of the jobs: drawn from fixed seeds, so that every process works on the same numbers ---
GAMMA, LAMBDA = 0.99, 0.95
BATCH = 256
ACTION_ROWS = 64


def rollout(n_envs: int, horizon: int) -> dict[str, Array]:
    """Arrays (T, N) of a rollout and its last values (N,)."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> F32:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "log_ratios": floats(horizon, n_envs) * np.float32(0.3),
        "rewards": floats(horizon, n_envs),
        "values": floats(horizon, n_envs),
        "terminated": rng.random((horizon, n_envs)) < 0.02,
        "last_values": floats(n_envs),
    }


def plain_rollout(n_envs: int, horizon: int) -> tuple[Array, ...]:
    """Rewards, values, terminated, last values."""
    return tuple(rollout(n_envs, horizon).values())[1:]


def log_probs(rows: int, length: int) -> tuple[F32, F32]:
    """Two sets of log-probabilities (B, L) float32, each row a distribution."""
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(length) * 5.0, rows)).astype(np.float32) for _ in range(2))
    return p, q


def rewards(groups: int, size: int) -> F32:
    """Rewards (G, K) float32 of answers."""
    return np.random.default_rng(0).normal(size=(groups, size)).astype(np.float32)


def batch(rows: int, width: int) -> F32:
    """Samples (B, D) float32."""
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def actions(n_envs: int) -> I64:
    """Random CartPole actions (ACTION_ROWS, N) int64."""
    return np.random.default_rng(0).integers(0, 2, (ACTION_ROWS, n_envs))


def transitions(n: int, size: int, dtype: str = "float32") -> dict[str, Array]:
    """One transition of each of `n` environments with observations of `size` numbers."""
    rng = np.random.default_rng(0)
    return {
        "obs": (rng.random((n, size)) * 200).astype(dtype),
        "next_obs": (rng.random((n, size)) * 200).astype(dtype),
        "actions": rng.random((n, 1)).astype(np.float32),
        "rewards": rng.random(n).astype(np.float32),
        "flags": np.zeros(n, np.bool_),
    }


def priorities() -> list[F32]:
    """New priorities (BATCH,) float32 for many updates."""
    rng = np.random.default_rng(0)
    return [rng.random(BATCH).astype(np.float32) + 0.01 for _ in range(64)]


def layers(sizes: list[int]) -> list[tuple[F32, F32]]:
    """Weights (I, O) and biases (O,) float32 of an MLP."""
    rng = np.random.default_rng(0)
    kind = np.float32
    pairs = itertools.pairwise(sizes)
    return [(rng.normal(size=(i, o)).astype(kind) / kind(i**0.5), np.zeros(o, kind)) for i, o in pairs]


# --- What a way to do a job is ---
# Answers in float32 by different orders of summation.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Way:
    """One way a library can do a job. Several of a library are tried, and the fastest stands for it."""

    run: Callable[[], object]
    units: int = 1
    """How many times a call does the job."""
    answer: Callable[[Any], Any] | None = None
    """Turns what `run` returns into arrays to be checked; None where there is nothing to compare."""
    label: str = ""
    """What sets this way apart from the library's others, e.g. "2 threads"."""
    prepare: Callable[[], object] | None = None
    """What to do before each sample, untimed."""


def in_python(step: Callable[[Any], Any], actions: Any) -> Way:
    """Call `step` from Python for each row of actions, as a training loop does."""
    rows = list(actions)

    def run() -> None:
        for row in rows:
            step(row)

    return Way(run, units=len(rows))


def same(got: Any, want: Any) -> bool:
    """Whether two answers, each an array or a tuple of arrays, agree to float32 accuracy."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True)
    return all(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE) for one, other in pairs)


@dataclass(frozen=True)
class Case:
    """One primitive at one size."""

    primitive: str
    title: str
    params: Record = field(hash=False)
    work: float
    """How much of `unit` the job does."""
    unit: str
    heavy: bool = False
    """Left out by `--quick`."""

    def own(self, threads: int) -> Way:
        """Build mileage's side; compiles kernels that are not compiled yet."""
        return self._built("own", threads)

    def plain(self, threads: int) -> Way:
        """Build NumPy's side of a job that has an answer."""
        return self._built("plain", threads)

    def _built(self, side: str, threads: int) -> Way:
        module = importlib.import_module(f"mileage.profiling.bench.{side}")
        way: Way = getattr(module, self.primitive.replace("-", "_"))(**self.params, threads=threads)
        return way


def _rollouts(primitive: str, name: str) -> list[Case]:
    sizes = ((8, 128), (64, 128), (256, 2048))
    return [Case(primitive, f"{name} {n}×{t}", {"n_envs": n, "horizon": t}, n * t, "steps") for n, t in sizes]


_PPO = {"n_envs": 8, "n_steps": 128, "minibatch": 256, "epochs": 4}
_REPLAY = {"rows": 100_032, "n": 8, "size": 4}
_MLP = [4, 64, 64, 2]


def _mlp_flops(rows: int) -> float:
    return 2.0 * rows * sum(a * b for a, b in itertools.pairwise(_MLP))


CASES: tuple[Case, ...] = (
    *_rollouts("gae", "GAE"),
    *_rollouts("vtrace", "V-trace"),
    Case("nstep", "n-step returns 64×128, n = 5", {"n_envs": 64, "horizon": 128, "n": 5}, 64 * 128, "steps"),
    *(
        Case("token-kl", f"token KL 32×2048 {e}", {"rows": 32, "length": 2048, "estimator": e}, 32 * 2048, "tokens")
        for e in ("exact", "k3")
    ),
    Case("groups", "group advantages 64×8", {"groups": 64, "size": 8}, 64 * 8, "answers"),
    Case("moments", "running moments 256×8", {"rows": 256, "width": 8}, 256, "samples"),
    Case("replay-push", "replay push, 8 envs", _REPLAY, 8, "transitions"),
    Case("replay-sample", "replay sample 256", _REPLAY, BATCH, "transitions"),
    Case("prioritized", "prioritized sample + update 256, of 100,000", {"entries": 100_000}, BATCH, "transitions"),
    Case("prioritized", "prioritized sample + update 256, of 1,000,000", {"entries": 1_000_000}, BATCH, "transitions",
         heavy=True),
    *(Case("env-step", f"CartPole step, {n} envs", {"n_envs": n}, n, "steps") for n in (8, 64, 1024)),
    Case("rollout", "rollout 8×128, CartPole", {"n_envs": 8, "n_steps": 128}, 1024, "steps"),
    Case("ppo-update", "PPO update 8×128, 4 epochs", _PPO, 4096, "samples"),
    Case("ppo-iteration", "PPO rollout + update 8×128", _PPO, 1024, "steps"),
    Case("sac-update", "SAC update, 256×256, batch 256", {"width": 256, "batch": 256}, 256, "samples"),
    Case("evaluation", "evaluation, 100 episodes", {"episodes": 100}, 100, "episodes"),
    Case("mlp", "MLP forward 256 × 4-64-64-2", {"rows": 256, "sizes": _MLP}, _mlp_flops(256), "FLOP"),
    Case("gemm", "limit: GEMM 1024", {"size": 1024}, 2.0 * 1024**3, "FLOP"),
    Case("memory", "limit: memory copy 128 MiB", {"mib": 128}, 2.0 * 128 * 2**20, "bytes"),
    Case("phase-event", "ledger phase event", {}, 1, "events"),
)  # fmt: skip


@functools.cache
def primitives() -> tuple[str, ...]:
    """Names of all primitives, in order."""
    return tuple(dict.fromkeys(case.primitive for case in CASES))


def chosen(names: Sequence[str], quick: bool = False) -> tuple[Case, ...]:
    """The cases of the primitives called `names`, or of all."""
    for name in names:
        if name not in primitives():
            raise UnknownNameError("primitive", name, primitives())
    return tuple(case for case in CASES if (not names or case.primitive in names) and not (quick and case.heavy))
