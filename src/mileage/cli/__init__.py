"""The command line: one file per command, each a thin layer over the library."""

from __future__ import annotations

import errno
import sys
import warnings

from mileage.cli import birth


def main() -> None:
    """Run the command line; what a user did wrong is one sentence and an exit code."""
    arguments = birth.asked_to_train(sys.argv)
    if arguments is not None:
        begun = birth.born(arguments)
        birth.announce(sys.argv, arguments, begun)
        try:
            _run()
        except BaseException as error:
            birth.settle(error)
            raise
        birth.settle(None)
    else:
        _run()


def _run() -> None:
    from mileage.errors import MileageError

    warnings.showwarning = _say
    try:
        # Typer and Rich take most of the time that `--help` needs; nothing else is imported before a command runs.
        from mileage.cli.app import app

        app()
    except MileageError as error:
        if "--debug" in sys.argv:
            raise
        print(f"mileage: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("mileage: interrupted before the command began", file=sys.stderr)
        sys.exit(130)
    except SystemExit as error:
        # A signal that nobody in the command had words for.
        if error.code == 130 and _interrupted(error):
            print("mileage: interrupted before it was done", file=sys.stderr)
        elif error.code == 143:
            from mileage.ledger.exits import Terminated

            if isinstance(error, Terminated):
                print("mileage: terminated before it was done", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        # The disk is no bug of anyone's: full, over quota, read-only or broken.
        if "--debug" in sys.argv or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"mileage: {error.strerror}{where}: make room, or set MILEAGE_WORK to another disk", file=sys.stderr)
        sys.exit(1)


def _interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C led to `error`."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, KeyboardInterrupt):
        link = link.__cause__ or link.__context__
    return link is not None


def _say(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one sentence, wherever it comes from."""
    print(f"mileage: {message}", file=sys.stderr)
