"""The figures of the architecture: each violation, planted in a small package, is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from architecture import Figures, main
from import_graph import cycles, read

LAYERS = """
[tool.importlinter]
root_package = "small"
[[tool.importlinter.contracts]]
name = "Imports point downwards"
type = "layers"
layers = ["small.high", "small.left | small.right", "small.low"]
"""

CLEAN = {
    "__init__": "",
    "high": "from small import left, right\n",
    "left": "from small.low import Thing\n\n\ndef half(thing: Thing) -> float:\n    return thing.size / 2\n",
    "right": "import os\n\n\ndef pid() -> int:\n    return os.getpid()\n",
    "low": "class Thing:\n    def __init__(self) -> None:\n        self.size = 1.0\n        self._parts = [1]\n",
}


def figures(folder: Path, **changed: str) -> Figures:
    package = folder / "src" / "small"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(LAYERS)
    for name, text in {**CLEAN, **changed}.items():
        path = package / f"{name.replace('__dot__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Figures.of(package, folder / "pyproject.toml")


def test_a_clean_package_breaks_no_limit(tmp_path: Path) -> None:
    found = figures(tmp_path)
    assert found.broken() == []
    assert {name: sorted(module.edges) for name, module in found.modules.items() if module.edges} == {
        "small.high": ["small.left", "small.right"],
        "small.left": ["small.low"],
    }
    assert sum(found.annotations.values()) == 4  # half(thing), half(), pid(), __init__()


def test_a_cycle_through_an_import_inside_a_function(tmp_path: Path) -> None:
    low = "def late() -> None:\n    from small import left\n\n    left.half(None)\n"
    found = figures(tmp_path, low=CLEAN["low"] + low)
    assert found.cycles == [["small.left", "small.low"]]
    assert "cycles of imports, those inside functions included: 1, at most 0" in found.broken()
    assert "small.low imports small.left" in found.listing("cycles")


def test_a_cycle_through_import_module(tmp_path: Path) -> None:
    found = figures(tmp_path, low="import importlib\n\nleft = importlib.import_module('small.left')\n")
    assert found.cycles == [["small.left", "small.low"]]


def test_a_module_that_imports_itself_is_a_cycle(tmp_path: Path) -> None:
    assert figures(tmp_path, low="import small.low\n").cycles == [["small.low"]]


def test_imports_for_type_checkers_make_no_cycle_and_keep_the_layers(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from small.left import half\n"
    found = figures(tmp_path, low=CLEAN["low"] + text)
    assert found.cycles == []
    assert [place.text for place in found.layers] == ["imports small.left"]


def test_cycles_are_apart_and_relative_imports_are_followed(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        high="from small import left\nimport small.other.b\n",
        other__dot____init__="",
        other__dot__a="from . import b\n",
        other__dot__b="from .a import x\nfrom ..other import c\n",
        other__dot__c="from small.other import d\n",
        other__dot__d="import small.other.c\n",
    )
    assert cycles(found.modules) == [["small.other.a", "small.other.b"], ["small.other.c", "small.other.d"]]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"low": "from small import high\n"}, "imports small.high"),
        ({"left": "def late() -> None:\n    from small import right\n"}, "imports small.right"),
        ({"stray": ""}, "small.stray is in no layer"),
    ],
)
def test_an_import_against_the_layers(tmp_path: Path, changed: dict[str, str], text: str) -> None:
    found = figures(tmp_path, **changed)
    assert [place.text for place in found.layers] == [text]
    assert any("imports against the layers: 1" in sentence for sentence in found.broken())


@pytest.mark.parametrize(
    ("use", "foreign"),
    [
        ("def use(thing):\n    return thing._parts\n", False),
        ("def use(thing):\n    return getattr(thing, '_parts')\n", False),
        ("class Use:\n    def __init__(self, thing):\n        self.thing = thing\n        thing._parts = []\n", False),
        ("class Use:\n    def run(self):\n        return self.thing._parts\n", False),
        ("from small.low import _parts\n", False),
        ("from small import low\n\n\ndef use():\n    return low._parts()\n", False),
        ("import os\n\n\ndef use():\n    os._get_exports_list(os)\n", True),
        ("import numba\n\n\ndef use():\n    return numba._parts\n", True),
        ("def use(dispatcher):\n    return dispatcher._compiler\n", True),
        ("from numba import _dispatcher\n", True),
    ],
)
def test_a_foreign_private_access(tmp_path: Path, use: str, foreign: bool) -> None:
    found = figures(tmp_path, right=use)
    assert [place.foreign for place in found.private] == [foreign]
    assert ("of other libraries:" in found.listing("private")) == foreign


@pytest.mark.parametrize(
    "use",
    [
        "class Use:\n    def run(self):\n        return self._parts + self.__dict__['x']\n",
        "class Use:\n    @classmethod\n    def make(cls):\n        return cls._make_one()\n",
        "class Use:\n    def run(self):\n        return super()._parts\n",
        "class Use:\n    _parts = 1\n\n    def same(self, other):\n        return self._parts == other._parts\n",
        "class Use:\n    __slots__ = ('_parts',)\n\n\ndef same(use):\n    return use._parts\n",
        "def use(row):\n    return row._replace(a=1), row.__class__\n",
        "import os\n\n\ndef use():\n    os._exit(1)\n",
        "from small import _hidden\n",
    ],
)
def test_own_private_names_do_not_count(tmp_path: Path, use: str) -> None:
    assert figures(tmp_path, right=use, _hidden="").private == []


def test_twenty_private_accesses_are_allowed_and_one_more_is_not(tmp_path: Path) -> None:
    use = "def use(thing):\n" + "    thing._parts\n" * 20
    assert figures(tmp_path / "20", right=use).broken() == []
    broken = figures(tmp_path / "21", right=use + "    thing._parts\n").broken()
    assert broken == ["accesses to private names of other objects: 21, at most 20"]


@pytest.mark.parametrize(
    "use", ["hasattr(thing, 'size')", "getattr(thing, 'size', None)", "hasattr(thing, name)", "hasattr(self, 'size')"]
)
def test_a_capability_check(tmp_path: Path, use: str) -> None:
    found = figures(tmp_path, right=f"def use(self, thing, name):\n    return {use}\n")
    assert [place.text for place in found.hasattr] == [use]
    assert found.broken() == ["capability checks by hasattr or getattr: 1, at most 0"]


@pytest.mark.parametrize(
    "use",
    [
        "import os\n\n\ndef use():\n    return hasattr(os, 'size')\n",
        "def use(array):\n    return hasattr(array, 'tobytes')\n",
        "def use(thing):\n    return getattr(thing, 'size')\n",
        "def use(array):\n    return getattr(array, 'size', 0)  # foreign: a NumPy array or a number\n",
        "class Use:\n    def __del__(self):\n        if hasattr(self, 'size'):\n            self.close()\n",
    ],
)
def test_questions_to_other_libraries_are_no_capability_checks(tmp_path: Path, use: str) -> None:
    assert figures(tmp_path, right=use).broken() == []


@pytest.mark.parametrize(
    "use",
    [
        "def use(x: Any) -> None: ...\n",
        "def use(*, x: dict[str, Any] | None = None) -> None: ...\n",
        "def use(*x: int, **y: Any) -> None: ...\n",
        "def use() -> 'list[Any]': ...\n",
        "x: Any = 1\ny: Literal['Any'] = 'Any'\n",
        "class Use:\n    x: typing.Any\n    y: int\n",
        "Loose = Any\n\n\ndef use(x: Loose) -> None: ...\n",
    ],
)
def test_an_annotation_with_any(tmp_path: Path, use: str) -> None:
    found = figures(tmp_path, right="from typing import Any, Literal\n" + use)
    assert len(found.any) == 1
    assert found.any_share(kernels=False)[0] == 1
    assert any(sentence.startswith("annotations with Any outside kernels: 1 of ") for sentence in found.broken())


def test_annotations_of_kernels_count_apart(tmp_path: Path) -> None:
    found = figures(tmp_path, kernels__dot__machine="from typing import Any\n\n\ndef at(x: Any) -> Any: ...\n")
    assert found.any_share(kernels=True) == (2, 2)
    assert found.any_share(kernels=False) == (0, 4)
    assert "kernels/machine.py" not in found.listing("any")


def test_a_module_that_is_too_long(tmp_path: Path) -> None:
    found = figures(tmp_path, right="x = 1\n" * 501)
    assert found.broken() == ["modules of more than 500 lines: 1, at most 0"]
    assert found.listing("long") == "small/right.py: 501 lines"


def test_the_command_fails_when_a_limit_is_broken(tmp_path: Path) -> None:
    figures(tmp_path, right="def use(thing):\n    return hasattr(thing, 'size')\n")
    written: list[str] = []
    package = ["--package", str(tmp_path / "src" / "small")]
    assert main(package, written.append) == 0
    assert main([*package, "--check"], written.append) == 1
    assert written[-1] == "capability checks by hasattr or getattr: 1, at most 0"
    assert main([*package, "--list", "hasattr"], written.append) == 0
    assert written[-1].splitlines() == ["small/right.py:2: hasattr(thing, 'size')", "", "     1 right"]


def test_the_package_itself_can_be_read() -> None:
    package = Path(__file__).resolve().parents[2] / "src" / "mileage"
    modules = read(package)
    assert modules["mileage.cli"].is_package
    assert "mileage.cli.train" in modules["mileage.cli.app"].edges


def test_an_alias_of_a_mapping_to_any_counts_as_any(tmp_path: Path) -> None:
    use = "from typing import Any\n\nRow = dict[str, Any]\n\n\ndef use(x: Row) -> None: ...\n"
    assert [place.text for place in figures(tmp_path, right=use).any] == ["use(x): Row"]


def test_a_module_with_one_importer_counts_where_both_are_of_one_package(tmp_path: Path) -> None:
    found = figures(
        tmp_path, right="from small.other import a, c\n", other__dot____init__="", other__dot__a="from . import b\n",
        other__dot__b="", other__dot__c="from . import d\n", other__dot__d="from . import b\n",
    )  # fmt: skip
    assert found.listing("sole") == "small/other/d.py: 1 lines"


def test_names_of_classes_that_stand_twice(tmp_path: Path) -> None:
    found = figures(tmp_path, right="class Thing:\n    pass\n\n\nclass _Own:\n    pass\n")
    assert found.listing("same") == "Thing: small.low, small.right"


def test_growth_beyond_one_percent_needs_a_line_in_the_changelog(tmp_path: Path) -> None:
    more = "x = 1\n" * 491
    (tmp_path / "CHANGELOG.md").write_text("- Source: 495 lines.\n- Source: 9,000 lines.\n")
    [sentence, mean] = figures(tmp_path, right=more).broken()
    assert sentence == "lines: 501, at most 499 until CHANGELOG.md says more, and what for"
    assert mean == "lines of a module in the mean: 100, at least 190"


def test_a_package_that_needs_what_needs_one_of_its_modules(tmp_path: Path) -> None:
    found = figures(
        tmp_path, low="from small.other import a\n", other__dot____init__="from small import low\n", other__dot__a=""
    )
    assert found.cycles == [["small.low", "small.other"]]
    assert cycles(found.modules) == []
