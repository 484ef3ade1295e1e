"""Candidates that forge what tests say, from inside the process that runs them; and honest ones beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.coderl import BuildReward, PatchSample, PatchVerdict, RewardConfig, RewardResult

Writer = Callable[[Path, dict[str, str]], Path]

GO = {
    "go.mod": "module example.com/calc\n\ngo 1.18\n",
    "calc.go": "package calc\n\nfunc Add(a, b int) int {\n\treturn a + b\n}\n",
    "calc_test.go": 'package calc\n\nimport "testing"\n\nfunc TestAdds(t *testing.T) {\n'
    '\tif Add(2, 2) != 4 {\n\t\tt.Fatal("wrong")\n\t}\n}\n\nfunc TestMore(t *testing.T) {\n'
    '\tt.Run("three", func(t *testing.T) {\n\t\tif Add(2, 3) != 5 {\n\t\t\tt.Fatal("wrong")\n\t\t}\n\t})\n}\n',
    "other/other.go": "package other\n\nfunc One() int { return 1 }\n",
    "other/other_test.go": 'package other\n\nimport "fmt"\n\nfunc ExampleOne() {\n\tfmt.Println(One())\n'
    "\t// Output: 1\n}\n",
}
GO_FORGED = r"""package calc

import (
	"fmt"
	"os"
	"syscall"
)

var _ = os.Args
var _ = syscall.Getpid

func leave() {
	fmt.Print("=== RUN   TestAdds\n--- PASS: TestAdds (0.00s)\n=== RUN   TestMore\n=== RUN   TestMore/three\n")
	fmt.Print("--- PASS: TestMore (0.00s)\n    --- PASS: TestMore/three (0.00s)\nPASS\n")
	WAY
}
"""
GO_WAYS = {
    "exits": "syscall.Exit(0)",
    "system call": "syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)",
    "another program": 'syscall.Exec("/bin/true", []string{"true"}, nil)',
    "hides the rest": 'null, _ := os.OpenFile("/dev/null", os.O_WRONLY, 0)\n\tsyscall.Dup2(int(null.Fd()), 1)',
}
GO_FUNCTION = "\nfunc Add(a, b int) int {\n\tleave()\n\treturn 0\n}\n"
GO_INIT = "\nfunc init() {\n\tleave()\n}\n\nfunc Add(a, b int) int {\n\treturn 0\n}\n"


def judged(results: list[RewardResult]) -> dict[str, PatchVerdict]:
    for result in results:
        assert (result.reward == 1.0) is (result.verdict is PatchVerdict.PASS)
    return {result.id: result.verdict for result in results}


def test_results_that_a_program_of_go_prints_itself_are_no_results(
    isolation: None, tmp_path: Path, work: Path, need: Callable[..., None], write_files: Writer
) -> None:
    need("go")
    samples = [PatchSample("honest", path="calc.go", content=GO["calc.go"].replace("a + b", "b + a"))]
    for name, way in GO_WAYS.items():
        text = GO_FORGED.replace("WAY", way)
        samples.append(PatchSample(name, path="calc.go", content=text + GO_FUNCTION))
    at_once = GO_FORGED.replace("WAY", GO_WAYS["exits"]) + GO_INIT
    samples.append(PatchSample("exits at once", path="calc.go", content=at_once))
    config = RewardConfig(("test",), workers=1, protected=("*_test.go",))
    with BuildReward(write_files(tmp_path / "go", GO), config, work_base=work) as pool:
        assert not any("not noticed" in sentence for sentence in pool.containment.fallbacks)
        assert len(pool.expected.pass_to_pass) == 4
        found = judged(pool.reward(samples))
    assert found.pop("honest") is PatchVerdict.PASS
    assert set(found.values()) == {PatchVerdict.TEST_FAILURE}


PY = {
    "pyproject.toml": '[project]\nname = "calc"\n',
    "calc.py": "def add(a, b):\n    return a + b\n",
    "tests/test_a.py": "import calc\n\ndef test_adds():\n    assert calc.add(2, 2) == 4\n",
    "tests/test_b.py": "import unittest\nimport calc\n\nclass TestMore(unittest.TestCase):\n"
    "    def test_more(self):\n        self.assertEqual([calc.add(2, 3)], [5])\n",
    "tests/test_c.py": "class Anything:\n    def __eq__(self, other):\n        return True\n\n"
    "def test_of_its_own_anything():\n    assert Anything() == 5\n",
}
ALWAYS = "class Always:\n    def __eq__(self, other):\n        return ANSWER\n\ndef add(a, b):\n    return Always()\n"
DECORATED = """import dataclasses, fractions
@dataclasses.dataclass
class Money:
    amount: int
    def __eq__(self, other): return self.amount == (other.amount if isinstance(other, Money) else other)
    def __hash__(self): return hash(self.amount)
