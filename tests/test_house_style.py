"""The house style, where a machine can see it: beginnings of docstrings, documentation of fields, spelling of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
# A docstring says what a thing is; what a caller does with a function is call it.
COMMANDS = {"Return", "Returns", "Get", "Gets", "Yield", "Yields"}
# Names that were public before the house spelled with -ise, and names that other libraries gave.
SPELLED_WITH_Z = {
    "PrioritizedReplay", "PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer", "ObsNormalizer",
    "normalize_std", "length_normalize", "import_vecnormalize", "normalize_signature", "optimizer", "optimizers",
    "prioritized", "prioritized_ring", "finalize", "finalized", "initialize", "maximize", "vectorization_mode",
    "customize_flags", "optimize_final_module", "optimize_functions", "finalize_final_module", "optimizer_bytes",
    "IRLegalization", "nvmlDeviceGetUtilizationRates",
}  # fmt: skip


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def imperatives(text: str) -> list[int]:
    """Lines of what has a docstring that begins with an order."""
    return [line for line, doc in docstrings(ast.parse(text)) if doc.split()[0] in COMMANDS]


def comments_above_fields(text: str) -> list[int]:
    """Lines of fields that a comment above them explains, where a docstring below them should."""
    lines = text.splitlines()
    return [
        field.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and lines[field.lineno - 2].lstrip().startswith("# ")
    ]


def spelled_with_z(text: str) -> list[str]:
    """Names in -ize that are defined here and are not known exceptions."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    wrong = re.compile(r"i[zZ](e|ed|er|ers|es|ing|ation)(?![a-z])")
    sizes = re.compile(r"(?i)(re)?siz(e|ed|es|ing)(?![a-z])|prize")
    return sorted(name for name in found if wrong.search(sizes.sub("", name)) and name.strip("_") not in SPELLED_WITH_Z)


@pytest.mark.parametrize("check", [imperatives, comments_above_fields, spelled_with_z])
def test_the_house_style_is_kept(check: object) -> None:
    found = {str(path.relative_to(ROOT)): check(path.read_text()) for path in SOURCES}  # type: ignore[operator]
    assert {path: where for path, where in found.items() if where} == {}


def test_what_is_not_in_style_is_found() -> None:
    assert imperatives('def f():\n    """Return one."""\n\n\ndef g():\n    """One, returned."""\n') == [1]
    assert comments_above_fields("class A:\n    # Its size.\n    size: int\n    '''Below.'''\n    b: int\n") == [3]
    text = "def optimize(x, batch_size, resized): ...\n\n\nclass Normalizer: ...\n\n\nself.randomized_order = 1\n"
    assert spelled_with_z(text) == ["Normalizer", "optimize", "randomized_order"]
