"""What is usually recommended for PPO and SAC, and what each would bring to the run at hand, or why nothing."""

from __future__ import annotations

from dataclasses import dataclass

from mileage.description import Layer
from mileage.profiling.calibration import Calibration
from mileage.profiling.costs import ROLLOUT, UPDATE
from mileage.profiling.model import WORTH_TRYING, in_words
from mileage.profiling.run import EndToEnd
from mileage.records import PlainData, ReadRecord

_LITTLE = 0.01
# Four times as many environments share out what a call costs, and leave a quarter of it.
_MORE, _SAVED = 4, 0.75


@dataclass(frozen=True)
class Recommendation(PlainData):
    """One of them, for one run."""

    what: str
    why: str
    """What it would act on here, or why it brings nothing."""
    gain: float | None = 0.0
    """Share of the wall-clock that it would save; None where that was not measured."""
    gain_interval: tuple[float, float] | None = None
    """95 % interval where it was measured; otherwise the gain is the most that it can be."""

    @property
    def estimate(self) -> str:
        """In words, as findings have it."""
        if self.gain is None:
            return "not measured"
        return in_words(self.gain, self.gain_interval, at_most=self.gain_interval is None) or "nothing"

    @property
    def rank(self) -> str:
        """By what it would save at most; nothing where that is below the noise."""
        gain = 0.0 if self.gain_interval is not None and self.gain_interval[0] <= 0.0 else self.gain or 0.0
        return "high" if gain >= WORTH_TRYING else "medium" if gain >= _LITTLE else "low"


def recommended(run: EndToEnd, workload: ReadRecord, found: Calibration) -> tuple[Recommendation, ...]:
    """All of them for a learner of the library that updates an actor, those that save most first."""
    config = workload.get("config", {})
    if ":" in str(workload.get("algorithm")) or not {"epochs", "train_every"} & set(config):
        return ()
    following = "done: one call for all of them" if "tau" in config else "no target networks"
    made = [
        _fused(run, config),
        _steps_at_once(run, found),
        *_compiled(run, workload, found),
        *_environments(run, config, found),
        _native(run, workload, found),
        _gpu(run, workload),
        Recommendation("targets follow in one call (polyak)", following),
        Recommendation("allocate what is stored once", "done: arrays of fixed size"),
        Recommendation("choose actions without lists of Python", "done: actions stay arrays"),
    ]
    ranks = ("high", "medium", "low")
    return tuple(sorted(made, key=lambda each: (ranks.index(each.rank), -(each.gain or 0.0))))


def _of_layers(run: EndToEnd, found: Calibration, part: str, *layers: Layer) -> float | None:
    """Share of the wall-clock in these layers of the rollout or the update; None where they were not measured."""
    seconds, whole = found.layers.rollout if part == ROLLOUT else found.layers.update, found.layers.total
    replayed = sum(run.share(phase) for phase in {cost.phase for cost in found.costs})
    return replayed * sum(seconds.get(each, 0.0) for each in layers) / whole if whole else None


def _fused(run: EndToEnd, config: ReadRecord) -> Recommendation:
    what = "one forward pass for actor and critic when collecting"
    if "capacity" in config:
        return Recommendation(what, "acting asks the actor alone")
    return Recommendation(what, "done: one kernel" if run.entries.get("rollout") else "done: one call gives both")


def _compiled(run: EndToEnd, workload: ReadRecord, found: Calibration) -> list[Recommendation]:
    """torch.compile of what acts and of what learns."""
    made = []
    for what, part in (("torch.compile for acting", ROLLOUT), ("torch.compile for learning", UPDATE)):
        if workload.get("backend") == "native":
            made.append(Recommendation(what, "no torch in this run"))
        elif workload.get("compile"):
            made.append(Recommendation(what, "done: --compile"))
        else:
            gain = _of_layers(run, found, part, Layer.TORCH, Layer.PYTHON)
            made.append(Recommendation(what, "--compile: all that is no matrix product", gain))
    return made


def _steps_at_once(run: EndToEnd, found: Calibration) -> Recommendation:
    what = "many steps in one native call when collecting"
    if run.entries.get("rollout"):
        return Recommendation(what, "done: a whole rollout")
    return Recommendation(what, "Python between the calls of a step", _of_layers(run, found, ROLLOUT, Layer.PYTHON))


def _environments(run: EndToEnd, config: ReadRecord, found: Calibration) -> list[Recommendation]:
    """Several where an off-policy learner has one, more where an on-policy learner has several."""
    what, more = ("collect with several environments", "more environments, fewer steps each"), "--set n_envs"
    n_envs, off_policy = int(config.get("n_envs", 1)), "capacity" in config
    collecting = _SAVED * sum(run.share(phase) for phase in ("inference", "env_step", "store")) + run.share("rollout")
    if off_policy:
        one = Recommendation(what[0], f"{more}={_MORE}", collecting)
        several = one if n_envs == 1 else Recommendation(what[0], f"done: {n_envs}")
        return [several, Recommendation(what[1], "no rollouts: it learns from a replay buffer")]
    tried = _tried(what[1], found, "n_envs", {phase: run.share(phase) for phase in run.phases})
    made = tried or Recommendation(what[1], f"{more}={_MORE * n_envs}", collecting)
    return [Recommendation(what[0], f"done: {n_envs}"), made]


def _tried(what: str, found: Calibration, fix: str, shares: dict[str, float]) -> Recommendation | None:
    """What the replay of a change measured, if it was replayed."""
    for change in found.what_ifs:
        if change.fix == fix:
            return Recommendation(what, change.suggestion, change.gain(shares), change.gain_interval(shares))
    return None


def _native(run: EndToEnd, workload: ReadRecord, found: Calibration) -> Recommendation:
    what = "gradient steps in native code"
    if workload.get("backend") == "native":
        return Recommendation(what, "done: an update is one call")
    gain = _of_layers(run, found, UPDATE, Layer.TORCH, Layer.PYTHON)
    tried = _tried(what, found, "backend_native", {"learn": run.share("learn")})
    return tried or Recommendation(what, "all that is no matrix product", gain)


def _gpu(run: EndToEnd, workload: ReadRecord) -> Recommendation:
    what = "a GPU"
    if not workload.get("machine", {}).get("gpus"):
        return Recommendation(what, "none here to measure", None)
    if run.share("transfer"):
        return Recommendation(what, "done: networks are on it")
    return Recommendation(
        what, "--backend torch --device cuda: all of the networks' time", run.share("learn") + run.share("inference")
    )
