"""What every adapter does: one clock, one exam, one end; and states that an exam leaves as they were."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from types import ModuleType, TracebackType
from typing import Self, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from mileage.errors import UsageError
from mileage.external.exam import Actor, Examiner, find_panel
from mileage.external.exam.actors import Function
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.runs import RecordedRun
from mileage.ledger.targets import Evaluation, Target
from mileage.records import ReadRecord, Record


# --- What an exam must leave as it was: the state of random generators, and whether modules train ---
@contextlib.contextmanager
def untouched(modules: object = ()) -> Iterator[None]:
    """Put generators (Python's, NumPy's, torch's) and the training mode of torch `modules` back afterwards."""
    torch = sys.modules.get("torch")
    given = modules if isinstance(modules, list | tuple) else (modules,)
    parts = (
        [] if torch is None else [each for one in given if isinstance(one, torch.nn.Module) for each in one.modules()]
    )
    modes = [each.training for each in parts]
    before, legacy = random.getstate(), np.random.get_state()
    own = None if torch is None else torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(legacy)
        if torch is not None:
            torch.set_rng_state(own)
            if gpus is not None:
                torch.cuda.set_rng_state_all(gpus)
        for each, mode in zip(parts, modes, strict=True):
            each.training = mode


TOLERANCE = 0.02
"""How far a framework's figure may be from ours before it is reported."""
_CLAIM_EVERY_SECONDS = 1.0


class SessionSettings(TypedDict, total=False):
    """What a user says of a run; every adapter takes it as keyword arguments."""

    panel: Panel | str | None
    """The held-out exam, or the id of the environment whose usual one it is; None for none."""
    target: str | Target | None
    """Such as `mean_return>=475`."""
    eval_every: int | None
    """Environment steps between exams; None examines at the end alone."""
    stop_at_target: bool
    """Whether training ends when the target is met, where the framework can be told; True by default."""
    ledger: Ledger | str | None
    name: str | None
    price_usd_per_hour: float | str | None
    instance: str | None
    spot: bool
    seed: int | None
    step_rule: str
    """What one env step is; `frames/4` where a frame-skip of 4 is counted in frames."""


def framework_module(name: str, package: str) -> ModuleType:
    """A framework's module; UsageError in one sentence if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name.split(".")[0]):
            raise
        raise UsageError(f"{name.split('.')[0]} is not installed: pip install {package}") from None


def version_of(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


class Session:
    """One training of a framework, as a run of the ledger."""

    def __init__(
        self, framework: str, settings: SessionSettings, *, algorithm: str = "", env_id: str = "",
        seed: int | None = None, config: ReadRecord | None = None, package: str | None = None,
        unit_actions: bool = False, not_separated: str = "",
    ) -> None:  # fmt: skip
        unknown = sorted(set(settings) - set(SessionSettings.__annotations__))
        if unknown:
            raise UsageError(
                f"{unknown[0]!r} is no setting of a recorded run: {', '.join(SessionSettings.__annotations__)}"
            )
        self._every, self._stop = settings.get("eval_every"), settings.get("stop_at_target", True)
        self.framework, self._unit = framework, unit_actions
        panel, target = settings.get("panel"), settings.get("target")
        panel = find_panel(panel, target=target) if isinstance(panel, str) else panel
        if panel is None and (target is not None or self._every):
            raise UsageError("a target needs a panel: panel='CartPole-v1', or a mileage.Panel")
        self._examiner = None if panel is None else Examiner(panel)
        place = settings.get("ledger")
        ledger = place if isinstance(place, Ledger) else Ledger(place)
        kept = plain(config or {}) | {"framework_version": version_of(package or framework)}
        own = settings.get("seed")
        self.run: RunRecorder = ledger.run(
            settings.get("name") or f"{framework}-{algorithm or 'run'}", panel=panel, target=target, config=kept,
            price_usd_per_hour=settings.get("price_usd_per_hour"), instance=settings.get("instance"),
            spot=settings.get("spot", False), seed=seed if own is None else own, algorithm=algorithm,
            env_id=env_id or (panel.env_id if panel else None), framework=framework, eval_every_steps=self._every,
            step_rule=settings.get("step_rule", "env_steps"),
        )  # fmt: skip
        self.steps = 0
        """Environment steps, as counted here."""
        self.episodes: set[bytes] = set()
        self.resets = 0
        self.inner_steps = 0
        """Steps of the innermost environments, where they can be seen."""
        self._claims: Record = {}
        self._ours: dict[str, float] = {}
        """What was seen here when the framework said so."""
        self._figures: dict[int, tuple[Record, float]] = {}
        """What it has said and is not yet written, with the time, by our steps."""
        self._claimed_at = 0.0
        self._next_exam = self._every or 0
        self._not_separated = not_separated
        self._began = time.perf_counter()
        self._exams_seconds = 0.0
        self._before: tuple[int, float] = (0, 0)
        """What was counted here and there when training began."""
        self._undo: list[Callable[[], object]] = []
        self._open: contextlib.AbstractContextManager[object] | None = None
        self._examined_at = -1
        self.result: RecordedRun | None = None

    # Phases

    def phase(self, name: str) -> contextlib.AbstractContextManager[object]:
        """A part of the framework's loop, by the ledger's name for it."""
        return self.run.phase(name)

    def switch(self, name: str | None) -> None:
        """End the phase that a hook began, and begin another one; for frameworks that only say when a part begins."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if name is None else self.run.phase(name)
        if self._open is not None:
            self._open.__enter__()

    def wrap(
        self, owner: object, method: str, phase: str | None, after: Callable[[object], None] | None = None
    ) -> None:
        """Time a method of one object, which is put back at the end; `after` is told what it returned."""
        own = getattr(owner, method, None)  # foreign: an object of a framework
        if own is None:
            return
        span = None if phase is None else self.run.phase(phase)

        def timed(*args: object, **kwargs: object) -> object:
            if span is None:
                found = own(*args, **kwargs)
            else:
                with span:
                    found = own(*args, **kwargs)
            if after is not None:
                after(found)
            return found

        was = vars(owner).get(method)
        try:
            setattr(owner, method, timed)
        except (AttributeError, TypeError):  # an object that takes no attributes stays as it is
            return
        self._undo.append(lambda: delattr(owner, method) if was is None else setattr(owner, method, was))

    def listen(self, writer: object) -> None:
        """Claim every scalar that a TensorBoard writer, or what looks like one, is told."""
        tell = getattr(writer, "add_scalar", None)  # foreign: there is none where nothing is logged
        if tell is None:
            return

        def add_scalar(tag: str, scalar_value: object, *rest: object, **more: object) -> None:
            tell(tag, scalar_value, *rest, **more)
            self.claim({tag: scalar_value})

        vars(writer)["add_scalar"] = add_scalar
        self.on_close(lambda: vars(writer).pop("add_scalar", None))

    def on_close(self, undo: Callable[[], object]) -> None:
        """Do this when the run ends, last first."""
        self._undo.append(undo)

    # Steps, figures, exams

    def claim(
        self,
        figures: Mapping[str, object],
        *,
        steps: float | None = None,
        seconds: float | None = None,
        at: int | None = None,
    ) -> None:
        """What the framework says of itself, now or of `at` steps: kept beside ours, never in place of it."""
        now = time.perf_counter()
        if steps is not None:
            ours, theirs = self._before
            self._claims["steps"] = steps - theirs
            self._ours["steps"] = (self.steps if at is None else at) - ours
        if seconds is not None:
            # Some timers go on while an exam is sat, others have stopped.
            least, most = now - self._began - self._exams_seconds, now - self._began
            self._claims["seconds"], self._ours["seconds"] = float(seconds), min(max(float(seconds), least), most)
        if self.steps not in self._figures and now - self._claimed_at >= _CLAIM_EVERY_SECONDS:
            self._claimed_at = now
            self._write_claims()
        if figures:
            self._figures.setdefault(self.steps, ({}, self.run.wall_seconds))[0].update(plain(figures))

    def _write_claims(self) -> None:
        """Every figure, those of one step in one row."""
        for step, (figures, at) in self._figures.items():
            self.run.checkpoint(step, claimed=figures, at=at)
        self._figures.clear()

    def begin(self, steps: float = 0) -> None:
        """What the framework says of steps and seconds counts from now; it says `steps` already."""
        self._began, self._exams_seconds = time.perf_counter(), 0.0
        self._before = self.steps, steps

    def due(self) -> bool:
        """Whether an exam is due after the steps so far."""
        return bool(self._every) and self.steps >= self._next_exam

    def examine(
        self, policy: Function | Actor | str, *, modules: object = (), path: str | None = None,
        loader: str | None = None, through: object = None,
    ) -> Evaluation | None:  # fmt: skip
        """Sit the exam now, on the clock; generators and modes of `modules` are left as they were.

        A policy that is a function sees and acts through the wrappers of `through`, the environment of training.
        """
        every = self._every
        if every:
            self._next_exam = (self.steps // every + 1) * every
        if self._examiner is None:
            return None
        began = time.perf_counter()
        with self.run.phase("eval"), untouched(modules):
            if through is not None and callable(policy):
                from mileage.external.adapters.wrappers import View

                try:
                    policy = View(through, self._examiner.panel).through(policy)
                except UsageError as error:  # of no use after training to stop for
                    warnings.warn(f"no exam: {error}", stacklevel=3)
                    return None
            found = self._examiner.examine(policy, unit_actions=self._unit, loader=loader)
        self._exams_seconds += time.perf_counter() - began
        self._examined_at = self.steps
        self._write_claims()
        self.run.checkpoint(self.steps, found, path=path)
        return found

    def examine_last(self, policy: Function | Actor | str, *, modules: object = (), through: object = None) -> None:
        """The exam at the end of training, unless that very policy has sat it."""
        if self._examined_at != self.steps:
            self.examine(policy, modules=modules, through=through)

    @property
    def stop(self) -> bool:
        """Whether training may end, because the target is met."""
        return self._stop and self.run.reached

    def saw_reset(self, observations: ArrayLike) -> None:
        """Note first observations (N, …), in which cached ones show: grids and pictures may begin alike."""
        rows = np.asarray(observations)
        for row in rows.reshape(len(rows), -1):
            self.resets += 1
            if len(self.episodes) < 1000 and row.dtype.kind == "f":
                self.episodes.add(row.tobytes())

    # The end

    @property
    def differences(self) -> list[str]:
        """Where what the framework says and what was seen here differ, in sentences."""
        claimed, ours, found = self._claims, self._ours, []
        if "steps" in claimed and _differ(claimed["steps"], ours["steps"]):
            found.append(
                f"{self.framework} says {claimed['steps']:,.0f} steps, its environments took {ours['steps']:,}"
            )
        if "seconds" in claimed and _differ(claimed["seconds"], ours["seconds"]):
            found.append(f"{self.framework} says {claimed['seconds']:.1f} s, the clock {ours['seconds']:.1f} s")
        if self.resets >= 20 and 0 < len(self.episodes) < min(self.resets, 1000) / 2:
            found.append(
                f"{self.resets} training episodes began in {len(self.episodes)} states: they are not drawn anew"
            )
        # A step that resets takes none of the innermost, so that there may be fewer of those.
        if self.steps and self.inner_steps > 1.5 * self.steps:
            ratio = self.inner_steps / self.steps
            found.append(f"one step of training is {ratio:.3g} steps of the environment: say so with step_rule")
        return found

    def close(self, error: BaseException | None = None) -> RecordedRun:
        """Put everything back and end the run."""
        self.switch(None)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        if self.run.result is None:
            summary = {"adapter": self.framework, "ours": {"steps": self.steps, "resets": self.resets},
                       "claimed": dict(self._claims), "differences": self.differences,
                       "not_separated": self._not_separated}  # fmt: skip
            self._write_claims()
            if self.steps > self._examined_at:
                self.run.checkpoint(self.steps)
            self.run.profile(summary)
            for each in summary["differences"]:
                warnings.warn(str(each), stacklevel=3)
        if self._examiner is not None:
            with self.run.phase("eval") if self.run.result is None else contextlib.nullcontext():
                self._examiner.close()
        self.run.__exit__(type(error) if error else None, error, None)
        assert self.run.result is not None
        self.result = self.run.result
        return self.result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)


@contextlib.contextmanager
def closing(session: Session, last: Callable[[], None]) -> Iterator[None]:
    """End `session` whatever happens; `last` is the exam of a training that came to its end."""
    try:
        yield
        try:
            last()
        except Exception as error:  # of whatever library; what was trained is not thrown away for it
            warnings.warn(f"no exam: {error}", stacklevel=4)
    except BaseException as error:
        session.close(error)
        raise
    session.close()


def watch_env(session: Session, env: object, width: int = 1) -> None:
    """Count the steps of a (vector) environment object, and time them."""

    def stepped(_: object) -> None:
        session.steps += width

    session.wrap(env, "step", "env_step", stepped)

    singles = getattr(env, "envs", ())  # foreign: environments in this process, of Gymnasium's or SB3's vectors
    watch_resets(session, singles or [env], several=width > 1 and not singles)

    def stepped_inside(_: object) -> None:
        session.inner_steps += 1

    for one in singles:
        session.wrap(getattr(one, "unwrapped", one), "step", None, stepped_inside)  # foreign: Gymnasium's innermost


def watch_resets(session: Session, envs: Iterable[object], *, several: bool = False) -> None:
    """Note how episodes begin: of single environments, which vectors reset inside `step`, or of one that is several."""

    def reset(found: object) -> None:
        with contextlib.suppress(TypeError, ValueError):
            first = np.asarray(found[0] if isinstance(found, tuple) else found)
            session.saw_reset(first if several else first[None])

    for env in envs:
        session.wrap(env, "reset", None, reset)


def plain(values: Mapping[str, object]) -> Record:
    """What of `values` JSON can hold; the rest by its name."""
    found: Record = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[str(name)] = plain(value)
        elif value is None or isinstance(value, bool | int | str):
            found[str(name)] = value
        else:
            try:
                number = float(value)  # type: ignore[arg-type]
                found[str(name)] = number if number == number and abs(number) != float("inf") else str(number)
            except (TypeError, ValueError):
                found[str(name)] = str(value)[:200]
    return found


def _differ(claimed: float, ours: float) -> bool:
    return abs(claimed - ours) > TOLERANCE * max(abs(ours), 1e-9) and abs(claimed - ours) > 1
