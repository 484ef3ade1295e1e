"""What runs inside a watched program: samples its stacks, times the calls it knows, and writes both to files.

The program's own interpreter loads it, which may be older than ours and has nothing of mileage: plain Python from 3.8
on, the standard library alone, and no failure that the program would notice.
"""

from __future__ import annotations

import atexit
import os
import sys

from . import imports, libraries, settings
from .sampler import Sampler
from .settings import Files

PLACE = "MILEAGE_PROFILE_DIRECTORY"
"""The variable that says where files go."""


class Watch:
    """The watching of this process, from its beginning or from the fork that made it."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.sampler = self._started()

    def _started(self) -> Sampler:
        files = Files(self.place, os.getpid())
        files.say("process", os.getpid(), os.getppid(), getattr(sys, "orig_argv", sys.argv), sys.version.split()[0],
                  os.path.dirname(os.__file__), os.getcwd())  # fmt: skip
        settings.NOTES.begin(files)
        sampler = Sampler(files)
        sampler.start()
        return sampler

    def forked(self) -> None:
        """The same in a new process: threads do not survive a fork, and its files are its own."""
        self.sampler.forget()
        self.sampler = self._started()

    def end(self) -> None:
        """Write what is left."""
        settings.NOTES.look_at_main()
        self.sampler.stop()


def begin() -> None:
    """Watch this process, if it was asked for."""
    place = os.environ.get(PLACE)
    if not place or not os.path.isdir(place):
        return
    imports.begin_tracebacks()
    imports.begin(libraries.AFTER)
    watch = Watch(place)
    os.register_at_fork(after_in_child=watch.forked)
    atexit.register(watch.end)
