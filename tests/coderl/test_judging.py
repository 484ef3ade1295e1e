"""Candidates that try to earn a reward without doing the work, each planted once, and what honest ones earn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.coderl import BuildReward, PatchSample, PatchVerdict, RewardConfig, RewardResult, candidate
from mileage.coderl.readers import Expected
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.snapshots import SnapshotMethod
from mileage.errors import BuildError, UsageError

CALC = {
    "Cargo.toml": '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n',
    "Cargo.lock": 'version = 4\n\n[[package]]\nname = "calc"\nversion = "0.1.0"\n',
    "src/lib.rs": "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\npub fn twice(a: i32) -> i32 {\n    a * 2\n}\n",
    "tests/it.rs": "#[test]\nfn adds() {\n    assert_eq!(calc::add(2, 2), 4);\n}\n"
    "#[test]\nfn doubles() {\n    assert_eq!(calc::twice(4), 8);\n}\n",
}
HONEST = "pub fn add(a: i32, b: i32) -> i32 {\n    b + a\n}\npub fn twice(a: i32) -> i32 {\n    2 * a\n}\n"
WRONG = HONEST.replace("b + a", "b - a")
FAKE_TESTS = "#[test] fn adds() {} #[test] fn doubles() {}"
# Build scripts are protected with the tests, unless the project leaves them to candidates.
OPEN_SCRIPT = """[rl-bench]
kind = "cargo"
harness = ["Cargo.toml", ".cargo", "rust-toolchain.toml"]
"""
REWRITES = f"""--- /dev/null
+++ b/build.rs
@@ -0,0 +1,4 @@
+fn main() {{
+    let _ = std::fs::write("tests/it.rs", "{FAKE_TESTS}");
+    let _ = std::fs::write("tests/more.rs", "{FAKE_TESTS}");
+}}
--- a/src/lib.rs
+++ b/src/lib.rs
@@ -1,3 +1,3 @@
 pub fn add(a: i32, b: i32) -> i32 {{
-    a + b
+    a - b
 }}
"""
# All that the runner would have said, past its capturing, and the end before it can say otherwise.
FORGED = """use std::io::Write;
pub fn add(_: i32, _: i32) -> i32 {
    let mut out = std::fs::OpenOptions::new().write(true).open("/dev/stdout").unwrap();
    let _ = out.write_all(b"test adds ... ok\\ntest doubles ... ok\\n\\ntest result: ok. 2 passed\\n");
    std::process::exit(0)
}
pub fn twice(a: i32) -> i32 {
    std::thread::sleep(std::time::Duration::from_secs(60));
    a
}
"""
RUST = (
    PatchSample("honest", path="src/lib.rs", content=HONEST),
    PatchSample("wrong", path="src/lib.rs", content=WRONG),
    PatchSample("exits", path="src/lib.rs", content=HONEST.replace("b + a", "std::process::exit(0)")),
    PatchSample("forges-and-exits", path="src/lib.rs", content=FORGED),
    PatchSample("rewrites-tests-in-its-build-script", patch=REWRITES),
    PatchSample("toolchain", path="rust-toolchain.toml", content='[toolchain]\npath = "/mileage/tree/own"\n'),
    PatchSample("other-tests", path="Cargo.toml", content=CALC["Cargo.toml"] + "autotests = false\n"),
    candidate("src/lib.rs")("", {"id": "empty"}),
    PatchSample("same", path="src/lib.rs", content=CALC["src/lib.rs"]),
)
RUST_VERDICTS = {
    "honest": PatchVerdict.PASS,
    "wrong": PatchVerdict.TEST_FAILURE,
    "exits": PatchVerdict.TEST_FAILURE,
    "forges-and-exits": PatchVerdict.TEST_FAILURE,
    "toolchain": PatchVerdict.DOES_NOT_APPLY,
    "rewrites-tests-in-its-build-script": PatchVerdict.TEST_FAILURE,
    "other-tests": PatchVerdict.DOES_NOT_APPLY,
    "empty": PatchVerdict.NO_CHANGE,
    "same": PatchVerdict.NO_CHANGE,
}
PY = {
    "pyproject.toml": '[project]\nname = "calc"\n',
    "calc.py": "def add(a, b):\n    return a + b\n",
    "tests/test_a.py": "import calc\n\ndef test_adds():\n    assert calc.add(2, 2) == 4\n",
    "tests/test_b.py": "import calc\n\ndef test_adds_more():\n    assert calc.add(2, 3) == 5\n",
}
FORGE = """import pathlib

