"""Memory of a run: the highest resident size seen in every phase, and what its buffers should and do take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mileage.meter import PhaseClock, PhaseTimes, ResourceSampler

_MIB = 2**20
# Share of a core that readings may take: some ten a second, twice as many as a recorded run makes. Each wakes a thread
# beside a training that keeps all cores busy, which costs that training more than the reading itself.
_BUDGET = 0.002
_MOST_HISTORY = 200


class PhaseMemory:
    """Keeps the highest resident memory of every phase, as the sampler that a recorded run has anyway reads it.

    It also notes the clock at every reading, so that the second half of a run can be told from the first.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self.sampler = ResourceSampler(budget=_BUDGET, observe=self._note)
        """To be started and stopped by whoever records the run."""
        self.peaks_mib: dict[str, float] = {}
        """Highest resident memory in MiB by phase; a phase too short to be met has none."""
        self.history: list[PhaseTimes] = []
        """The clock at some instants of the run, in their order."""

    def look(self, phase: str) -> None:
        """Read now, on the calling thread, for `phase`: for one that is over before the sampler would look."""
        rss = self.sampler.rss_bytes()
        if rss is not None:
            self._keep(phase, rss)

    def _note(self, rss: int) -> None:
        self._keep(self._clock.current, rss)
        self.history.append(self._clock.times())
        if len(self.history) >= _MOST_HISTORY:
            self.history = self.history[1::2]

    def _keep(self, phase: str, rss: int) -> None:
        self.peaks_mib[phase] = max(rss / _MIB, self.peaks_mib.get(phase, 0.0))


@dataclass(frozen=True)
class BufferSize:
    """One buffer: bytes that the configuration predicts, and bytes that were allocated for it."""

    name: str
    predicted_bytes: int
    seen_bytes: int


def buffer_sizes(agent: Any) -> tuple[BufferSize, ...]:
    """What an agent's buffers should take by its configuration, and what they do take."""
    engine = agent.learner
    sizes = (_replay_size(agent, engine),) if hasattr(engine, "replay") else (_rollout_size(agent, engine),)
    return (*sizes, *_network_sizes(agent, engine))


def _rollout_size(agent: Any, engine: Any) -> BufferSize:
    config, policy = agent.config, agent.policy
    rows = config.n_envs * config.n_steps
    item = np.dtype(getattr(policy, "obs_dtype", np.float32)).itemsize
    normalises = bool(getattr(config, "normalise_observations", False))
    # Observation (twice where it is normalised), action; log-probability, value, reward, value of a cut-off, advantage,
    # return; two flags; place in the order of samples.
    observation = policy.obs_size * (item + 4 * normalises)
    predicted = rows * (observation + policy.action_size * 4 + 6 * 4 + 2 + 8)
    names = "obs actions log_probs values rewards truncated_values terminated truncated advantages returns order"
    seen = sum(getattr(engine, name).nbytes for name in names.split())
    seen += engine.raw_obs.nbytes if normalises else 0
    return BufferSize("rollout", predicted, seen)


def _replay_size(agent: Any, engine: Any) -> BufferSize:
    config, policy, layout = agent.config, agent.policy, engine.replay.layout
    item = np.dtype(getattr(policy, "obs_dtype", np.float32)).itemsize
    # Observation (and the next one where it is stored), action, reward, two flags.
    transition = policy.obs_size * item * (2 if layout.stored else 1) + policy.action_size * 4 + 4 + 2
    return BufferSize("replay", config.capacity * transition, engine.replay._records.nbytes)


def _network_sizes(agent: Any, engine: Any) -> tuple[BufferSize, ...]:
    """Parameters with their targets, and Adam's two moments."""
    arrays: Mapping[str, Any] = engine.state_arrays()
    networks = {name: array for name, array in arrays.items() if _is_network(name)}
    moments = {name: array for name, array in arrays.items() if "mean" in name or "square" in name}
    moments = {name: array for name, array in moments.items() if not name.startswith("obs_")}
    count = sum(array.size for name, array in networks.items() if "target" not in name)
    seen = sum(array.nbytes for array in networks.values())
    targets = sum(array.size for name, array in networks.items() if "target" in name)
    return (
        BufferSize("networks", 4 * (count + targets), seen),
        BufferSize("optimizer", 2 * 4 * count, sum(array.nbytes for array in moments.values())),
    )


def _is_network(name: str) -> bool:
    return name in ("params", "critic_params", "target_params", "target_actor_params") or name.startswith(
        ("module.", "target0", "target1", "actor.", "critic.")
    )
