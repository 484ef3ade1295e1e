"""The command line: one file per command, each a thin layer over the library."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; what a user did wrong is one sentence and exit code 2."""
    if "train" in sys.argv[1:2]:
        from mileage.cli.announced import announced_training

        with announced_training(sys.argv):
            _run()
    else:
        _run()


def _run() -> None:
    # Typer and Rich take most of the time that `--help` needs; nothing else is imported before a command runs.
    from mileage._errors import MileageError
    from mileage.cli.app import app

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
