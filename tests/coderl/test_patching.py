from __future__ import annotations

import difflib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mileage.coderl.patches import PatchError
from mileage.coderl.patching import apply_diff, check_path, replace_file

TEXT = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_text(TEXT)
    return tmp_path


def diff(old: str, new: str, old_name: str = "a/src/a.txt", new_name: str = "b/src/a.txt") -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name)
    # difflib does not mark a missing newline at the end of a file; diff tools do.
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def test_a_changed_line(tree: Path) -> None:
    new = TEXT.replace("line 7\n", "seven\n")
    (change,) = apply_diff(diff(TEXT, new), tree)
    assert change.path == "src/a.txt"
    assert change.content == new.encode()
    assert (tree / "src/a.txt").read_text() == TEXT


def test_a_hunk_is_found_where_the_file_has_moved(tree: Path) -> None:
    patch = diff(TEXT, TEXT.replace("line 15\n", "fifteen\n"))
    (tree / "src/a.txt").write_text("new first\nnew second\n" + TEXT)
    (change,) = apply_diff(patch, tree)
    assert change.content == ("new first\nnew second\n" + TEXT.replace("line 15\n", "fifteen\n")).encode()


def test_a_hunk_that_does_not_match_is_refused(tree: Path) -> None:
    patch = diff(TEXT.replace("line 8", "other"), TEXT.replace("line 8", "eight"))
    with pytest.raises(PatchError, match="hunk 1 does not match"):
        apply_diff(patch, tree)


def test_new_deleted_and_renamed_files(tree: Path) -> None:
    patch = (
        "diff --git a/new.sh b/new.sh\nnew file mode 100755\n--- /dev/null\n+++ b/new.sh\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        "diff --git a/src/a.txt b/src/b.txt\nsimilarity index 100%\nrename from src/a.txt\nrename to src/b.txt\n"
    )
    changes = {change.path: change for change in apply_diff(patch, tree)}
    assert changes["new.sh"].content == b"one\ntwo\n"
    assert changes["new.sh"].executable
    assert changes["src/a.txt"].content is None
    assert changes["src/b.txt"].content == TEXT.encode()
    (deleted,) = apply_diff(diff(TEXT, "", new_name="/dev/null"), tree)
    assert deleted.content is None


def test_prose_around_a_patch_is_ignored(tree: Path) -> None:
    patch = "Here is the fix:\n\n" + diff(TEXT, TEXT.replace("line 2\n", "two\n"))
    assert apply_diff(patch, tree)[0].content == TEXT.replace("line 2\n", "two\n").encode()


def test_text_without_a_patch_is_refused(tree: Path) -> None:
    with pytest.raises(PatchError, match="changes no file"):
        apply_diff("I could not do it.", tree)


def test_creating_a_file_that_exists_is_refused(tree: Path) -> None:
    with pytest.raises(PatchError, match="exists"):
        apply_diff("--- /dev/null\n+++ b/src/a.txt\n@@ -0,0 +1 @@\n+x\n", tree)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../outside", "src/../../outside", "link/file", "src/inner", ".git/hooks/pre-commit", "", "C:\\x"],
)
def test_paths_out_of_the_tree_are_refused(tree: Path, path: str) -> None:
    (tree / "link").symlink_to("/tmp")
    (tree / "src" / "inner").symlink_to("/etc/hostname")
    with pytest.raises(PatchError, match="unsafe path"):
        check_path(path, tree)
    with pytest.raises(PatchError, match="unsafe path"):
        replace_file(path, "x", tree)
    with pytest.raises(PatchError):
        apply_diff(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n", tree)


def test_a_patch_that_makes_a_link_is_refused(tree: Path) -> None:
    patch = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"
    with pytest.raises(PatchError, match="symbolic link"):
        apply_diff(patch, tree)


def test_protected_paths_are_refused(tree: Path) -> None:
    with pytest.raises(PatchError, match="protected"):
        replace_file("tests/it.rs", "x", tree, ("tests",))
    with pytest.raises(PatchError, match="protected"):
        replace_file("a/b/Cargo.toml", "x", tree, ("*Cargo.toml",))


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_applying_a_diff_gives_the_new_file(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str], cut_old: bool, cut_new: bool
) -> None:
    before, after = "".join(old), "".join(new)
    before = before[:-1] if cut_old else before
    after = after[:-1] if cut_new else after
    if before == after:
        return
    tree = tmp_path_factory.mktemp("tree")
    (tree / "f").write_text(before)
    (change,) = apply_diff(diff(before, after, "a/f", "b/f"), tree)
    assert change.content == after.encode()


