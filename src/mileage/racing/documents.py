"""The published form of a cost record, and a validator of it that needs nothing but Python.

It knows the part of JSON Schema that `cost-record-1.schema.json` is written in; a word that it does not know is an
error of the schema and not of a record.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from importlib import resources

from mileage._errors import UsageError
from mileage._records import ReadRecord, Record
from mileage.text import plain

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
    found: Record = json.loads(resources.files("mileage.racing").joinpath(FILE).read_text(encoding="utf-8"))
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
