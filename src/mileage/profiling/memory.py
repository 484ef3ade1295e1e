"""Memory of a run: the highest resident size seen in every phase."""

from __future__ import annotations

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
