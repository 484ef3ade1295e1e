"""A command that takes options of its own and, after --, a program with its arguments, or the word compare first."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.cli.helping import Command

PROGRAM = "--program"
"""The hidden option by which the words of a program reach the command, one each."""

COMPARE = "--compare"
"""The hidden option by which the two profiles after the word compare reach the command."""


@dataclass(frozen=True, kw_only=True)
class ProgramArguments:
    """What `mileage profile` was asked to do with a program."""

    program: list[str]
    try_: bool = False
    try_arg: list[str] | None = None
    budget: float = 180.0
    timeout: float | None = None
    export: str | None = None
    out: Path | None = None
    name: str | None = None
    db: str | None = None
    ledger: bool = True
    json_output: bool = False
    quiet: bool = False
    full: bool = False


class ProgramCommand(Command):
    """What stands after the first -- is a program, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand each word of the program on as a value of its own."""
        if "--" in args:
            at = args.index("--")
            args = [*args[:at], *(f"{PROGRAM}={word}" for word in args[at + 1 :] or [""])]
        elif args[:1] == ["compare"]:
            names = list(itertools.takewhile(lambda word: not word.startswith("-"), args[1:]))
            args = [*(f"{COMPARE}={word}" for word in names or [""]), *args[1 + len(names) :]]
        return super().parse_args(ctx, args)
