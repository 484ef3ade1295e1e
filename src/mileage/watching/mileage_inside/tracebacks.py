"""Tracebacks that the interpreter prints are those of the program alone."""

from __future__ import annotations

import sys
from types import TracebackType

from .lanes import FILE


def begin() -> None:
    """Leave frames of timed calls out of tracebacks that end the program."""
    earlier = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen = set()
        each: BaseException | None = error
        while each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = without_ours(each.__traceback__)
            each = each.__cause__ or each.__context__
        earlier(kind, error, error.__traceback__)

    sys.excepthook = shown


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without frames of timed calls."""
    while trace is not None and trace.tb_frame.f_code.co_filename == FILE:
        trace = trace.tb_next
    at = trace
    while at is not None:
        while at.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename == FILE:
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return trace
