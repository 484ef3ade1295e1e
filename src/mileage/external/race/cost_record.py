"""The cost record of a race: one small file, its published form, and a validator of it.

Its form is `cost-record-1.schema.json` (docs/cost-record.md). Every evaluation is there as the hash of its episodes, so
that a run of ours can be repeated bit for bit from the file alone.

Format history:
    mileage/cost-record/1  first format

It knows the part of JSON Schema that `cost-record-1.schema.json` is written in; a word that it does not know is an
error of the schema and not of a record.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from mileage.errors import UsageError
from mileage.external.race.journal import LEDGER
from mileage.external.race.result import Race, RaceArm
from mileage.ledger import queries
from mileage.ledger.panels import Panel
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.ledger.targets import Evaluation, Target
from mileage.records import ReadRecord, Record
from mileage.tables import plain
from mileage.version import __version__

# --- The published form of a cost record, and a validator of it that needs nothing but Python ---
FILE = "cost-record-1.schema.json"
_TYPES: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    "null": lambda value: value is None,
}
_SAID = ("$schema", "$id", "$defs", "title", "description")


@functools.cache
def schema() -> ReadRecord:
    """The published schema."""
    found: Record = json.loads(resources.files("mileage.external.race").joinpath(FILE).read_text(encoding="utf-8"))
    return found


def checked(document: object) -> ReadRecord:
    """`document` if it has the published form; UsageError with the first place where it has not."""
    problem = next(problems(document, schema(), schema()), None)
    if problem is not None:
        raise UsageError(f"not a cost record: {problem}")
    assert isinstance(document, dict)
    return document


def problems(value: object, rules: ReadRecord, root: ReadRecord, place: str = "the record") -> Iterator[str]:
    """Every place where `value` breaks `rules`, in words."""
    if "$ref" in rules:
        rules = root["$defs"][rules["$ref"].removeprefix("#/$defs/")] | {k: v for k, v in rules.items() if k != "$ref"}
    for word, wanted in rules.items():
        if word not in _SAID:
            yield from _RULES[word](value, wanted, rules, root, place)


Rule = Callable[[object, object, ReadRecord, ReadRecord, str], Iterator[str]]


def _type(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    kinds = [str(kind) for kind in (wanted if isinstance(wanted, list) else [wanted])]
    if not any(_TYPES[kind](value) for kind in kinds):
        yield f"{place} must be {' or '.join(kinds)}, not {_shown(value)}"


def _const(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    if value != wanted:
        yield f"{place} must be {wanted!r}, not {_shown(value)}"


def _enum(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    assert isinstance(wanted, list)
    if value not in wanted:
        yield f"{place} must be one of {', '.join(map(repr, wanted))}, not {_shown(value)}"


def _any_of(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    assert isinstance(wanted, list)
    found = [next(problems(value, each, root, place), None) for each in wanted]
    if None not in found:
        yield str(found[-1])


def _minimum(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    if _TYPES["number"](value) and value < wanted:  # type: ignore[operator]
        yield f"{place} must be at least {wanted}, not {_shown(value)}"


def _length(value: object, wanted: object, least: bool, kind: type, place: str) -> Iterator[str]:
    assert isinstance(wanted, int)
    if isinstance(value, kind) and (len(value) < wanted if least else len(value) > wanted):  # type: ignore[arg-type]
        yield f"{place} must have {'at least' if least else 'at most'} {wanted} entries"


def _sized(least: bool, kind: type) -> Rule:
    return lambda value, wanted, rules, root, place: _length(value, wanted, least, kind, place)


def _pattern(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    if isinstance(value, str) and re.search(str(wanted), value) is None:
        yield f"{place} must look like {wanted}, not {_shown(value)}"


def _required(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    assert isinstance(wanted, list)
    if isinstance(value, dict):
        yield from (f"{place} needs {name!r}" for name in wanted if name not in value)


def _properties(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    assert isinstance(wanted, dict)
    if isinstance(value, dict):
        for name, each in wanted.items():
            if name in value:
                yield from problems(value[name], each, root, _inside(place, name))


def _additional(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for name in value:
        if name in rules.get("properties", {}):
            continue
        if isinstance(wanted, dict):
            yield from problems(value[name], wanted, root, _inside(place, name))
        elif wanted is False:
            yield f"{place} has {_shown(name)}, which it must not have"


def _items(value: object, wanted: object, rules: ReadRecord, root: ReadRecord, place: str) -> Iterator[str]:
    assert isinstance(wanted, dict)
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from problems(each, wanted, root, f"{place}[{number}]")


def _inside(place: str, name: str) -> str:
    return plain(name, 60) if place == "the record" else f"{place}.{plain(name, 60)}"


def _shown(value: object) -> str:
    return plain(repr(value), 80)


_RULES: dict[str, Rule] = {
    "type": _type, "const": _const, "enum": _enum, "anyOf": _any_of, "minimum": _minimum, "pattern": _pattern,
    "minLength": _sized(True, str), "maxLength": _sized(False, str), "minItems": _sized(True, list),
    "maxItems": _sized(False, list), "minProperties": _sized(True, dict), "required": _required,
    "properties": _properties, "additionalProperties": _additional, "items": _items,
}  # fmt: skip


SCHEMA = "mileage/cost-record/1"
_LONGEST = 50_000_000
# A sum over phases and a product with the price differ in their last digits.
_SAME = 1e-6


def episodes_digest(evaluation: Evaluation) -> str:
    """SHA-256 of the episodes in order: seed and length as 64-bit integers, return as a float64, little-endian."""
    columns = (evaluation.seeds.tolist(), evaluation.lengths.tolist(), evaluation.returns.tolist())
    data = b"".join(struct.pack("<qqd", *episode) for episode in zip(*columns, strict=True))
    return hashlib.sha256(data).hexdigest()


def cost_record(race: Race, directory: Path) -> Record:
    """The record of a race whose ledger is in `directory`."""
    arms = [arm for arm in race.arms if arm.runs]
    if not arms:
        raise UsageError("no attempt has ended yet: there is nothing to write a cost record of")
    first = arms[0].runs[0].run
    with Store.reader(directory / LEDGER) as store:
        arms = [replace(arm, runs=tuple(_complete(store, arm.runs))) for arm in arms]
    machines = {run.run.machine_id: json.loads(run.run.machine) for arm in arms for run in arm.runs}
    price = json.loads(first.price)
    record: Record = {
        "schema": SCHEMA,
        "name": race.name,
        "written_by": f"mileage {__version__}",
        "panel": {"panel_id": first.panel_id, "definition": json.loads(first.panel or "{}")},
        "target": first.target,
        "price": {"usd_per_hour": first.price_usd_per_hour, "source": str(price.get("source", ""))},
        "machines": machines,
        "arms": [_arm(arm) for arm in arms],
        "verdicts": [
            {"a": race.reference, "b": name, "verdict": str(each.costs.verdict), "statement": each.verdict}
            for name, each in race.comparisons.items()
        ],
        "caveats": [f"{each.arm}: {each.evidence}".removeprefix(": ") for each in race.caveats],
    }
    return dict(check_record(record))


def _complete(store: Store, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    return [store.read(queries.complete, run) for run in runs]


def _arm(arm: RaceArm) -> Record:
    about, spec = arm.about, arm.spec
    ours = spec["algorithm"] is not None
    packages = about.get("packages")
    reached = sum(run.reached for run in arm.runs)
    return {
        "name": arm.name,
        "kind": "recipe" if ours else "command",
        "tuned_by": arm.tuned_by,
        "framework": str(about.get("framework", ""))[:200],
        "version": str(about.get("version", ""))[:200],
        "threads": _whole(about.get("threads") or spec.get("threads")),
        "recipe": _recipe(arm.runs[0]) if ours else None,
        "command": list(spec["command"]),
        "revision": spec.get("revision"),
        "packages": {str(k): str(v) for k, v in packages.items()} if isinstance(packages, dict) else {},
        "reached": reached,
        "runs": len(arm.runs),
        "expected_seconds": sum(run.cost("s") for run in arm.runs) / reached if reached else None,
        "runs_detail": [_run(run) for run in arm.runs],
    }


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _recipe(run: RecordedRun) -> Record:
    row = run.run
    return {
        "algorithm": row.algorithm,
        "env": row.env_id,
        "config": json.loads(row.config),
        "step_budget": row.step_budget,
        "eval_every_steps": row.eval_every_steps,
    }


def _run(run: RecordedRun) -> Record:
    return {
        "seed": run.seed,
        "state": str(run.state),
        "reason": run.reason,
        "machine": run.run.machine_id,
        "wall_seconds": run.wall_seconds,
        "wall_to_target": run.wall_to_target,
        "cost_usd": run.cost_usd,
        "env_steps": run.totals.env_steps,
        "steps_to_target": run.steps_to_target,
        "phases": dict(run.phases),
        "peak_rss_gb": run.metric("peak_rss_gb"),
        "evaluations": [
            {
                "step": point.steps,
                "mean_return": point.evaluation.mean_return,
                "episodes_sha256": episodes_digest(point.evaluation),
            }
            for point in run.evaluations
        ],
    }


def read_record(path: Path) -> Record:
    """The record in a file; UsageError in one sentence if it is none, or contradicts itself."""
    try:
        if path.stat().st_size > _LONGEST:
            raise UsageError(f"{path} is longer than {_LONGEST:,} bytes: it is no cost record")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON: a cost record is") from None
    return dict(check_record(document))


def check_record(document: object) -> ReadRecord:
    """`document` if it has the form of a cost record, and its figures follow from each other."""
    record = checked(document)
    panel = Panel.from_dict(record["panel"]["definition"])
    if panel.panel_id != record["panel"]["panel_id"]:
        raise UsageError(
            f"panel_id of the record is {record['panel']['panel_id']}, but its panel hashes to {panel.panel_id}"
        )
    target = Target.parse(record["target"])
    rate = record["price"]["usd_per_hour"]
    for arm in record["arms"]:
        if arm["runs"] != len(arm["runs_detail"]) or arm["reached"] != sum(_reached(run) for run in arm["runs_detail"]):
            raise UsageError(f"runs and reached of arm {arm['name']!r} must be those that it lists")
        _check_expected(arm)
        if (arm["recipe"] is None) != (arm["kind"] != "recipe"):
            raise UsageError(f"arm {arm['name']!r} must have a recipe exactly if it is one")
        seeds = [run["seed"] for run in arm["runs_detail"]]
        if len(set(seeds)) != len(seeds):
            raise UsageError(f"a seed of arm {arm['name']!r} is there twice")
        for run in arm["runs_detail"]:
            _check_run(run, f"seed {run['seed']} of arm {arm['name']!r}", target, rate, record["machines"])
    return record


def _reached(run: ReadRecord) -> bool:
    return run["wall_to_target"] is not None


def _check_expected(arm: ReadRecord) -> None:
    spent = sum(run["wall_to_target"] if _reached(run) else run["wall_seconds"] for run in arm["runs_detail"])
    expected = spent / arm["reached"] if arm["reached"] else None
    if (expected is None) != (arm["expected_seconds"] is None) or not _close(
        expected or 0.0, arm["expected_seconds"] or 0.0
    ):
        raise UsageError(
            f"expected_seconds of arm {arm['name']!r} must be the seconds of its runs over those that reached"
        )


def _check_run(run: ReadRecord, what: str, target: Target, rate: float, machines: ReadRecord) -> None:
    if run["machine"] not in machines:
        raise UsageError(f"machine of {what} is not among the machines of the record")
    if not _close(run["cost_usd"], run["wall_seconds"] / 3600.0 * rate):
        raise UsageError(f"cost_usd of {what} must be its hours times the price")
    if run["phases"] and not _close(sum(run["phases"].values()), run["wall_seconds"]):
        raise UsageError(f"phases of {what} must add up to its wall_seconds")
    if (run["wall_to_target"] is None) != (run["steps_to_target"] is None):
        raise UsageError(f"wall_to_target and steps_to_target of {what} must both be there, or neither")
    if not _reached(run):
        return
    if run["wall_to_target"] > run["wall_seconds"] or run["steps_to_target"] > run["env_steps"]:
        raise UsageError(f"{what} cannot have reached its target after its end")
    shown = [each for each in run["evaluations"] if each["step"] == run["steps_to_target"]]
    if not shown:
        raise UsageError(f"{what} must have an evaluation at its steps_to_target")
    met = any(each["mean_return"] is not None and each["mean_return"] >= target.threshold for each in shown)
    if target.aggregate == "mean_return" and not met:
        raise UsageError(f"{what} is said to have reached {target}, which its evaluation does not show")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME * max(1.0, abs(a), abs(b))
