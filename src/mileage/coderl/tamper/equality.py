"""Objects that are equal to everything, seen through: part of what runs pytest, given to the project's Python as text.

A candidate may return an object whose comparison always says yes. So the comparisons that classes of the project bring
along are asked once more when they say yes: whether they would have said it to anything else, too. If so, the answer is
no. Classes from outside the project, and from files that a candidate cannot change, are taken at their word.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import glob
import os
import random
import re
import sys
import threading
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported with nothing of the project on the path
    from collections.abc import Callable, Iterator

    import pytest

# A comparison, and the one that cannot say yes to the same question.
OPPOSITES = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__gt__", "__ge__": "__lt__", "__ne__": "__eq__"}
COMPARISONS = ("__eq__", "__contains__", *OPPOSITES)
BUILT_IN = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)
PLAIN = (bool, int, float, str, bytes)
TEST_FILE = re.compile(r"(^|/)(tests?/|conftest\.py$|test_[^/]*\.py$|[^/]*_test\.py$)")


def others_than(value: object) -> list[object]:
    """Values of the same plain type that are not this one; none for other types."""
    kind = type(value)
    if kind is bool:
        return [not value]
    if isinstance(value, (int, float)) and kind in PLAIN:
        return [value + 1, value - 1, value + random.randrange(2, 1 << 40)]
    if isinstance(value, (str, bytes)) and kind in PLAIN:
        mark = os.urandom(8).hex()
        return [value + mark, mark] if isinstance(value, str) else [value + mark.encode(), mark.encode()]
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return [kind((*value, object())), kind((object(),))]
    if isinstance(value, dict) and kind is dict:
        return [{**value, object(): 0}, {object(): 0}]
    if isinstance(value, (set, frozenset)) and kind in (set, frozenset):
        return [kind((*value, object())), kind((object(),))]
    return []


class Equality:
    """Asks the comparisons of a project's own classes twice."""

    def __init__(self) -> None:
        self.root = os.path.realpath(os.getcwd()) + os.sep
        self.guarded: set[object] = set()
        self.seen: list[type] = []
        self.caught: list[str] = []
        self.asking = threading.local()
        self.read_only = False
        self.trusted: dict[str, bool] = {}
        self.has_any = True

    def begin(self) -> None:
        """Look at every class from now on, and at those that are there."""
        build = builtins.__build_class__

        def watched(body: Callable[[], object], name: str, /, *bases: object, **words: object) -> object:
            made: object = build(body, name, *bases, **words)
            if isinstance(made, type):
                self.seen.append(made)
                self.guard(made)
            return made

        builtins.__build_class__ = watched
        from unittest import mock

        is_any = vars(type(mock.ANY))["__eq__"]

        def equal(self_: object, other: object) -> object:
            return is_any(self_, other) if self.has_any else other is self_

        type(mock.ANY).__eq__ = equal  # type: ignore[method-assign,assignment]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the files of the tests at their word, and no others, where these cannot be changed."""
        # Before pytest 7 an item has no path.
        files = [str(getattr(item, "path", None) or item.fspath) for item in session.items]  # foreign: a pytest item
        self.read_only = bool(files) and not os.access(files[0], os.W_OK)
        self.trusted.clear()
        beside = {name for file in files for name in glob.glob(os.path.dirname(file) + "/*.py")}
        # Equal to everything on purpose, where a test asks for it.
        self.has_any = any(re.search(rb"\bANY\b", read(name)) for name in beside)
        for made in every_class(object):
            self.guard(made)

    def is_doubtful(self, function: object, made: type) -> bool:
        """Whether a comparison of a class was written where candidates write."""
        if function is None or isinstance(function, BUILT_IN):
            return False
        if isinstance(function, types.FunctionType):
            return function not in self.guarded and not self.is_trusted(function.__code__.co_filename)
        # Something else that can be called: it is believed as far as its class is.
        module = sys.modules.get(made.__module__)
        return not self.is_trusted(str(vars(module).get("__file__", "")) if module else "")

    def is_trusted(self, name: str) -> bool:
        """Whether a file is one that no candidate writes."""
        if name not in self.trusted:
            self.trusted[name] = self._is_trusted(os.path.realpath(name))
        return self.trusted[name]

    def _is_trusted(self, path: str) -> bool:
        if not os.path.isfile(path):
            return False
        if not path.startswith(self.root):
            return True
        return not os.access(path, os.W_OK) if self.read_only else bool(TEST_FILE.search(path[len(self.root) :]))

    def guard(self, made: type) -> None:
        """Let a class's comparisons be asked twice."""
        for name in COMPARISONS:
            function = vars(made).get(name)
            if self.is_doubtful(function, made):
                guarded = self.twice(function, name)
                self.guarded.add(guarded)
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(made, name, guarded)

    def twice(self, function: object, name: str) -> Callable[[object, object], object]:
        """A comparison that does not say yes if it would to anything."""

        def compare(self_: object, other: object) -> object:
            answer = ask(function, self_, other)
            # An answer that is no plain value belongs to a language of its own, such as a query.
            if type(answer) not in PLAIN or not answer or vars(self.asking).get("now"):
                return answer
            self.asking.now = True
            try:
                if not self.says_yes_to_anything(function, name, self_, other):
                    return answer
            finally:
                self.asking.now = False
            self.caught.append(f"{type(self_).__name__}.{name}")
            return False

        if isinstance(function, types.FunctionType):
            functools.update_wrapper(compare, function)
        return compare

    def says_yes_to_anything(self, function: object, name: str, left: object, right: object) -> bool:
        """Whether a comparison that said yes says so to what cannot be, as well."""
        if name in OPPOSITES:
            opposite = getattr(type(left), OPPOSITES[name], None)  # foreign: any class of a project
            return opposite is not None and agrees(opposite, left, right)
        if agrees(function, left, object()):
            return True
        others = others_than(right)
        return bool(others) and all(agrees(function, left, other) for other in others)

    def unguarded(self) -> Iterator[str]:
        """Comparisons that were put into a class afterwards, and say yes to anything without a look."""
        for made in dict.fromkeys((*self.seen, *every_class(object))):
            function = vars(made).get("__eq__")
            if self.is_doubtful(function, made) and agrees(function, object(), ValueError()):
                yield f"{made.__name__}.__eq__"


def ask(function: object, left: object, right: object) -> object:
    """The answer of a comparison that stands in a class, whatever it is."""
    bind = getattr(function, "__get__", None)  # foreign: any descriptor
    bound = bind(left, type(left)) if bind else function
    return bound(right) if callable(bound) else NotImplemented


def agrees(function: object, left: object, right: object) -> bool:
    """Whether a comparison says yes; what it raises is no."""
    try:
        answer = ask(function, left, right)
        return answer is not NotImplemented and bool(answer)
    except Exception:
        return False


def read(name: str) -> bytes:
    """The bytes of a file; none if it cannot be read."""
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError:
        return b""


def every_class(kind: type) -> Iterator[type]:
    """The classes below a class."""
    found, pending = {kind}, [kind]
    while pending:
        below: list[type] = type.__subclasses__(pending.pop())
        for made in below:
            if made not in found:
                found.add(made)
                pending.append(made)
                yield made
