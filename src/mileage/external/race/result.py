"""What a race came to: arms, attempts, runs, verdicts and their tables; and halves of one race merged."""

from __future__ import annotations

import dataclasses
import html
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mileage.errors import UsageError
from mileage.external.race.journal import FILE, LEDGER, Attempt, ended, parsed, read_lines
from mileage.ledger import queries
from mileage.ledger.admission import take_in
from mileage.ledger.queries import Selector
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.measure import Arm, Cause, Caveat, expected_cost, find_caveats
from mileage.measure.cost import RunCosts
from mileage.measure.surroundings import Reading, conditions
from mileage.metrics import duration, percent
from mileage.records import ReadRecord, Record
from mileage.report.arms import ReportSide, Selection, summarise
from mileage.report.compare import Comparison, compare_arms
from mileage.tables import Strong, Table, markdown, plain

BLOCK_CHANGE = 0.15
"""Change of an arm's seconds per step from its first attempts to its last that is worth a word."""


@dataclass(frozen=True)
class RaceArm:
    """One arm, with the runs that count."""

    name: str
    spec: ReadRecord
    """As the race's file has it: kind, tuned_by, settings or command, threads, revision."""
    attempts: tuple[Attempt, ...]
    runs: tuple[RecordedRun, ...]
    """In the order of their seeds."""
    side: ReportSide | None
    """What they add up to; None without a run."""

    @property
    def tuned_by(self) -> str:
        """`defaults`, `its authors` or `us`."""
        return str(self.spec["tuned_by"])

    @cached_property
    def about(self) -> Record:
        """What its program said of itself: framework, version, threads."""
        found: Record = {}
        for attempt in self.attempts:
            found |= attempt.about
        return found


