"""Which library does which job, and in which function here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mileage.profiling.bench.cases import Way


@dataclass(frozen=True)
class Peer:
    """A library at one job."""

    library: str
    modules: tuple[str, ...]
    """What must be importable."""
    home: str
    """Module of this package and function in it that builds the arms."""

    def installed(self) -> bool:
        """Whether the library is there, without importing it."""
        return all(importlib.util.find_spec(name) is not None for name in self.modules)

    def arms(self, params: Mapping[str, Any]) -> list[Way]:
        """Build the library's ways to do the job; none if it cannot do it at this size."""
        module, name = self.home.split(":")
        return list(getattr(importlib.import_module(f"{__package__}.{module}"), name)(**params))


def _peers(home: str, *libraries: str) -> tuple[Peer, ...]:
    return tuple(Peer(name, _MODULES[name], f"{home}_{name.lower().replace('-', '_')}") for name in libraries)


_MODULES = {
    "NumPy": ("numpy",),
    "torch": ("torch",),
    "JAX": ("jax",),
    "rlox": ("rlox",),
    "SB3": ("stable_baselines3",),
    "cpprb": ("cpprb",),
    "tianshou": ("tianshou",),
    "torchrl": ("torchrl", "tensordict"),
    "Gymnasium": ("gymnasium",),
    "gymnax": ("gymnax",),
    "envpool": ("envpool",),
    "rejax": ("rejax",),
}
LIBRARIES = tuple(_MODULES)

# By primitive; NumPy comes first where it serves as the reference of the answers.
PEERS: dict[str, tuple[Peer, ...]] = {
    "gae": _peers("advantages:gae", "NumPy", "torch", "JAX", "rlox", "torchrl"),
    "vtrace": _peers("advantages:vtrace", "NumPy", "torch", "JAX", "rlox", "torchrl"),
    "nstep": _peers("advantages:nstep", "NumPy"),
    "token-kl": _peers("tokens:kl", "NumPy", "torch", "JAX", "rlox"),
    "groups": _peers("tokens:groups", "NumPy", "torch", "JAX", "rlox"),
    "moments": _peers("tokens:moments", "NumPy", "SB3"),
    "replay-push": _peers("replay:push", "rlox", "SB3", "cpprb", "tianshou", "torchrl"),
    "replay-sample": _peers("replay:sample", "rlox", "SB3", "cpprb", "tianshou", "torchrl"),
    "prioritized": _peers("replay:prioritized", "rlox", "cpprb", "tianshou", "torchrl"),
    "env-step": _peers("envs:step", "Gymnasium", "rlox", "gymnax", "envpool"),
    "rollout": _peers("learners:rollout", "SB3"),
    "ppo-update": _peers("learners:ppo", "SB3"),
    "sac-update": _peers("learners:sac", "SB3"),
    "ppo-iteration": _peers("learners:iteration", "SB3", "rejax"),
    "evaluation": _peers("learners:evaluation", "SB3"),
    "mlp": _peers("learners:mlp", "NumPy", "torch", "JAX"),
    "gemm": _peers("learners:gemm", "NumPy", "torch", "JAX"),
    "memory": _peers("learners:memory", "NumPy", "torch"),
}


def torch_threads(threads: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Labels and preparations for torch on one thread and on all of them."""
    import torch

    for n in dict.fromkeys((1, threads)):
        yield f"{n} thread{'s' * (n > 1)}", functools.partial(torch.set_num_threads, n)


def on_jax_device(*arrays: Any) -> list[Any]:
    """Arrays where JAX wants them."""
    import jax

    return [jax.device_put(array) for array in arrays]
