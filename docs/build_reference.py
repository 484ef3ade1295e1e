"""Write docs/cli.md and the tables of docs/algorithms from the code; `--check` says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import build_algorithms
import typer.main

from mileage.cli.app import app
from mileage.tables import Markdown, Table

TARGET = Path(__file__).with_name("cli.md")
HEADINGS = ("option", "meaning", "default")
HEADER = """# Command line

Every command answers `--help`. What a user did wrong is one sentence on standard error and exit code 2; `--debug`
before the command shows the traceback. This page is made by `make docs`.
"""


def parameter_row(parameter: Any) -> tuple[Markdown, ...]:
    """One row of a command's table."""
    names = parameter.name.upper() if parameter.param_type_name == "argument" else ", ".join(
        [*parameter.opts, *parameter.secondary_opts]
    )  # fmt: skip
    text = getattr(parameter, "help", "") or ""
    default = parameter.default
    shown = default if isinstance(default, str | int | float | Path) and not isinstance(default, bool) else ""
    return Markdown(f"`{names}`"), Markdown(text), Markdown(f"`{shown}`" if shown != "" else "")


def section(name: str, command: Any, depth: int) -> str:
    """Heading, help and parameters of a command, and of its subcommands."""
    parts = [f"{'#' * depth} `{name}`", "", (command.help or "").strip(), ""]
    parameters = [each for each in command.params if each.name not in ("help", "install_completion", "show_completion")]
    if parameters:
        parts += [Table.of(HEADINGS, map(parameter_row, parameters), left=HEADINGS).markdown(), ""]
    if getattr(command, "epilog", None):
        parts += ["```console", f"$ {command.epilog.removeprefix('Example: ')}", "```", ""]
    for child_name, child in getattr(command, "commands", {}).items():
        parts += [section(f"{name} {child_name}", child, min(depth + 1, 4)), ""]
    return "\n".join(parts).rstrip() + "\n"


def reference() -> str:
    """The whole page."""
    return HEADER + "\n" + section("mileage", typer.main.get_command(app), 2)


def main() -> None:
    """Write or check the pages."""
    text = reference()
    if "--check" in sys.argv:
        if not TARGET.is_file() or TARGET.read_text() != text:
            sys.exit("docs/cli.md is out of date: run 'make docs'")
        build_algorithms.main()
        return
    TARGET.write_text(text)
    print(f"wrote {TARGET.name}")
    build_algorithms.main()


if __name__ == "__main__":
    main()
