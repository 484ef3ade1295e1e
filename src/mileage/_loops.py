"""Loops of Python in source files: whether a line runs once, or again and again."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def in_loop(path: str, first_line: int, line: int) -> bool:
    """Whether a line of the function that begins at `first_line` runs in a loop over data.

    One layer of a network after the other, `for layer in layers: x = layer(x)`, is no such loop.
    """
    return any(first_line < begin <= line <= end for begin, end in _loops(path))


@functools.lru_cache(maxsize=256)
def _loops(path: str) -> tuple[tuple[int, int], ...]:
    """First and last line of what every loop of a file repeats."""
    try:
        return tuple(_repeated(ast.parse(Path(path).read_bytes())))
    except (OSError, ValueError, SyntaxError):  # it has no file, or another one by now
        return ()


def _repeated(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and not _one_after_the_other(node):
            yield node.body[0].lineno, node.body[-1].end_lineno or 0
        elif isinstance(node, ast.While):
            yield node.lineno, node.body[-1].end_lineno or 0
        elif isinstance(node, _COMPREHENSIONS):
            yield node.lineno, node.end_lineno or 0


def _one_after_the_other(loop: ast.For) -> bool:
    """Whether what it goes through is called, as layers are, and picks nothing out of the data."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    called = {node.func.id for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    picked = {
        name.id
        for node in inside
        if isinstance(node, ast.Subscript)
        for name in ast.walk(node.slice)
        if isinstance(name, ast.Name)
    }
    return bool(names & called) and not names & picked
