"""The jobs of `mileage bench`: every primitive at the sizes that matter."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from mileage._errors import UnknownNameError
from mileage._records import Record
from mileage.bench.inputs import BATCH
from mileage.bench.ways import Way


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
        module = importlib.import_module(f"mileage.bench.{side}")
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