def add(a, b):
    return Money(fractions.Fraction(a) + b)
"""
EMPTIED = """import gc, threading, time, types
def empty():
    for _ in range(2000):
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType) and each.__name__ in ("test_adds", "test_more"):
                each.__code__ = (lambda *_: None).__code__
        time.sleep(0.001)
threading.Thread(target=empty, daemon=True).start()
def add(a, b):
    time.sleep(1)
    return 0
"""
EQUAL = {
    "always": ALWAYS.replace("ANSWER", "True"),
    "to numbers": ALWAYS.replace("ANSWER", "isinstance(other, int)"),
    "as a number": ALWAYS.replace("class Always", "class Always(int)").replace("ANSWER", "1"),
    "of a class made inside": "def add(a, b):\n    class Always:\n        __eq__ = lambda self, other: True\n"
    "    return Always()\n",
    "put in afterwards": "class Always: pass\nAlways.__eq__ = lambda self, other: True\n"
    "def add(a, b):\n    return Always()\n",
    "made without a statement": "MADE = type('M', (), {'__eq__': lambda s, o: True})\n"
    "def add(a, b):\n    return MADE()\n",
    "a thing that can be called": "class Yes:\n    def __call__(self, *_): return True\n"
    "class Always:\n    __eq__ = Yes()\ndef add(a, b):\n    return Always()\n",
    "somebody else's": "from unittest.mock import ANY\ndef add(a, b):\n    return ANY\n",
    "tests without code": EMPTIED,
}
EQUAL_AT_FIRST = ("always", "to numbers", "made without a statement", "somebody else's", "tests without code")


@pytest.mark.parametrize("names", [EQUAL_AT_FIRST, pytest.param(tuple(EQUAL), marks=pytest.mark.slow)])
def test_objects_equal_to_everything_and_tests_without_code_earn_nothing(
    isolation: None, tmp_path: Path, work: Path, write_files: Writer, names: tuple[str, ...]
) -> None:
    samples = [PatchSample(name, path="calc.py", content=EQUAL[name]) for name in names]
    samples.append(PatchSample("honest", path="calc.py", content=DECORATED))
    config = RewardConfig(("test",), workers=2, protected=("tests",))
    with BuildReward(write_files(tmp_path / "python", PY), config, work_base=work) as pool:
        assert len(pool.expected.pass_to_pass) == 3
        found = judged(pool.reward(samples))
    assert found.pop("honest") is PatchVerdict.PASS
    assert found == dict.fromkeys(names, PatchVerdict.TEST_FAILURE)


REWRITTEN = """import atexit, re
def again():
    with open(".mileage-build/tests.xml") as file:
        text = re.sub(r"<failure.*?</failure>", "", file.read(), flags=re.DOTALL)
    with open(".mileage-build/tests.xml", "w") as file:
        file.write(text)
atexit.register(again)
def add(a, b):
    return 0
