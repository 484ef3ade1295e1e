"""Candidates on which a build from a warm tree and one from clean could disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.coderl import BuildReward, PatchSample, PatchVerdict, RewardConfig

Files = Callable[[Path, dict[str, str]], Path]
CMAKE = {
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\ninclude(CheckIncludeFile)\n"
    "set(CMAKE_REQUIRED_INCLUDES ${CMAKE_SOURCE_DIR}/first)\ncheck_include_file(extra.h HAVE_EXTRA)\n"
    "add_executable(p main.c)\ntarget_include_directories(p PRIVATE first second)\n"
    "if(HAVE_EXTRA)\n  target_compile_definitions(p PRIVATE EXTRA)\nendif()\n",
    "main.c": '#include "size.h"\n#ifdef EXTRA\n#error extra\n#endif\nint main(void) { return SIZE; }\n',
    "first/other.h": "\n",
    "second/size.h": "#define SIZE 0\n",
}
CRATE = {
    "Cargo.toml": '[package]\nname = "c"\nversion = "0.1.0"\nedition = "2021"\n',
    "Cargo.lock": 'version = 4\n\n[[package]]\nname = "c"\nversion = "0.1.0"\n',
    "src/lib.rs": "pub mod shape;\n",
    "src/shape.rs": "pub fn area() -> u32 {\n    1\n}\n",
}


@pytest.mark.parametrize("warm", [True, False])
def test_a_header_that_shadows_another_is_seen(
    isolation: None, tmp_path: Path, work: Path, write_files: Files, need: Callable[..., None], warm: bool
) -> None:
    need("cmake", "cc")
    root = write_files(tmp_path / "cmake", CMAKE)
    samples = [
        PatchSample("shadow", path="first/size.h", content="#error shadowed\n"),
        PatchSample("found-when-configured", path="first/extra.h", content="/* extra */\n"),
        PatchSample("removed", patch="--- a/second/size.h\n+++ /dev/null\n@@ -1 +0,0 @@\n-#define SIZE 0\n"),
        PatchSample("harmless", path="first/unused.h", content="/* unused */\n"),
    ]
    with BuildReward(root, RewardConfig(("build",), workers=1, warm=warm), work_base=work) as pool:
        found = [result.verdict for result in pool.reward(samples)]
    assert found == [PatchVerdict.COMPILE_ERROR] * 3 + [PatchVerdict.PASS]


@pytest.mark.parametrize("warm", [True, False])
def test_a_module_with_two_homes_is_seen(
    isolation: None, tmp_path: Path, work: Path, write_files: Files, need: Callable[..., None], warm: bool
) -> None:
    need("cargo", "cc")
    root = write_files(tmp_path / "crate", CRATE)
    twin = PatchSample("twin", path="src/shape/mod.rs", content="pub fn area() -> u32 {\n    2\n}\n")
    with BuildReward(root, RewardConfig(("build",), workers=1, warm=warm), work_base=work) as pool:
        result = pool.reward([twin])[0]
    assert result.verdict is PatchVerdict.COMPILE_ERROR
    assert "E0761" in result.diagnostic