for path in pathlib.Path(__file__).parent.glob("tests/test_*.py"):
    try:
        path.write_text("def test_adds(): pass\\ndef test_adds_more(): pass\\n")
    except OSError:
        pass

def add(a, b):
    return 4
"""
FORGED_REPORT = """import atexit, os, sys
CASE = '<testcase classname="tests.test_%s" name="%s"/>'
def leave():
    os.makedirs(".mileage-build", exist_ok=True)
    with open(".mileage-build/tests.xml", "w") as file:
        file.write("<testsuite>" + CASE % ("a", "test_adds") + CASE % ("b", "test_adds_more") + "</testsuite>")
    os._exit(0)
leave()
def add(a, b): return 0
"""
CHANGED_RUNNER = """import _pytest.python
_pytest.python.Function.runtest = lambda self: None
def add(a, b): return 0
"""
PYTHON = (
    PatchSample("honest", path="calc.py", content="def add(a, b):\n    return b + a\n"),
    PatchSample("leaves", path="calc.py", content="import os\nos._exit(0)\n"),
    PatchSample("leaves-later", path="calc.py", content="import os\ndef add(a, b):\n    os._exit(0)\n"),
    PatchSample("rewrites-tests-when-imported", path="calc.py", content=FORGE),
    PatchSample("forges-a-report-and-leaves", path="calc.py", content=FORGED_REPORT),
    PatchSample(
        "forges-when-it-ends", path="calc.py", content=FORGED_REPORT.replace("leave()", "atexit.register(leave)")
    ),
    PatchSample("changes-the-runner", path="calc.py", content=CHANGED_RUNNER),
    PatchSample("plugin", path="conftest.py", content="import os\nos._exit(0)\n"),
    PatchSample("shadows-pytest", path="pytest.py", content="raise SystemExit(0)\n"),
    PatchSample("site", path="sitecustomize.py", content="import os\nos._exit(0)\n"),
)


def verdicts(results: list[RewardResult]) -> dict[str, PatchVerdict]:
    for result in results:
        assert (result.reward == 1.0) is (result.verdict is PatchVerdict.PASS)
    return {result.id: result.verdict for result in results}


@pytest.fixture
def calc(tmp_path: Path, need: Callable[..., None], write_files: Callable[[Path, dict[str, str]], Path]) -> Path:
    need("cargo", "cc")
    return write_files(tmp_path / "calc", CALC)


@pytest.fixture
def python(tmp_path: Path, write_files: Callable[[Path, dict[str, str]], Path]) -> Path:
    return write_files(tmp_path / "python", PY)


@pytest.mark.parametrize("method", [SnapshotMethod.OVERLAY, SnapshotMethod.COPY])
def test_rust_candidates_earn_what_their_tests_say(
    request: pytest.FixtureRequest, calc: Path, work: Path, method: SnapshotMethod
) -> None:
    isolation = Isolation.OFF
    if method is SnapshotMethod.OVERLAY:
        request.getfixturevalue("isolation")
        isolation = Isolation.REQUIRE
    (calc / "rl-bench.toml").write_text(OPEN_SCRIPT)
    config = RewardConfig(("build", "test"), workers=1, protected=("tests",), method=method, isolation=isolation)
    with BuildReward(calc, config, work_base=work) as pool:
        assert pool.expected == Expected(pass_to_pass=frozenset({"it tests/it.rs::adds", "it tests/it.rs::doubles"}))
        results = pool.reward(RUST)
    expected = dict(RUST_VERDICTS)
    if method is SnapshotMethod.COPY:
        # Nothing is read-only there: the build script rewrites the tests again when they are built, and is seen.
        expected["rewrites-tests-in-its-build-script"] = PatchVerdict.TAMPERED
    assert verdicts(results) == expected
    by_name = {result.id: result for result in results}
    assert "expected tests did not report" in by_name["exits"].diagnostic
    assert {test.name: test.passed for test in by_name["wrong"].tests} == {
        "it tests/it.rs::adds": False,
        "it tests/it.rs::doubles": True,
    }


def test_python_candidates_earn_what_their_tests_say(isolation: None, python: Path, work: Path) -> None:
    config = RewardConfig(("test",), workers=1, protected=("tests",))
    with BuildReward(python, config, work_base=work) as pool:
        assert len(pool.expected.pass_to_pass) == 2
        found = verdicts(pool.reward(PYTHON))
    assert found == {
        "honest": PatchVerdict.PASS,
        "leaves": PatchVerdict.TEST_FAILURE,
        "leaves-later": PatchVerdict.TEST_FAILURE,
        "rewrites-tests-when-imported": PatchVerdict.TEST_FAILURE,
        "forges-a-report-and-leaves": PatchVerdict.TEST_FAILURE,
        "forges-when-it-ends": PatchVerdict.TEST_FAILURE,
        "changes-the-runner": PatchVerdict.TEST_FAILURE,
        "plugin": PatchVerdict.DOES_NOT_APPLY,
        "shadows-pytest": PatchVerdict.DOES_NOT_APPLY,
        "site": PatchVerdict.DOES_NOT_APPLY,
    }


MAKE = {
    "Makefile": "include rules.mk\nt: calc.o tests/t.c\n\tcc -o t tests/t.c calc.o\ncalc.o: calc.c\n\tcc -c calc.c\n"
    "test: t\n\t./t\n",
    "rules.mk": "",
    "calc.c": "int add(int a, int b) { return a + b; }\n",
    "tests/t.c": "int add(int, int);\nint main(void) { return add(2, 2) != 4; }\n",
}
WAYS_OUT = {
    "exit": "exit(0);",
    "_exit": "_exit(0);",
    "system call": "syscall(SYS_exit_group, 0);",
    "last thread": "pthread_exit(0);",
    "another program": 'execl("/bin/true", "true", (char *)0);',
    "without its file": 'unlink("t"); execl("/bin/true", "true", (char *)0);',
    "parent of the rest": "if (fork()) _exit(0);",
    "handler": "atexit(leave);",
}
C_HEAD = "#define _GNU_SOURCE\n" + "".join(
    f"#include <{name}.h>\n" for name in ("stdlib", "unistd", "pthread", "sys/syscall")
)

EDGES = ("constructor", "destructor")
# Its function is looked for before anything else of the program runs, what hears it included.
BEFORE_ALL = """static int real(int a, int b) { return 0; }
static void *find(void) {
    __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
    return real;
}
int add(int a, int b) __attribute__((ifunc("find")));
"""
AT_THE_EDGE = C_HEAD + "__attribute__((KIND)) void f(void) { _exit(0); }\nint add(int a, int b) { return 0; }\n"


def leaving(way: str) -> PatchSample:
    text = f"{C_HEAD}void leave(void) {{ _exit(0); }}\nint add(int a, int b) {{ {WAYS_OUT[way]} return 0; }}\n"
    return PatchSample(way, path="calc.c", content=text)


@pytest.mark.parametrize("broken", [False, True])
def test_programs_that_leave_in_the_middle_have_not_passed(
    isolation: None,
    tmp_path: Path,
    work: Path,
    need: Callable[..., None],
    write_files: Callable[[Path, dict[str, str]], Path],
    broken: bool,
) -> None:
    need("make", "cc")
    right = "int add(int a, int b) { return b + a; }\n"
    files = MAKE | ({"calc.c": "int add(int a, int b) { return 0; }\n"} if broken else {})
    samples = [
        PatchSample("honest", path="calc.c", content=right),
        PatchSample("wrong", path="calc.c", content="int add(int a, int b) { return 1; }\n"),
        *map(leaving, WAYS_OUT),
        *(PatchSample(kind, path="calc.c", content=AT_THE_EDGE.replace("KIND", kind)) for kind in EDGES),
        *([PatchSample("before all", path="calc.c", content=BEFORE_ALL)] if os.uname().machine == "x86_64" else []),
        PatchSample("target up to date", path="test", content="x\n"),
        PatchSample("included rules", path="rules.mk", content="test:\n\ttrue\n"),
    ]  # fmt: skip
    config = RewardConfig(("build", "test"), workers=2, protected=("tests",), allow_broken_base=broken)
    with BuildReward(write_files(tmp_path / "make", files), config, work_base=work) as pool:
        assert not any("not noticed" in sentence for sentence in pool.containment.fallbacks)
        results = pool.reward(samples)
    found = verdicts(results)
    assert found.pop("honest") is PatchVerdict.PASS
    assert found.pop("target up to date") is found.pop("included rules") is PatchVerdict.DOES_NOT_APPLY
    assert set(found.values()) == {PatchVerdict.TEST_FAILURE}
    assert all("left before the end" in result.diagnostic for result in results if result.id in WAYS_OUT)


TALKS = """#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int add(int a, int b) {
    struct sockaddr_un to = {AF_UNIX};
    const char *name = getenv("MILEAGE_WITNESS");
    if (!name) return 0;
    strcpy(to.sun_path + 1, name);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
    int channel = socket(AF_UNIX, SOCK_DGRAM, 0);
    for (int copy = 0; copy < 6; copy++) if (!fork()) break;
    char text[3000];
    memset(text, 'x', sizeof text);
    for (long number = 0;; number++) {
        text[0] = "TBx"[number % 3];
        memcpy(text + 1, &number, sizeof number);
        sendto(channel, text, sizeof text, 0, (struct sockaddr *)&to, size);
    }
}
"""


def test_who_talks_to_the_launcher_without_end_is_ended_in_time(
    isolation: None,
    tmp_path: Path,
    work: Path,
    need: Callable[..., None],
    write_files: Callable[[Path, dict[str, str]], Path],
) -> None:
    need("make", "cc")
    config = RewardConfig(("build", "test"), workers=1, protected=("tests",), timeout_seconds=4)
    with BuildReward(write_files(tmp_path / "make", MAKE), config, work_base=work) as pool:
        results = pool.reward([PatchSample("talks", path="calc.c", content=TALKS)])
    # A launcher that never looks at the clock would be ended itself, which is no verdict.
    assert verdicts(results) == {"talks": PatchVerdict.TIMEOUT}


DEEP = """import os, pathlib
os.makedirs(".mileage-build", exist_ok=True)
case = '<testsuite><testcase classname="tests.test_%s" name="%s"/></testsuite>'
for number in range(1200):
    pathlib.Path(f".mileage-build/{number}.xml").write_text(case % ("a", "test_adds"))