@dataclass(frozen=True)
class Race:
    """A race as far as it has come."""

    race_id: str
    spec: ReadRecord
    """The plan as plain values."""
    arms: tuple[RaceArm, ...]
    attempts: tuple[Attempt, ...]
    """All of them in their order, those included that do not count because the race was stopped during them."""
    comparisons: Mapping[str, Comparison]
    """By the name of the arm that the reference arm (A) is compared with (B)."""
    caveats: tuple[Caveat, ...]
    stopped: str
    """Why it ended before its time: `budget`, `interrupted`, or nothing."""
    hosts: tuple[str, ...]
    price: ReadRecord
    """Dollars an hour and where they are from."""

    @property
    def name(self) -> str:
        """Of the race."""
        return str(self.spec["name"])

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return str(self.spec["reference"])

    @property
    def counted(self) -> tuple[Attempt, ...]:
        """The attempts that count."""
        return tuple(attempt for attempt in self.attempts if attempt.counted)

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Arms and seeds of the first stage that have not been run."""
        first = int(self.spec["first_seed"])
        done = {(attempt.arm, attempt.seed) for attempt in self.counted}
        planned = [(arm.name, first + i) for i in range(int(self.spec["seeds"])) for arm in self.arms]
        return [each for each in planned if each not in done]

    @property
    def unit(self) -> str:
        """`USD`, or `s` where there is no price."""
        return "USD" if all(run.priced for arm in self.arms for run in arm.runs) else "s"

    # Shown

    def standings(self) -> Table:
        """A row per arm, the cheapest first."""
        ranked = sorted(self.arms, key=lambda arm: _rank(arm.side))
        header = ["arm", "tuned by", "version", "threads", "reached", "seconds to target, median", "expected seconds",
                  "steps to target, median", "evaluating", "peak memory"]  # fmt: skip
        rows = [self._row(arm) for arm in ranked]
        return Table.of(header, rows, left=("arm", "tuned by", "version"), title=f"race {self.name}", key="standings")

    def _row(self, arm: RaceArm) -> list[str]:
        walls = [run.wall_to_target for run in arm.runs if run.wall_to_target is not None]
        steps = [run.steps_to_target for run in arm.runs if run.steps_to_target is not None]
        shares = [run.metric("eval_seconds") or 0.0 for run in arm.runs]
        total = sum(run.wall_seconds for run in arm.runs)
        memory = [peak for run in arm.runs if (peak := run.metric("peak_rss_gb")) is not None]
        reached = 0 if arm.side is None else arm.side.reached
        name = Strong(arm.name) if arm.name == self.reference else arm.name
        return [
            name, arm.tuned_by, _version(arm), str(arm.about.get("threads") or arm.spec.get("threads") or "–"),
            f"{reached} of {len(arm.runs)}", duration(statistics.median(walls)) if walls else "–", _expected(arm.runs),
            f"{statistics.median(steps):,.0f}" if steps else "–", percent(sum(shares) / total) if total else "–",
            f"{max(memory):.2f} GB" if memory else "–",
        ]  # fmt: skip

    def attempt_table(self) -> Table:
        """A row per attempt, in the order in which they were made."""
        header = ("order", "arm", "seed", "end", "seconds to target or stop", "seconds in all", "run")
        rows = [
            (each.order, each.arm, each.seed, _how(each), f"{each.wall_seconds:.2f}", f"{each.spent_seconds:.2f}",
             each.run_id)
            for each in sorted(self.attempts, key=lambda each: (each.order, not each.counted))
        ]  # fmt: skip
        return Table.of(header, rows, left=("arm", "end", "run"), key="attempts")

    def lines(self) -> list[str]:
        """Verdicts first, then what is to be kept in mind."""
        said = [
            f"{self.reference} (A) against {name} (B): {comparison.verdict}"
            for name, comparison in self.comparisons.items()
        ]
        if len(self.comparisons) > 1:
            error = "each verdict by itself has an error of at most 5 %"
            said.append(f"{len(self.comparisons)} comparisons with {self.reference}: {error}, together they have more")
        labels = {each.matching.label for each in self.comparisons.values() if each.matching.label}
        said += sorted(labels)
        said += [f"warning: {each.arm + ': ' if each.arm else ''}{each.evidence}" for each in self.caveats]
        cut = [attempt for attempt in self.attempts if not attempt.counted]
        if cut:
            spent = duration(sum(attempt.spent_seconds for attempt in cut))
            said.append(f"{len(cut)} attempts were cut short by the end of the race and do not count ({spent})")
        if self.missing:
            why = {
                "budget": "the budget was spent",
                "interrupted": "it was interrupted",
                "session": "its session was over",
            }.get(self.stopped, "not run yet")
            said.append(f"{len(self.missing)} planned attempts are missing: {why}")
        return said

    def about_lines(self) -> list[str]:
        """What was raced, on what, and what it cost."""
        spent, dollars = (sum(getattr(each, name) for each in self.attempts) for name in ("spent_seconds", "spent_usd"))
        rate = float(self.price.get("usd_per_hour", 0.0))
        cost = f", ${dollars:.4g} at ${rate:g} an hour ({self.price.get('source')})" if rate else ", no price set"
        spec = self.spec
        return [
            f"{spec['env']} to {spec['target']} on {spec['episodes']} held-out episodes, panel {self.panel_id[:16]}",
            f"{len(self.counted)} attempts of {len(self.arms)} arms in {duration(spent)}{cost}",
            f"machines: {', '.join(self.machines)}",
        ]

    @property
    def panel_id(self) -> str:
        """Of the exam that all runs sat."""
        return next((str(run.panel_id) for arm in self.arms for run in arm.runs), "")

    @property
    def machines(self) -> list[str]:
        """CPU and cores of every machine, in words."""
        sides = [arm.side for arm in self.arms if arm.side is not None]
        return list(dict.fromkeys(side.setting["machine"] for side in sides))

    def markdown(self) -> str:
        """The report as a Markdown page."""
        about = "\n".join(f"- {markdown(line, 400)}" for line in self.about_lines())
        parts = [f"# Race: {markdown(self.name, 100)}", about,
                 "## Standings", self.standings().markdown(), "## Verdicts",
                 "\n".join(f"- {markdown(line, 2000)}" for line in self.lines()), "## Attempts",
                 self.attempt_table().markdown(), "## Arms", self._arms_table().markdown()]  # fmt: skip
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """The report as one HTML page that needs nothing else."""

        def listed(lines: Sequence[str]) -> str:
            return "<ul>" + "".join(f"<li>{html.escape(plain(line, 2000))}</li>" for line in lines) + "</ul>"

        title = f"Race: {html.escape(plain(self.name, 100))}"
        body = [f"<h1>{title}</h1>", listed(self.about_lines()), "<h2>Standings</h2>", self.standings().html(),
                "<h2>Verdicts</h2>", listed(self.lines()), "<h2>Attempts</h2>", self.attempt_table().html(),
                "<h2>Arms</h2>", self._arms_table().html()]  # fmt: skip
        style = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}" \
                "table{border-collapse:collapse}th,td{padding:.2em .6em;text-align:left;border-bottom:1px solid #ccc}" \
                ".number{text-align:right}"  # fmt: skip
        head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'

    def _arms_table(self) -> Table:
        rows = []
        for arm in self.arms:
            spec = arm.spec
            what = " ".join(spec["command"]) if spec["command"] else f"{spec['algorithm']} {_settings(spec)}"
            rows.append((arm.name, arm.tuned_by, what, str(spec.get("revision") or "–"), _packages(arm)))
        header = ("arm", "tuned by", "what", "revision", "packages")
        return Table.of(header, rows, left=header, key="arms")

    def as_dict(self) -> Record:
        """The race as plain JSON values."""
        return {
            "race_id": self.race_id,
            "spec": dict(self.spec),
            "stopped": self.stopped,
            "hosts": list(self.hosts),
            "price": dict(self.price),
            "attempts": [attempt.as_dict() for attempt in self.attempts],
            "comparisons": {name: each.as_dict() for name, each in self.comparisons.items()},
            "standings": self.standings().records(),
            "lines": self.lines(),
            "caveats": [
                {"cause": str(each.cause), "evidence": each.evidence, "arm": each.arm} for each in self.caveats
            ],
        }


def read_race(directory: Path) -> Race:
    """The race in `directory`, running or not."""
    lines = read_lines(directory)
    head, attempts = lines[0], ended(lines)
    runs = _runs(directory, [attempt.run_id for attempt in attempts if attempt.counted])
    spec: Record = head["spec"]
    arms = tuple(_arm(each, attempts, runs) for each in spec["arms"])
    stops = [line["why"] for line in lines if line["event"] == "stopped"]
    race = Race(
        str(head["race_id"]), spec, arms, tuple(attempts), {}, (), str(stops[-1]) if stops else "",
        tuple(head.get("hosts", [head["host"]])), head["price"],
    )  # fmt: skip
    with_sides = _compared(race)
    return dataclasses.replace(with_sides, caveats=_caveats(with_sides, lines, int(head["cores"])))


def _runs(directory: Path, run_ids: Sequence[str]) -> dict[str, RecordedRun]:
    if not run_ids:
        return {}
    with Store.reader(directory / LEDGER) as store:

        def found(connection: object) -> list[RecordedRun]:
            records = queries.records(connection, Selector(run_ids=tuple(run_ids)), newest_first=False)  # type: ignore[arg-type]
            return queries.with_phases(connection, records)  # type: ignore[arg-type]

        runs = {run.run_id: run for run in store.read(found)}
    lost = [run_id for run_id in run_ids if run_id not in runs or runs[run_id].end is None]
    if lost:
        raise UsageError(f"run {lost[0]} of the race is not in its ledger {directory / LEDGER}: restore the ledger")
    return runs


def _arm(spec: ReadRecord, attempts: Sequence[Attempt], runs: Mapping[str, RecordedRun]) -> RaceArm:
    own = sorted((a for a in attempts if a.arm == spec["name"] and a.counted), key=lambda attempt: attempt.seed)
    found = tuple(runs[attempt.run_id] for attempt in own)
    unit = "USD" if found and all(run.priced for run in found) else "s"
    side = summarise(Arm(str(spec["name"]), Selection(found)), unit) if found else None
    return RaceArm(str(spec["name"]), spec, tuple(own), found, side)


def _compared(race: Race) -> Race:
    """With the reference arm compared with every other that has runs; at planned looks where seeds are added."""
    reference = next(arm for arm in race.arms if arm.name == race.reference)
    sequential = int(race.spec["most_seeds"]) > int(race.spec["seeds"])
    found = {}
    for arm in race.arms:
        if arm.name == reference.name or not arm.runs or not reference.runs:
            continue
        sides = [Arm(each.name, Selection(each.runs)) for each in (reference, arm)]
        found[arm.name] = compare_arms(sides[0], sides[1], sequential=sequential)
    return dataclasses.replace(race, comparisons=found)


def _caveats(race: Race, lines: Sequence[ReadRecord], cores: int) -> tuple[Caveat, ...]:
    """What speaks against the numbers: the machine, failures, and arms that changed from first block to last."""
    found: list[Caveat] = []
    for host in dict.fromkeys(line["host"] for line in lines if line["event"] == "machine"):
        readings = [_reading(line) for line in lines if line["event"] == "machine" and line["host"] == host]
        found += conditions(readings[0], readings[-1], cores)
    order_matters = (Cause.OUTLIERS, Cause.WIDE_SPREAD, Cause.SLOW_START, Cause.DRIFT, Cause.FEW_RUNS)
    # Seeds differ in how long they learn: only failures are read from seconds to target.
    found += [each for each in find_caveats(race.counted) if each.cause not in order_matters]
    for arm in race.arms:
        paced = sorted(zip(arm.attempts, arm.runs, strict=True), key=lambda pair: pair[0].order)
        paces = [
            (run.wall_seconds - _startup(run)) / run.steps
            for _, run in paced
            if run.steps and _startup(run) < run.wall_seconds
        ]
        if len(paces) < 4:
            continue
        half = len(paces) // 2
        change = statistics.median(paces[-half:]) / statistics.median(paces[:half]) - 1.0
        if abs(change) > BLOCK_CHANGE:
            found.append(
                Caveat(Cause.DRIFT, f"a step took {change:+.0%} in the last attempts against the first", arm.name)
            )
    return tuple(found)


def _reading(line: ReadRecord) -> Reading:
    return Reading(**{name: line[name] for name in Reading.__dataclass_fields__ if name in line})


def _startup(run: RecordedRun) -> float:
    return (
        (run.metric("init_seconds") or 0.0)
        + (run.metric("compile_seconds") or 0.0)
        + (run.metric("eval_seconds") or 0.0)
    )


def _rank(side: ReportSide | None) -> tuple[int, float]:
    if side is None or side.seconds_per_success is None:
        return (1, 0.0 if side is None else -side.reached)
    return (0, side.seconds_per_success)


def _expected(runs: Sequence[RecordedRun]) -> str:
    """Expected seconds to target with failures paid for."""
    if not runs:
        return "–"
    costs = RunCosts.of([run.cost("s") for run in runs], [run.reached for run in runs])
    value = expected_cost(costs).value
    return f"not reached ({duration(costs.spent)} spent)" if value is None else duration(value)


def _how(attempt: Attempt) -> str:
    text = "reached" if attempt.outcome == "ok" else f"{attempt.outcome}: {attempt.diagnostic}".rstrip(": ")
    return text if attempt.counted else f"not counted ({text})"


def _version(arm: RaceArm) -> str:
    said = arm.about
    return " ".join(str(said[name]) for name in ("framework", "version") if said.get(name)) or "not stated"


def _packages(arm: RaceArm) -> str:
    found = arm.about.get("packages")
    return ", ".join(f"{name} {version}" for name, version in found.items()) if isinstance(found, dict) else "–"


def _settings(spec: ReadRecord) -> str:
    words = [f"preset {spec['preset']}", *(f"{name}={value}" for name, value in spec["settings"].items())]
    words += [f"{name} {spec[name]}" for name in ("steps", "eval_every") if spec.get(name)]
    return ", ".join(words)


# --- Halves of one race, run on two machines or on two days, as one race in a directory of its own ---
def merge(directories: Sequence[Path], out: Path) -> Race:
    """Put the journals and ledgers of `directories` together in the new directory `out`.

    They must be of the same race, and no attempt may be in two of them: whoever has run it twice has to say which one
    counts, and not we.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name a new directory for the merged race")
    halves = [read_lines(each) for each in directories]
    heads = [lines[0] for lines in halves]
    for directory, head in zip(directories, heads, strict=True):
        if head["digest"] != heads[0]["digest"]:
            raise UsageError(
                f"{directory} is of another race than {directories[0]}: only halves of one race are merged"
            )
    owner: dict[tuple[str, int], Path] = {}
    for directory, lines in zip(directories, halves, strict=True):
        for attempt in ended(lines):
            key = (attempt.arm, attempt.seed)
            if attempt.counted and owner.setdefault(key, directory) != directory:
                both = f"{owner[key]} and in {directory}"
                raise UsageError(f"seed {attempt.seed} of arm {attempt.arm!r} is in {both}: an attempt counts once")
    out.mkdir(parents=True, exist_ok=True)
    with Store(out / LEDGER) as store:
        for directory in directories:
            with Store.reader(directory / LEDGER) as half:
                for run in half.read(queries.records, newest_first=False):
                    take_in(store, half.rows_of(run.run_id))
    _write_journal(out / FILE, heads, halves)
    return read_race(out)


def _write_journal(path: Path, heads: Sequence[Record], halves: Sequence[Sequence[Record]]) -> None:
    """One journal: the first head with all hosts, then everything else as it happened."""
    from mileage.records import strict_json

    hosts = list(dict.fromkeys(host for head in heads for host in head.get("hosts", [head["host"]])))
    rest = sorted(
        (line for lines in halves for line in lines[1:] if line["event"] != "stopped"), key=lambda line: line["at"]
    )
    data = b"".join(strict_json(line, sort_keys=True).encode() + b"\n" for line in [heads[0] | {"hosts": hosts}, *rest])
    parsed(data, path)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
