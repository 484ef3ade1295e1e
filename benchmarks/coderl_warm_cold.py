"""Verdicts on 22 candidates from a warm tree, in four orders, against those of builds from clean.

    python benchmarks/coderl_warm_cold.py --output benchmarks/results/coderl_warm_cold.md

Candidates are chosen to make the two differ: headers that shadow others, modules with two homes, files that go, build
files that change, files that configuring looked for. Each is judged from clean once, and from the warm tree in the
given order, backwards, and in two shuffled ones, without a cache of verdicts. A candidate that adds or removes a file
is built with all sources new; the table says which those are. Exit code 1 if any two verdicts differ.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from mileage.coderl import BuildReward, PatchSample, RewardConfig, RewardResult
from mileage.tables import Table

CRATE = {
    "Cargo.toml": '[workspace]\nmembers = ["core", "app"]\nresolver = "2"\n',
    "core/Cargo.toml": '[package]\nname = "core-lib"\nversion = "0.1.0"\nedition = "2021"\n[features]\nwide = []\n',
    "core/src/lib.rs": "pub mod shape;\npub fn double(x: u32) -> u32 {\n    x * 2\n}\n",
    "core/src/shape.rs": "pub fn area(side: u32) -> u32 {\n    side * side\n}\n",
    "core/tests/it.rs": "#[test]\nfn squares() {\n    assert_eq!(core_lib::shape::area(3), 9);\n}\n",
    "app/Cargo.toml": '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n'
    '[dependencies]\ncore-lib = { path = "../core" }\n',
    "app/src/main.rs": 'fn main() {\n    println!("{}", core_lib::double(21));\n}\n',
    "app/src/greeting.txt": "hello\n",
    "Cargo.lock": 'version = 4\n\n[[package]]\nname = "app"\nversion = "0.1.0"\ndependencies = [\n "core-lib",\n]\n\n'
    '[[package]]\nname = "core-lib"\nversion = "0.1.0"\n',
}
BUILD_SCRIPT = 'fn main() {\n    assert!(std::path::Path::new("src/greeting.txt").exists());\n}\n'
CRATE_CANDIDATES = (
    PatchSample("same meaning", path="core/src/lib.rs", content=CRATE["core/src/lib.rs"].replace("x * 2", "x + x")),
    PatchSample("wrong answer", path="core/src/shape.rs", content="pub fn area(side: u32) -> u32 {\n    side\n}\n"),
    PatchSample("type error", path="core/src/lib.rs", content=CRATE["core/src/lib.rs"].replace("x * 2", '"x"')),
    PatchSample("module with two homes", path="core/src/shape/mod.rs", content=CRATE["core/src/shape.rs"]),
    PatchSample("new module that nobody names", path="core/src/extra.rs", content="this is not Rust\n"),
    PatchSample("new binary that is broken", path="app/src/bin/two.rs", content="fn main() {\n"),
    PatchSample("new binary", path="app/src/bin/two.rs", content="fn main() {}\n"),
    PatchSample("build script that finds its file", path="app/build.rs", content=BUILD_SCRIPT),
    PatchSample("build script that does not", path="app/build.rs", content=BUILD_SCRIPT.replace("greeting", "gone")),
    PatchSample(
        "module that goes",
        patch="--- a/core/src/shape.rs\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-pub fn area(side: u32) -> u32 {\n"
        "-    side * side\n-}\n",
    ),
)
C_PROJECT = {
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\ninclude(CheckIncludeFile)\n"
    "set(CMAKE_REQUIRED_INCLUDES ${CMAKE_SOURCE_DIR}/first)\ncheck_include_file(extra.h HAVE_EXTRA)\n"
    "file(GLOB parts parts/*.c)\nadd_executable(p main.c ${parts})\n"
    "target_include_directories(p PRIVATE first second)\n"
    "if(HAVE_EXTRA)\n  target_compile_definitions(p PRIVATE EXTRA)\nendif()\n"
    "enable_testing()\nadd_test(NAME runs COMMAND p)\n",
    "main.c": '#include "size.h"\n#ifdef EXTRA\n#error extra\n#endif\nint part(void);\n'
    "int main(void) { return part() - SIZE; }\n",
    "parts/part.c": '#include "size.h"\nint part(void) { return SIZE; }\n',
    "first/other.h": "/* nothing */\n",
    "second/size.h": "#define SIZE 1\n",
}
C_CANDIDATES = (
    PatchSample("header changed for all", path="second/size.h", content="#define SIZE 2\n"),
    PatchSample("header that shadows", path="first/size.h", content="#error shadowed\n"),
    PatchSample("header that shadows with its like", path="first/size.h", content="#define SIZE 3\n"),
    PatchSample("header that configuring looks for", path="first/extra.h", content="/* extra */\n"),
    PatchSample("source that a glob finds", path="parts/more.c", content="int part(void) { return 1; }\n"),
    PatchSample(
        "source that a glob found goes",
        patch='--- a/parts/part.c\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-#include "size.h"\n'
        "-int part(void) { return SIZE; }\n",
    ),
    PatchSample(
        "build file", path="CMakeLists.txt", content=C_PROJECT["CMakeLists.txt"].replace("first second", "first")
    ),
    PatchSample("wrong answer in C", path="parts/part.c", content="int part(void) { return 9; }\n"),
)
MAKE_PROJECT = {
    # It does not declare that objects depend on headers.
    "Makefile": "app: main.o part.o\n\tcc -o app main.o part.o\n%.o: %.c\n\tcc -Ifirst -Isecond -c $< -o $@\n"
    "test: app\n\t./app\n",
    "second/part.h": "int part(int x);\n",
    "first/none.h": "/* nothing */\n",
    "part.c": '#include "part.h"\nint part(int x) { return x + 1; }\n',
    "main.c": '#include "part.h"\nint main(void) { return part(1) == 2 ? 0 : 1; }\n',
}
MAKE_CANDIDATES = (
    PatchSample("changed source", path="part.c", content='#include "part.h"\nint part(int x) { return x; }\n'),
    PatchSample("header that shadows in Make", path="first/part.h", content="#error shadowed\n"),
    PatchSample(
        "header that goes", patch="--- a/second/part.h\n+++ /dev/null\n@@ -1 +0,0 @@\n-int part(int x);\n"
    ),
    PatchSample("undeclared header changed", path="second/part.h", content="long part(long x, long y);\n"),
)  # fmt: skip
PROJECTS = (
    ("cargo", CRATE, CRATE_CANDIDATES),
    ("cmake", C_PROJECT, C_CANDIDATES),
    ("make", MAKE_PROJECT, MAKE_CANDIDATES),
)


def orders(samples: tuple[PatchSample, ...]) -> list[list[PatchSample]]:
    """The samples as they are, backwards, and shuffled twice."""
    shuffled = [random.Random(seed).sample(samples, len(samples)) for seed in (1, 2)]
    return [list(samples), list(reversed(samples)), *shuffled]


def judge(root: Path, samples: list[PatchSample], warm: bool, work: Path) -> dict[str, RewardResult]:
    """The results of one pool, by the names of the samples."""
    config = RewardConfig(("build", "test"), workers=1, warm=warm, use_cache=False)
    with BuildReward(root, config, work_base=work) as pool:
        found: dict[str, RewardResult] = {}
        for order in orders(tuple(samples)) if warm else [samples]:
            for result in pool.reward(order):
                known = found.setdefault(result.id, result)
                if known.verdict is not result.verdict:
                    found[result.id] = result
                    print(f"{result.id}: {known.verdict}, then {result.verdict}", file=sys.stderr)
        return found


def moves_files(root: Path, sample: PatchSample) -> bool:
    return any(change.content is None or not (root / change.path).exists() for change in sample.changes(root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind, files, samples in PROJECTS:
            root = Path(name) / kind
            for file, text in files.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(text)
            warm = judge(root, list(samples), True, Path(name) / "work")
            cold = judge(root, list(samples), False, Path(name) / "work")
            for sample in samples:
                verdicts = str(cold[sample.id].verdict), str(warm[sample.id].verdict)
                rows.append(
                    {
                        "project": kind,
                        "candidate": sample.id,
                        "from clean": verdicts[0],
                        "warm, 4 orders": verdicts[1],
                        "all sources new": "yes" if moves_files(root, sample) else "",
                        "equal": "yes" if verdicts[0] == verdicts[1] else "NO",
                    }
                )
    header = list(rows[0])
    table = Table.of(header, [tuple(row.values()) for row in rows], left=header)
    output.write_text(f"# Verdicts from a warm tree and from clean\n\n{table.markdown()}\n")
    output.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")
    print(table.text())
    sys.exit(any(row["equal"] == "NO" for row in rows))


if __name__ == "__main__":
    main()