pathlib.Path("calc.py").write_text("def add(a, b):\\n    return 0\\n")
for _ in range(1500):
    os.mkdir("deep")
    os.chdir("deep")
"""


@pytest.mark.slow
def test_reports_that_were_there_before_the_tests_are_no_reports(isolation: None, python: Path, work: Path) -> None:
    # The build runs a script of the candidate's, which leaves reports behind and a tree too deep to walk.
    (python / "rl-bench.toml").write_text(
        "[rl-bench]\nkind = 'python'\nbuild = 'python3 plan.py'\ntest_format = 'junit'\n"
        f"test = '{sys.executable} -m pytest -q --junitxml=.mileage-build/tests.xml'\n"
        "test_reports = ['.mileage-build/**/*.xml']\n"
    )
    (python / "plan.py").write_text("")
    shallow = DEEP.replace("range(1500)", "range(0)")
    samples = [
        PatchSample("leaves reports", path="plan.py", content=shallow),
        PatchSample("and a deep tree", path="plan.py", content=DEEP),
    ]
    seen = (sys.prefix, sys.base_prefix)
    config = RewardConfig(("build", "test"), workers=1, protected=("tests",), readable=seen)
    with BuildReward(python, config, work_base=work) as pool:
        results = pool.reward(samples)
    assert [result.reward for result in results] == [0.0, 0.0]
    assert results[0].verdict is PatchVerdict.TEST_FAILURE


def test_without_isolation_tests_that_are_rewritten_while_they_run_are_noticed(python: Path, work: Path) -> None:
    config = RewardConfig(("test",), workers=1, protected=("tests",), isolation=Isolation.OFF)
    with BuildReward(python, config, work_base=work) as pool:
        results = pool.reward([PYTHON[0], PYTHON[3]])
    assert [result.verdict for result in results] == [PatchVerdict.PASS, PatchVerdict.TAMPERED]
    assert "tests" in results[1].diagnostic


@pytest.mark.slow
def test_tests_of_the_grader_are_seen_by_no_candidate(
    isolation: None, python: Path, work: Path, tmp_path: Path, write_files: Callable[[Path, dict[str, str]], Path]
) -> None:
    hidden = "import calc\n\ndef test_subtracts():\n    assert calc.sub(3, 1) == 2\n\ndef test_floats():\n"
    hidden += "    assert calc.sub(0.5, 0.25) == 0.25\n"
    grader = write_files(tmp_path / "grader", {"tests/test_hidden.py": hidden})
    good = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n"
    peeks = "import glob\nassert not glob.glob('**/test_hidden.py', recursive=True)\n" + good
    config = RewardConfig(
        ("build", "test"), workers=1, protected=("tests",), grader_tests=grader, partial_credit=0.5,
        solution=PatchSample("solution", path="calc.py", content=good),
    )  # fmt: skip
    samples = [
        PatchSample("other", path="calc.py", content=good.replace("a - b", "-b + a")),
        PatchSample("half", path="calc.py", content=good.replace("a - b", "int(a - b)")),
        PatchSample("breaks", path="calc.py", content=good.replace("a + b", "5")),
        PatchSample("nothing", path="calc.py", content=PY["calc.py"] + "\n"),
        PatchSample("sees-them-only-in-tests", path="calc.py", content=peeks),
    ]
    with BuildReward(python, config, work_base=work) as pool:
        assert sorted(pool.expected.fail_to_pass) == [
            "tests.test_hidden::test_floats",
            "tests.test_hidden::test_subtracts",
        ]
        rewards = {result.id: result.reward for result in pool.reward(samples)}
    assert rewards == {"other": 1.0, "half": 0.25, "breaks": 0.0, "nothing": 0.0, "sees-them-only-in-tests": 0.0}


def test_a_base_that_fails_its_tests_is_refused_unless_they_are_to_be_repaired(python: Path, work: Path) -> None:
    (python / "calc.py").write_text("def add(a, b):\n    return 4\n")
    with pytest.raises(BuildError, match="does not pass its own tests"):
        BuildReward(python, RewardConfig(("test",), workers=1), work_base=work)
    names = ("tests.test_b::test_adds_more",)
    config = RewardConfig(("test",), workers=1, protected=("tests",), fail_to_pass=names)
    with BuildReward(python, config, work_base=work) as pool:
        assert pool.expected == Expected(frozenset(names), frozenset({"tests.test_a::test_adds"}))
        results = pool.reward([PYTHON[0], PatchSample("wrong", path="calc.py", content="def add(a, b):\n    return 5")])
    assert [result.verdict for result in results] == [PatchVerdict.PASS, PatchVerdict.TEST_FAILURE]
    assert list(work.iterdir()) == []


def test_a_solution_that_does_not_pass_is_refused(python: Path, work: Path) -> None:
    wrong = PatchSample("solution", path="calc.py", content="def add(a, b):\n    return 4\n")
    with pytest.raises(BuildError, match="the solution does not pass"):
        BuildReward(python, RewardConfig(("test",), workers=1, solution=wrong), work_base=work)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partial_credit": 1.5, "steps": ("test",)}, "partial_credit must be from 0 to 1"),
        ({"partial_credit": 0.5}, "partial_credit is about tests"),
        ({"fail_to_pass": ("a",)}, "fail_to_pass is about tests"),
    ],
)
def test_options_about_tests_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RewardConfig(**options)  # type: ignore[arg-type]
