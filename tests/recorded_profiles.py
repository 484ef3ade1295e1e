"""What the rules of the profiler read, as plain data: kept of a profile, and made into objects again."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from sample_rows import make_end, make_phases, make_run

from mileage.ledger.runs import RecordedRun
from mileage.profiling.calibration import NONE, Calibration
from mileage.profiling.costs import LayerTable
from mileage.profiling.profile import Profile
from mileage.profiling.run import EndToEnd
from mileage.records import strict_json

RECORDED = Path(__file__).parent / "profiling/recorded/planted.json"
_TOTALS = ("phases", "entries", "env_steps")
_RUN = ("compiled", "moments", "load", "callback", "episodes")
_CALIBRATION = (
    "limits", "costs", "roofline", "rollout_parts", "what_ifs", "buffers", "torch_operations", "warm_load_seconds",
    "load", "lines",
)  # fmt: skip
# No more moments than a drift is seen in.
_MOMENTS = 12


def kept(found: Profile) -> dict[str, Any]:
    """Plain data that `diagnosed` takes; an infinite number becomes null."""
    run = {name: getattr(found.run, name) for name in (*_TOTALS, *_RUN)}
    run["moments"] = run["moments"][:: -(-len(run["moments"]) // _MOMENTS) or 1]
    calibration = {name: getattr(found.calibration, name) for name in _CALIBRATION}
    data = {"workload": found.workload, "run": run, "calibration": calibration}
    return json.loads(strict_json(json.loads(json.dumps(data, default=dataclasses.asdict))))


def measured(data: dict[str, Any]) -> tuple[EndToEnd, Calibration]:
    """The measurements of a profile from what was `kept` of it."""
    totals = {name: data["run"][name] for name in _TOTALS}
    row = make_run()
    end = make_end(row, state="not_reached", env_steps=totals["env_steps"], wall_seconds=sum(totals["phases"].values()))
    phases = make_phases(row, 1, **totals["phases"])
    rows = tuple(each._replace(entries=totals["entries"].get(each.phase, 0)) for each in phases)
    recorded = RecordedRun(row, end, phase_rows=rows, in_ledger=False)
    unread = {"layers": LayerTable({}, {}, 0.0, 0.0), "update_stages": None, "scaling": {}, "primitives": {}}
    return (
        EndToEnd(recorded, **fields(EndToEnd, {name: data["run"][name] for name in _RUN})),
        Calibration(**fields(Calibration, data["calibration"]), **unread, trace=NONE, seconds=0.0),
    )


def fields(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass from plain data."""
    kinds = get_type_hints(kind)
    return {name: value_of(kinds[name], value) for name, value in data.items()}


def value_of(kind: Any, data: Any) -> Any:
    """A value of this type from plain data: numbers, dataclasses, and tuples and mappings by name of them."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else value_of(of[0], data)
    if origin is tuple:
        return tuple(value_of(of[0] if of[-1] is ... else of[k], each) for k, each in enumerate(data))
    if origin is Mapping:
        return {name: value_of(of[1], value) for name, value in data.items()}
    if dataclasses.is_dataclass(kind):
        return kind(**fields(kind, data))
    return math.inf if kind is float and data is None else data
