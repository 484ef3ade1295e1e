"""The command line: one file per command, each a thin layer over the library."""

from __future__ import annotations

import sys
import warnings


def main() -> None:
    """Run the command line; what a user did wrong is one sentence and exit code 2."""
    # Typer and Rich take most of the time that `--help` needs; nothing else is imported before a command runs.
    from mileage._errors import MileageError
    from mileage.cli.app import app

    warnings.showwarning = _say
    try:
        app()
    except MileageError as error:
        if "--debug" in sys.argv:
            raise
        print(f"mileage: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def _say(message: Warning | str, *_: object) -> None:
    """A warning as one sentence, wherever it comes from."""
    print(f"mileage: {message}", file=sys.stderr)
