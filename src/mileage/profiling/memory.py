"""Memory of a run: the highest resident size seen in every phase, and what its buffers should and do take."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from mileage.meter import PhaseClock, PhaseTimes
from mileage.meter.memory import ProcessTree

_MIB = 2**20
# Often enough to meet every phase that takes long, and below a thousandth of a core (a reading takes about 10 µs).
_EVERY_SECONDS = 0.02
# Looking for new processes costs a hundred times a reading.
_DISCOVER_EVERY_SECONDS = 1.0
_HISTORY_EVERY_SECONDS = 0.1
_MOST_HISTORY = 200


class PhaseMemory:
    """Reads the process tree's resident memory on a thread of its own, and keeps the highest value of every phase.

    It also notes the clock now and then, so that the second half of a run can be told from the first.
    """

    def __init__(self, clock: PhaseClock, every_seconds: float = _EVERY_SECONDS) -> None:
        self._clock, self._every = clock, every_seconds
        self._tree = ProcessTree()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phase-memory", daemon=True)
        self.peaks_mib: dict[str, float] = {}
        """Highest resident memory in MiB by phase; a phase too short to be met has none."""
        self.cpu_seconds = 0.0
        """CPU time that the readings took."""
        self.history: list[PhaseTimes] = []
        """The clock at some instants of the run, evenly spread."""

    def __enter__(self) -> PhaseMemory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self._tree.close()

    def _run(self) -> None:
        began, next_look = time.thread_time(), 0.0
        next_note, note_every = 0.0, _HISTORY_EVERY_SECONDS
        while not self._stopping.wait(self._every):
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _DISCOVER_EVERY_SECONDS
                if self._tree.changed():
                    self._tree.discover()
            self._keep(self._clock.current, self._tree.rss_bytes() / _MIB)
            if time.monotonic() >= next_note:
                next_note = time.monotonic() + note_every
                self.history.append(self._clock.times())
                if len(self.history) >= _MOST_HISTORY:
                    self.history, note_every = self.history[1::2], 2.0 * note_every
            self.cpu_seconds = time.thread_time() - began

    def _keep(self, phase: str, mib: float) -> None:
        self.peaks_mib[phase] = max(mib, self.peaks_mib.get(phase, 0.0))


@dataclass(frozen=True)
class BufferSize:
    """One buffer: bytes that the configuration predicts, and bytes that were allocated for it."""

    name: str
    predicted_bytes: int
    seen_bytes: int


def buffer_sizes(agent: Any) -> tuple[BufferSize, ...]:
    """What an agent's buffers should take by its configuration, and what they do take."""
    engine = agent._built().engine
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
    seen += engine._raw_obs.nbytes if normalises else 0
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


def resident_mib() -> float:
    """Resident memory of this process and its children, in MiB."""
    tree = ProcessTree()
    try:
        tree.discover()
        return tree.rss_bytes() / _MIB
    finally:
        tree.close()
