"""`mileage profile`: where the time of a run goes, and what to change."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from typer import Argument, Option

from mileage.algorithms.registry import names_in_words
from mileage.cli import options
from mileage.cli.options import COMPARE, PROGRAM, ProgramArguments
from mileage.errors import UsageError
from mileage.records import Record, strict_json
from mileage.tables import write_text

if TYPE_CHECKING:
    from mileage.profiling import Profile

FORMATS = ("md", "html", "trace", "speedscope")
_OF_A_PROGRAM = (
    "program",
    "try_",
    "try_arg",
    "budget",
    "timeout",
    "export",
    "out",
    "name",
    "db",
    "ledger",
    "json_output",
    "quiet",
    "full",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileArguments(options.RunArguments):
    """What the command line asked for."""

    algorithm: Annotated[str | None, Argument(help=f"{names_in_words()}; not needed with --run.")] = None
    checkpoint: Annotated[Path | None, Option(help="File to save checkpoints to.")] = None
    run: Annotated[str | None, Option("--run", help="Diagnose a recorded run by its phases instead of training.")] = (
        None
    )
    try_: Annotated[
        bool, Option("--try", help="Apply the fixes, train each to --target, and measure what they bring.")
    ] = False
    budget: Annotated[float, Option(help="Seconds for --try, verification included.")] = 180.0
    without: Annotated[options.Words, Option("--without", help="A fix that --try leaves out (may be repeated).")] = None
    preset_out: Annotated[
        Path | None, Option(help="File for the preset that --try found (a new one in runs by default).")
    ] = None
    only: Annotated[options.Words, Option("--only", help="A fix that --try is limited to (may be repeated).")] = None
    same_learning: Annotated[
        bool, Option("--same-learning", help="With --try: only fixes that leave learning as it is, step for step.")
    ] = False
    replay: Annotated[bool, Option("--replay/--no-replay", help="Whether the run's parts are replayed after it.")] = (
        True
    )
    replay_seconds: Annotated[
        float | None, Option(help="Seconds that replays may take (as long as the run, and at least 2).")
    ] = None
    export: Annotated[str | None, Option(help="Write the profile as md, html, trace or speedscope.")] = None
    out: Annotated[Path | None, Option("--out", "-o", help="File for --export, else standard output.")] = None
    ledger: Annotated[
        bool, Option("--ledger/--no-ledger", help="Whether run and profile are recorded in the ledger.")
    ] = True
    json_output: Annotated[bool, Option("--json", help="Print the profile as JSON.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the verdict.")] = False
    full: Annotated[bool, Option("--full", help="Print all findings, and the tables they stand on.")] = False
    try_arg: Annotated[
        options.Words, Option(help='Arguments of a program for --try, as "--num-envs {4,8}"; may be repeated.')
    ] = None
    timeout: Annotated[float | None, Option(help="Seconds after which a program is ended.")] = None
    program: Annotated[options.Words, Option(PROGRAM, hidden=True, help="A word of the program after --.")] = None
    compare: Annotated[options.Words, Option(COMPARE, hidden=True, help="A profile to compare.")] = None

    def check(self) -> None:
        """UsageError if the options do not go together."""
        if self.program is None and (self.try_arg or self.timeout is not None):
            raise UsageError(
                "--try-arg and --timeout are for a program: mileage profile --timeout 60 -- python train.py"
            )
        if self.export is not None and self.export not in FORMATS:
            raise UsageError(f"--export {self.export!r} is not known: use one of {', '.join(FORMATS)}")
        if self.export is None and self.out is not None:
            raise UsageError("--out is the file for --export: add --export md, html, trace or speedscope")
        if self.replay_seconds is not None and not self.replay_seconds > 0.0:
            raise UsageError(f"--replay-seconds must be above 0, not {self.replay_seconds:g}: use --no-replay for none")
        if (self.only or self.same_learning) and not self.try_:
            raise UsageError("--only and --same-learning say what to try: add --try")
        if self.run is not None and self.try_:
            raise UsageError("--try trains: name an algorithm and an environment instead of --run")
        if self.run is not None and (self.algorithm or self.env):
            raise UsageError("--run diagnoses a recorded run: drop the algorithm and the environment")
        if self.run is None and (self.algorithm is None or self.env is None):
            raise UsageError("name an algorithm and an environment: mileage profile ppo CartPole-v1")

    def words(self) -> Record:
        """The options of `mileage.profiling.profile_run`."""
        plain = ("seed", "steps", "target", "eval_every", "episodes", "checkpoint_every", "name", "price")
        words: Record = {name: getattr(self, name) for name in plain}
        words["checkpoint"] = None if self.checkpoint is None else str(self.checkpoint)
        return words | {"db": self.db if self.ledger else False} | self.agent()


@options.takes(ProfileArguments)
def profile(wanted: ProfileArguments) -> None:
    """Train once and say where the time went, and what to change: the verdict in one line first.

    After --, any training program, unmodified: mileage profile -- python train.py.
    Two profiles beside each other: mileage profile compare A B, each a run or a file that --json wrote.
    """
    if wanted.compare is not None:
        _compare(wanted, wanted.compare)
        return
    if wanted.program is not None:
        from mileage.cli.profile_program import profile_program

        _refuse_all_but(_OF_A_PROGRAM, wanted, "is for runs of mileage's own, not for a program after --")
        profile_program(ProgramArguments(**{name: getattr(wanted, name) for name in _OF_A_PROGRAM}))
        return
    wanted.check()
    if wanted.run is not None:
        _show(_recorded(wanted.run, wanted.db), wanted)
    elif wanted.try_:
        _search(wanted)
    else:
        found = _measured(wanted)
        _show(found, wanted)
        if found.interrupted:
            raise typer.Exit(130)


def _compare(wanted: ProfileArguments, names: list[str]) -> None:
    """Two profiles beside each other."""
    if len(names) != 2 or not all(names):
        raise UsageError("name two profiles, each a run or a file that --json wrote: mileage profile compare A B")
    taken = ("compare", "db", "json_output", "quiet")
    _refuse_all_but(taken, wanted, "is not for comparing profiles: use --db, --json or --quiet")
    from mileage.cli.profile_program import print_comparison
    from mileage.profiling.compare import compare_profiles

    found = compare_profiles(names[0], names[1], wanted.db)
    _say(found, wanted, lambda: print_comparison(found))


class _Told(Protocol):
    """What is printed as JSON, as its verdict, or as a whole."""

    def as_dict(self) -> Record:
        """Plain data."""

    @property
    def verdict(self) -> str:
        """In one line."""


def _say(found: _Told, wanted: ProfileArguments, show: Callable[[], None]) -> None:
    """Print as much as was asked for."""
    if wanted.json_output:
        print(strict_json(found.as_dict(), indent=2))
    elif wanted.quiet:
        print(found.verdict)
    else:
        show()


def _refuse_all_but(taken: Collection[str], wanted: ProfileArguments, why: str) -> None:
    """UsageError for the first option that was given and is none of those `taken`."""
    for field in dataclasses.fields(wanted):
        if field.name not in taken and getattr(wanted, field.name) != field.default:
            name = field.name.strip("_").replace("_", "-")
            raise UsageError(f"--{name} {why}")


def _recorded(selection: str, db: str | None) -> Profile:
    from mileage.profiling import profile_recorded

    return profile_recorded(selection, db=db)


def _measured(wanted: ProfileArguments, **more: Any) -> Profile:
    from mileage.measure import Phase, PhaseClock

    # The run's start-up counts, from the start of the process.
    clock = PhaseClock.for_run()
    clock.attribute(Phase.INIT, clock.times().wall_seconds)
    with clock.phase(Phase.INIT):
        from mileage.profiling import profile_run

    assert wanted.algorithm is not None
    talks = not (wanted.json_output or wanted.quiet) and (wanted.export is None or wanted.out is not None)
    replay = wanted.replay_seconds if wanted.replay else 0.0
    return profile_run(
        wanted.algorithm, wanted.env, clock=clock, replay=replay, on_progress=_tell if talks else None,
        **wanted.words(), **more,
    )  # fmt: skip


def _search(wanted: ProfileArguments) -> None:
    """Profile, try the fixes, and show the profile with what the search found."""
    from mileage.profiling.tuning import report
    from mileage.profiling.tuning.session import Trying

    assert wanted.algorithm is not None
    assert wanted.env is not None
    talks = not (wanted.json_output or wanted.quiet)
    trying = Trying(
        wanted.algorithm, wanted.env, wanted.words(), budget=wanted.budget, without=wanted.without or (),
        only=wanted.only or (), same_learning=wanted.same_learning, out=wanted.preset_out, say=_tell if talks else None,
    )  # fmt: skip
    found = _measured(wanted, callback=trying.still_in_time)
    shown = talks and (wanted.export is None or wanted.out is not None)
    if shown:
        _print(found, wanted.full)
    tried = trying.search(found)
    told = trying.write_preset(tried)
    if wanted.json_output:
        print(strict_json(found.as_dict() | {"tried": report.as_dict(tried)}, indent=2))
    elif wanted.quiet:
        print(report.verdict(tried))
    elif shown:
        report.show(tried)
    if wanted.export is not None:
        _export(found, wanted, f"\n{report.markdown(tried)}" if wanted.export == "md" else "")
    if told is not None and (shown or wanted.quiet):
        print(told)
    if tried.interrupted:
        raise typer.Exit(130)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(found: Profile, wanted: ProfileArguments) -> None:
    """Print the profile as it was asked for."""
    if wanted.export is not None:
        _export(found, wanted)
        if wanted.out is None:
            return

    def whole() -> None:
        _print(found, wanted.full)
        if wanted.out is not None:
            print(f"written to {wanted.out}")

    _say(found, wanted, whole)


def _print(found: Profile, full: bool) -> None:
    from mileage.cli.profile_program import print_profile

    print_profile(found, full)


def _export(found: Profile, wanted: ProfileArguments, more: str = "") -> None:
    """The profile in another format, to a file or to standard output."""
    from mileage.profiling.export import export

    assert wanted.export is not None
    text = export(found, wanted.export) + more
    if wanted.out is None:
        print(text, end="")
    else:
        write_text(wanted.out, text, "--out")
