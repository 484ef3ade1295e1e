from __future__ import annotations

import os
from pathlib import Path

import pytest

from mileage.coderl.projects.workarea import (
    LOCK_NAME,
    WorkArea,
    clean_outputs,
    copy_tree,
    link_tree,
    remove_leftovers,
    remove_tree,
    tree_digest,
)
from mileage.errors import UsageError
from mileage.ledger.store import Store


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("src/a.c", "build/a.o", "sub/build/b.o", ".git/HEAD", "big"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name * (9000 if name == "big" else 1))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/a.c")
    os.utime(root / "src/a.c", ns=(10**18, 10**18 + 7))
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_a_copy_has_contents_modes_links_and_times_but_no_outputs_and_no_history(tree: Path, tmp_path: Path) -> None:
    copy_tree(tree, tmp_path / "copy", ("build", "**/build"))
    copy = tmp_path / "copy"
    assert names(copy) == {"src/a.c", "big", "run.sh", "link"}
    assert (copy / "src/a.c").read_text() == "src/a.c"
    assert (copy / "src/a.c").stat().st_mtime_ns == 10**18 + 7
    assert os.access(copy / "run.sh", os.X_OK)
    assert os.readlink(copy / "link") == "src/a.c"


def test_a_copy_shares_no_file_with_the_original(tree: Path, tmp_path: Path) -> None:
    copy_tree(tree, tmp_path / "copy")
    for name in names(tmp_path / "copy") - {"link"}:
        assert not (tree / name).samefile(tmp_path / "copy" / name)


def test_a_linked_copy_shares_large_files_only(tree: Path, tmp_path: Path) -> None:
    link_tree(tree, tmp_path / "linked")
    assert names(tmp_path / "linked") == names(tree)
    assert (tree / "big").samefile(tmp_path / "linked" / "big")
    assert not (tree / "src/a.c").samefile(tmp_path / "linked/src/a.c")
    assert (tmp_path / "linked/src/a.c").stat().st_mtime_ns == 10**18 + 7


def test_the_digest_sees_contents_names_and_modes_and_not_outputs(tree: Path) -> None:
    before = tree_digest(tree, ("build",))
    (tree / "build/a.o").write_text("rebuilt")
    assert tree_digest(tree, ("build",)) == before
    (tree / "run.sh").chmod(0o644)
    assert tree_digest(tree, ("build",)) != before
    (tree / "run.sh").chmod(0o755)
    (tree / "src/a.c").write_text("edited")
    assert tree_digest(tree, ("build",)) != before


def test_a_ledger_inside_the_tree_is_no_part_of_it_while_it_is_open(tree: Path) -> None:
    before = tree_digest(tree)
    with Store(tree / "ledger.db"):
        (tree / "ledger.db.lock").unlink()
        assert tree_digest(tree) == before


def test_outputs_are_removed_and_nothing_else(tree: Path) -> None:
    clean_outputs(tree, ("build", "**/*.o"))
    assert names(tree) == {"src/a.c", ".git/HEAD", "big", "run.sh", "link"}


@pytest.mark.parametrize("pattern", ["/tmp", "../other", ".", "**", "*", ""])
def test_an_output_that_could_be_more_than_an_output_is_refused(tree: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="output"):
        clean_outputs(tree, (pattern,))


def test_an_unwritable_tree_is_removed_all_the_same(tree: Path) -> None:
    (tree / "src").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()


def test_a_work_area_is_gone_afterwards(work: Path) -> None:
    with WorkArea(work) as area:
        (area.directory("x") / "file").write_text("y")
        assert area.path.parent == work
    assert list(work.iterdir()) == []


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(work: Path) -> None:
    dead = work / "run-dead"
    dead.mkdir()
    (dead / LOCK_NAME).touch()
    (dead / "file").touch()
    with WorkArea(work) as living:
        assert living.removed_leftovers == 1
        assert remove_leftovers(work) == 0
        assert living.path.is_dir()
        assert not dead.exists()
