"""All that is known of a watched program when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mileage._types import Bool
from mileage.watching.layers import Layer, Layered
from mileage.watching.places import Settings
from mileage.watching.resources import Resources

_WAITS = frozenset({"_recv", "recv", "recv_bytes", "poll", "wait", "_recv_bytes"})


@dataclass(frozen=True)
class Evidence:
    """What findings are made of."""

    wall_seconds: float
    cpu_seconds: float
    """Of all its processes."""
    run: Layered | None
    """The process that trains; None if no Python of the program could be watched."""
    workers: tuple[Layered, ...]
    """Processes that it has started."""
    resources: Resources
    settings: Settings

    @property
    def waited_share(self) -> float | None:
        """Share of the run in which the main thread could have run and had no core; None where it is not known."""
        if self.run is None or self.run.total <= 0:
            return None
        return float(self.run.waited_seconds.sum()) / self.run.total

    @property
    def loop_seconds(self) -> float:
        """What recurs: the sampled time without imports, compilation and waiting for a core."""
        if self.run is None:
            return 0.0
        return float(self.run.seconds[~self.run.of(Layer.IMPORT, Layer.COMPILE)].sum())

    def where_it_is_done(self, run: Layered, layers: tuple[Layer, ...]) -> tuple[Layered, Bool]:
        """Whose samples show the lines of `layers`: the busiest worker's where the run only waits for workers."""
        chosen = run.of(*layers)
        leaves = run.process.main[:, 3][chosen]
        frames = run.process.frames
        waits = np.array([_is_wait(frames[leaf].path, frames[leaf].function) for leaf in leaves.tolist()], np.bool_)
        waited = float(run.seconds[chosen][waits].sum()) if len(waits) else 0.0
        if waited * 2 < float(run.seconds[chosen].sum()):
            return run, chosen
        found = [(float(each.seconds[each.of(*layers)].sum()), number) for number, each in enumerate(self.workers)]
        longest, number = max(found, default=(0.0, 0))
        return (self.workers[number], self.workers[number].of(*layers)) if longest > 0 else (run, chosen)


def _is_wait(path: str, function: str) -> bool:
    return "/multiprocessing/" in path and function.rpartition(".")[2] in _WAITS