def test_same_result_as_git_apply(tree: Path, need: Callable[..., None]) -> None:
    need("git")
    new = TEXT.replace("line 3\n", "three\nand more\n").replace("line 18\n", "").rstrip("\n")
    patch = diff(TEXT, new)
    ours = apply_diff(patch, tree)[0].content
    subprocess.run(["git", "apply", "-"], cwd=tree, input=patch.encode(), check=True)
    assert ours == (tree / "src/a.txt").read_bytes() == new.encode()


def test_only_a_line_feed_ends_a_line(tree: Path) -> None:
    old, new = "a\x0cb\u2028c\n", "a\x0cb\u2028d\n"
    (tree / "f").write_text(old)
    patch = f"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-{old}+{new}"
    assert apply_diff(patch, tree)[0].content == new.encode()


HOSTILE = {
    "a name of 300 bytes": "n" * 300,
    "a name of 200 characters that are 600 bytes": "ä€" * 100,
    "a path of megabytes": "a/" * 1_000_000 + "b",
    "a deep path": "a/" * 300 + "b",
    "a lone surrogate": "f\ud800",
    "a directory": "src",
    "below a file": "src/a.txt/b",
    "a NUL": "a\0b",
}


@pytest.mark.parametrize("path", HOSTILE.values(), ids=HOSTILE)
def test_names_that_no_file_can_have_are_refused(tree: Path, path: str) -> None:
    with pytest.raises(PatchError) as error:
        replace_file(path, "x", tree)
    assert len(str(error.value)) < 500
    with pytest.raises(PatchError):
        apply_diff(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n", tree)


@pytest.mark.parametrize(
    "header",
    [
        "@@ -1000000000000 +1 @@",
        f"@@ -{'9' * 5000} +1 @@",
        "@@ -1,99999999999999999999 +1 @@",
        "@@ -٣ +1 @@",
        "@@ -x @@",
    ],
)
def test_numbers_that_no_file_has_are_refused(tree: Path, header: str) -> None:
    with pytest.raises(PatchError, match="malformed hunk header"):
        apply_diff(f"--- a/src/a.txt\n+++ b/src/a.txt\n{header}\n-line 1\n+x\n", tree)


def test_a_hunk_beyond_the_end_is_looked_for_nearby_and_not_for_ever(tree: Path) -> None:
    patch = "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -999999999 +999999999 @@\n-{}\n+x\n"
    assert apply_diff(patch.format("line 20"), tree)[0].content == TEXT.replace("line 20", "x").encode()
    with pytest.raises(PatchError, match="does not match"):
        apply_diff(patch.format("line 21"), tree)


def test_work_without_end_is_refused(tree: Path) -> None:
    (tree / "same").write_text("x\n" * 200_000)
    near = "--- a/same\n+++ b/same\n@@ -100000,50001 +1,50000 @@\n" + " x\n" * 50_000 + "-y\n"
    with pytest.raises(PatchError, match="nearly match"):
        apply_diff(near, tree)
    with pytest.raises(PatchError, match="bytes"):
        apply_diff("--- a/same\n+++ b/same\n@@ -1 +1 @@\n-x\n+x\n" * 900, tree)
    with pytest.raises(PatchError, match="files"):
        apply_diff("".join(f"--- /dev/null\n+++ b/{n}\n@@ -0,0 +1 @@\n+x\n" for n in range(2000)), tree)
    with pytest.raises(PatchError, match="characters"):
        replace_file("big", "x" * (3 << 20), tree)


@pytest.mark.parametrize("content", ["\ud800", 7, None])
def test_content_that_no_file_can_hold_is_refused(tree: Path, content: str) -> None:
    with pytest.raises(PatchError):
        replace_file("f", content, tree)


def test_wrong_line_counts_are_forgiven_on_request_only(tree: Path) -> None:
    new = TEXT.replace("line 7\n", "seven\nand a half\n")
    right = diff(TEXT, new)
    for wrong in ("@@ -4,90 +4,2 @@", "@@ -1 +1 @@", "@@ ... @@", "@@"):
        lines = [wrong + "\n" if line.startswith("@@") else line for line in right.splitlines(True)]
        patch = "".join(lines) + "\nHope this helps!\n"
        with pytest.raises(PatchError):
            apply_diff(patch, tree)
        assert apply_diff(patch, tree, fuzzy=True)[0].content == new.encode()


def test_a_file_may_take_the_place_of_another_but_not_of_a_directory(tree: Path) -> None:
    gone = diff(TEXT, "", new_name="/dev/null")
    changes = apply_diff("--- /dev/null\n+++ b/src/a.txt/new\n@@ -0,0 +1 @@\n+x\n" + gone, tree)
    # Deletions come first, or the new file would find the old one in its way.
    assert [(change.path, change.content is None) for change in changes] == [
        ("src/a.txt", True),
        ("src/a.txt/new", False),
    ]
