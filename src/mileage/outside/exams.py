"""The held-out exam of a program that is recorded, and what of the recording it is told.

Two kinds of it: `asked_exams`, where the program asks to be examined and answers for its policy, and `file_exams`,
where the policy that it leaves in a file is examined.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

from mileage.outside.program import Program
from mileage.recording.recorder import RunRecorder


class Exams(abc.ABC):
    """Examines the policy of a recorded program on the run's clock. Whoever makes it closes it."""

    def begin(self, run: RunRecorder, limit_seconds: float | None) -> None:  # noqa: B027 (not all need it)
        """The run is in the ledger, and its program is about to start."""

    def started(self, program: Program) -> None:  # noqa: B027
        """The program runs."""

    @abc.abstractmethod
    def tick(self, latest: Callable[[], int]) -> None:
        """Examine what is to be examined now, on the thread that has the clock; `latest` is the last step named."""

    def last(self, latest: Callable[[], int]) -> None:  # noqa: B027
        """The program has ended: examine what it left."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of processes and sockets."""
