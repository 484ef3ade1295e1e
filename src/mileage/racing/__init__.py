"""Races: recipes, programs and revisions that train to one held-out target, and what that cost each of them.

`run_race` takes a `RaceSpec` (a TOML file) to a `Race`: arms, attempts, verdicts. A race is a directory with a journal
and a ledger; stopped or killed, it goes on where it was.
"""

from __future__ import annotations

from mileage.racing.race import run_race
from mileage.racing.result import Race, RaceArm, read_race
from mileage.racing.spec import ArmSpec, RaceSpec, TunedBy

__all__ = ["ArmSpec", "Race", "RaceArm", "RaceSpec", "TunedBy", "read_race", "run_race"]
