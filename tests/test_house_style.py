"""The house style, where a machine can see it: beginnings of docstrings, documentation of fields, spelling of names."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
# A docstring of a function is an order ("Return the mean"), of a thing what it is.
REPORTS = {"Returns", "Gets", "Yields"}
# Names that were public before the house spelled with -ise, and names that other libraries gave.
SPELLED_WITH_Z = {
    "PrioritizedReplay", "PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer", "ObsNormalizer",
    "normalize_std", "length_normalize", "import_vecnormalize", "normalize_signature", "optimizer", "optimizers",
    "prioritized", "prioritized_ring", "finalize", "finalized", "initialize", "maximize", "vectorization_mode",
    "customize_flags", "optimize_final_module", "optimize_functions", "finalize_final_module", "optimizer_bytes",
    "IRLegalization", "nvmlDeviceGetUtilizationRates",
}  # fmt: skip

CLOCK = re.compile(r"time\.time|(time\.)?(monotonic|perf_counter|process_time|thread_time|time_ns)(_ns)?")
THROUGH = {"abs", "float", "int", "max", "min", "pytest.approx", "round"}
# They hold on a machine of any speed: the limit of waiting, what lies between two readings, and what is promised of a
# process that is killed.
MAY_COMPARE_CLOCKS = {
    "contracts/test_recovery.py::test_rows_left_in_a_spool_file_are_delivered_once_and_the_file_goes",
    "contracts/test_store.py::test_a_writer_gives_signs_of_life_and_closes_what_others_left_behind",
    "contracts/test_writer_faults.py::_kill_at_a_random_moment",
    "test_process.py::test_an_incredible_age_is_replaced_by_the_cpu_time",
    "test_process.py::test_start_lies_between_the_moments_before_and_after_it",
    "test_process.py::test_without_proc_the_age_comes_from_psutil",
    "waiting.py::until",
}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def reports(text: str) -> list[int]:
    """Lines of what has a docstring that reports, where it should order."""
    return [line for line, doc in docstrings(ast.parse(text)) if doc.split()[0] in REPORTS]


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


def _reads_a_clock(node: ast.AST, readings: set[str]) -> bool:
    """Whether an expression calls a clock of `time`, or names what came of one."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        # What other functions make of a reading is their own.
        return bool(CLOCK.fullmatch(name)) or (
            name in THROUGH and any(_reads_a_clock(each, readings) for each in node.args)
        )
    if isinstance(node, ast.Name):
        return node.id in readings
    return any(_reads_a_clock(each, readings) for each in ast.iter_child_nodes(node))


def clock_comparisons(text: str) -> list[str]:
    """Functions that compare what a clock says, which any machine may make as late as it likes."""
    found = []
    for function in ast.parse(text).body:
        readings: set[str] = set()
        nodes = list(ast.walk(function))
        for node in [*nodes, *nodes]:  # twice: what is walked first may be assigned last
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _reads_a_clock(node.value, readings):
                    readings |= {
                        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
                    }
        if any(isinstance(node, ast.Compare) and _reads_a_clock(node, readings) for node in nodes):
            found.append(getattr(function, "name", "module"))
    return found


def test_no_test_compares_what_clocks_say() -> None:
    found = {
        f"{path.relative_to(ROOT / 'tests')}::{name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in clock_comparisons(path.read_text())
    }
    assert found == MAY_COMPARE_CLOCKS, "wait for the condition itself: tests/waiting.py"


@pytest.mark.parametrize("check", [reports, comments_above_fields, spelled_with_z])
def test_the_house_style_is_kept(check: object) -> None:
    found = {str(path.relative_to(ROOT)): check(path.read_text()) for path in SOURCES}  # type: ignore[operator]
    assert {path: where for path, where in found.items() if where} == {}


def test_what_is_not_in_style_is_found() -> None:
    assert reports('def f():\n    """Returns one."""\n\n\ndef g():\n    """Return one."""\n') == [1]
    assert comments_above_fields("class A:\n    # Its size.\n    size: int\n    '''Below.'''\n    b: int\n") == [3]
    text = "def optimize(x, batch_size, resized): ...\n\n\nclass Normalizer: ...\n\n\nself.randomized_order = 1\n"
    assert spelled_with_z(text) == ["Normalizer", "optimize", "randomized_order"]


def test_a_planted_comparison_of_clocks_is_found() -> None:
    direct = "def a():\n    assert time.monotonic() < 3.0\n"
    through = "def b():\n    start = perf_counter()\n    took = round(perf_counter() - start, 1)\n    assert took < 2\n"
    taken_down = "def c():\n    run = make(at=time.time())\n    assert run.id == 1\n"
    assert clock_comparisons(direct + through + taken_down) == ["a", "b"]


def test_no_directory_of_tests_is_left_out(request: pytest.FixtureRequest) -> None:
    patterns = request.config.getini("norecursedirs")
    names = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