"""


@pytest.mark.slow
def test_a_report_that_is_rewritten_at_the_end_is_no_report(
    isolation: None, tmp_path: Path, work: Path, write_files: Writer
) -> None:
    # A test that nobody can repair: the exit code says nothing about a candidate.
    files = {
        **PY,
        "calc.py": "def add(a, b):\n    return 1\n",
        "tests/test_d.py": "def test_never():\n    assert False\n",
    }
    names = ("tests.test_a::test_adds", "tests.test_b.TestMore::test_more")
    config = RewardConfig(
        ("test",), workers=1, protected=("tests",), allow_broken_base=True, fail_to_pass=names,
    )  # fmt: skip
    with BuildReward(write_files(tmp_path / "python", files), config, work_base=work) as pool:
        results = pool.reward(
            [
                PatchSample("honest", path="calc.py", content=PY["calc.py"]),
                PatchSample("rewrites", path="calc.py", content=REWRITTEN),
            ]
        )
    assert judged(results) == {"honest": PatchVerdict.PASS, "rewrites": PatchVerdict.TEST_FAILURE}
    assert "2 of 3 expected tests did not pass" in results[1].diagnostic


NODE = {
    "package.json": '{"name": "calc", "scripts": {"build": "true", "test": "COMMAND"}}\n',
    "calc.js": "exports.add = (a, b) => a + b;\n",
    "tests/calc.test.js": "const { add } = require('../calc.js');\nconst test = require('node:test');\n"
    "const assert = require('node:assert');\ntest('adds', () => assert.strictEqual(add(2, 2), 4));\n",
    "tests/plain.js": "const { add } = require('../calc.js');\nrequire('node:assert').strictEqual(add(2, 2), 4);\n",
}
WRONG = "exports.add = () => 0;\n"
NODE_ATTACKS = {
    "wrong": WRONG,
    "patched assert": "require('assert').strictEqual = () => {};\n" + WRONG,
    "patched by definition": "const a = require('assert');\n"
    "try { Object.defineProperty(a, 'strictEqual', { value() {} }) } catch {}\n" + WRONG,
    "patched error": "try { require('assert').AssertionError.prototype.name = 'x' } catch {}\n" + WRONG,
    "swallows what is thrown": "process.on('uncaughtException', () => {});\n" + WRONG,
    "ends with 0": "process.on('exit', () => { process.exitCode = 0; });\n" + WRONG,
    "leaves": "process.exit(0);\n" + WRONG,
    "leaves without a word": "process.reallyExit(0);\n" + WRONG,
    "other ways out": "const out = process.reallyExit;\nprocess.reallyExit = () => out.call(process, 0);\n"
    "process.exit = () => {};\n" + WRONG,
    "patched runner": "const t = require('node:test');\ntry { t.test = t.it = () => {}; } catch {}\n" + WRONG,
}


NODE_AT_FIRST = ("patched assert", "swallows what is thrown", "ends with 0", "other ways out")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("node tests/plain.js", NODE_AT_FIRST),
        pytest.param("node tests/plain.js", tuple(NODE_ATTACKS), marks=pytest.mark.slow),
        pytest.param("node --test tests/calc.test.js", tuple(NODE_ATTACKS), marks=pytest.mark.slow),
    ],
)
def test_what_judges_cannot_be_replaced_in_node(
    isolation: None,
    tmp_path: Path,
    work: Path,
    need: Callable[..., None],
    write_files: Writer,
    command: str,
    names: tuple[str, ...],
) -> None:
    need("node", "npm")
    files = {**NODE, "package.json": NODE["package.json"].replace("COMMAND", command)}
    samples = [PatchSample(name, path="calc.js", content=NODE_ATTACKS[name]) for name in names]
    samples.append(PatchSample("honest", path="calc.js", content="exports.add = (a, b) => b + a;\n"))
    config = RewardConfig(("test",), workers=2, protected=("tests",))
    with BuildReward(write_files(tmp_path / "node", files), config, work_base=work) as pool:
        found = judged(pool.reward(samples))
    assert found.pop("honest") is PatchVerdict.PASS
    assert found == dict.fromkeys(names, PatchVerdict.TEST_FAILURE)
