"""Hooks on imports of a watched program, and tracebacks that are its alone."""

from __future__ import annotations

import contextlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Callable, Sequence  # noqa: UP035  # 3.8 has no other

from .lanes import FILE

After = Callable[[ModuleType], None]


class Hook:
    """A finder that finds nothing itself: it adds a step to the loaders that others find."""

    def __init__(self, after: dict[str, After]) -> None:
        self._after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with our step behind its execution."""
        after = self._after.pop(name, None)
        if after is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # foreign: a finder of the interpreter
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                _add(spec.loader, after)
                return spec  # type: ignore[no-any-return]
        self._after[name] = after
        return None


def _add(loader: object, after: After) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # type: ignore[attr-defined]
        execute(module)
        run(after, module)

    exec_module.__code__ = exec_module.__code__.replace(co_filename=FILE)
    # A module goes untimed whose loader takes no attributes.
    with contextlib.suppress(AttributeError):
        loader.exec_module = exec_module  # type: ignore[attr-defined]


def run(after: After, module: ModuleType) -> None:
    """Take our step; a library that is not as we know it is left as it is."""
    with contextlib.suppress(Exception):
        after(module)


def begin(after: dict[str, After]) -> None:
    """Take the steps `after` behind the modules they are named for, at once where a module is there already."""
    for name in [name for name in after if name in sys.modules]:
        run(after.pop(name), sys.modules[name])
    sys.meta_path.insert(0, Hook(after))


# --- Tracebacks that the interpreter prints are those of the program alone ---
def begin_tracebacks() -> None:
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
