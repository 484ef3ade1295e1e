"""One search that somebody asked for: its options checked, its progress told, its preset written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mileage.errors import UnknownNameError, UsageError
from mileage.ledger.prices import launch_price
from mileage.profiling.profile import Profile
from mileage.profiling.tuning.changes import FIXES
from mileage.profiling.tuning.report import preset_text
from mileage.profiling.tuning.runs import Setup, TrainingExecutor
from mileage.profiling.tuning.search import BASELINE_CAP_SHARE, SearchNote
from mileage.profiling.tuning.tried import Tried, try_fixes
from mileage.records import ReadRecord
from mileage.tables import plain, write_text


class Trying:
    """A search that somebody asked for; checked before anything is trained."""

    def __init__(
        self,
        algorithm: str,
        env: str,
        options: ReadRecord,
        *,
        budget: float,
        without: Sequence[str] = (),
        only: Sequence[str] = (),
        same_learning: bool = False,
        callbacks: Sequence[Callable[..., bool | None]] = (),
        out: Path | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Take the words of `mileage.profiling.profile_run` as `options`.

        Args:
            algorithm: of the baseline.
            env: of the baseline.
            options: of the baseline.
            budget: seconds.
            without: names of fixes to leave out.
            only: names of fixes, no others; all of them if empty.
            same_learning: only fixes that leave learning as it is, step for step.
            callbacks: of the user's run, which every run calls as well.
            out: where the preset goes; a new file in `runs` if None.
            say: told of progress, a line at a time.
        """
        if options["target"] is None:
            raise UsageError('--try needs a target to train every arm to: add --target "mean_return>=475"')
        if not budget > 0:
            raise UsageError(f"--budget must be above 0 seconds, not {budget:g}")
        names = [fix.name for fix in FIXES]
        unknown = next((name for name in (*without, *only) if name not in names), None)
        if unknown is not None:
            raise UnknownNameError("fix", unknown, names)
        self.fixes = [
            fix
            for fix in FIXES
            if fix.name not in without and (not only or fix.name in only) and (fix.same_learning or not same_learning)
        ]
        if not self.fixes:
            raise UsageError("nothing is left to try: name other fixes with --only, or leave out fewer")
        self.budget, self._say = budget, say or (lambda text: None)
        self._started: float | None = None
        self.out = out if out is not None else _new_file(algorithm, env)
        self.setup: Setup = _setup(algorithm, env, options)
        self.price = launch_price(options["price"]).usd_per_hour
        self.seed = int(options["seed"])
        name = options["name"] or f"try-{algorithm}-{self.setup.env_id}"
        same = {word: options[word] for word in ("episodes", "price", "db")}
        self._executor = TrainingExecutor(
            options["target"], name=name, on_compile=self._compiling, callbacks=callbacks, **same
        )

    def still_in_time(self, _: object) -> bool:
        """For the run that is profiled before: it may take as long as any other of the baseline."""
        if self._started is None:
            self._started = time.perf_counter()
        return time.perf_counter() < self._started + self.budget * BASELINE_CAP_SHARE

    def search(self, profile: Profile) -> Tried:
        """Try fixes, those first that the profile suggests."""
        return try_fixes(
            self.setup, str(self._executor.target), self._executor, budget_seconds=self.budget, fixes=self.fixes,
            findings=profile.findings, first_seed=self.seed, price_usd_per_hour=self.price, watch=self._watch,
        )  # fmt: skip

    def write_preset(self, tried: Tried) -> str | None:
        """Write the best configuration if it was verified; returns what to tell the user."""
        if not tried.is_verified:
            return None
        write_text(self.out, preset_text(tried), "--preset-out")
        train = f"mileage train {self.setup.algorithm} {self.setup.env} --preset {self.out}"
        return f'preset written to {self.out}; use it with: {train} --target "{tried.target}"'

    def _compiling(self, names: list[str]) -> None:
        self._say(f"compiling {', '.join(names)} (once; kept for later runs) …")

    def _watch(self, note: SearchNote) -> None:
        self._say(plain(f"{note.elapsed:5.0f} s of {note.budget:.0f}  {note.stage}: {note.text}"))


def _setup(algorithm: str, env: str, options: ReadRecord) -> Setup:
    apart = ("target", "episodes", "db", "name", "price")
    return Setup.of(algorithm, env, **{name: value for name, value in options.items() if name not in apart})


def _new_file(algorithm: str, env: str) -> Path:
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(env).name).strip("._") or "env"
    return Path("runs") / f"preset-{algorithm}-{label}-{time.strftime('%Y%m%d-%H%M%S')}.toml"
