"""Presets: hyperparameters that were found to reach an environment's usual target soonest, one TOML file per algorithm.

A file has a table per environment with the algorithm's hyperparameters, and beside them `total_steps` and
`eval_every`. Users pass a file of their own in the same form, which may also say how the machine is used (`threads`,
`processes`, `backend`, `compile`); arguments given to the agent win.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from mileage.errors import UsageError
from mileage.records import Record

# Belong to the run, not to the algorithm.
RUN_KEYS = ("total_steps", "eval_every")
# Arguments of the agent rather than of the algorithm.
MACHINE_KEYS = ("threads", "processes", "backend", "compile")


def load_preset(algorithm: str, env: str, source: str = "default") -> Record:
    """Hyperparameters for one algorithm and environment: `default` ones, `none`, or those of a TOML file.

    A shipped preset that does not exist is empty; a file that has no table for the environment is an error.
    """
    if source == "none":
        return {}
    if source == "default":
        text = resources.files("mileage.training").joinpath(f"presets/{algorithm}.toml")
        table = tomllib.loads(text.read_text()) if text.is_file() else {}
        return dict(table.get(env, {}))
    path = Path(source)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"preset {source!r} does not exist: use 'default', 'none' or a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"preset {source} cannot be read: {error}") from None
    found = table.get(env)
    if not isinstance(found, Mapping):
        raise UsageError(f"preset {source} has no table for {env!r}: it has {', '.join(map(repr, table)) or 'none'}")
    return dict(found)
