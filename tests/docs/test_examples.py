"""What the documentation says is so: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mileage.algorithms.registry import BUILT_IN
from mileage.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


# Commands


def console_lines() -> list[tuple[str, str]]:
    """Page and command of every line that a console block tells the reader to type."""
    return [
        (name_of(page), line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that `words` (after `mileage`) name, and the words that are left for it."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def check_arguments(command: Any, words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Positional arguments and option values of `words`; fails where the command would not take them."""
    options = {
        name: parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    positional: list[str] = []
    values: dict[str, list[str]] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            positional.append(word)
            continue
        assert word in {*options, "--help", "-h"}, f"{command.name} has no option {word}"
        if word in options and not options[word].is_flag:
            assert left, f"{word} needs a value"
            values.setdefault(word, []).append(left.pop(0))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    most = None if any(each.nargs == -1 for each in arguments) else len(arguments)
    assert most is None or len(positional) <= most, f"{command.name} takes {most} arguments, not {positional}"
    return positional, values


def check_mileage(words: list[str]) -> None:
    if words[0] in ("--debug", "--version"):
        words = words[1:]
    words = words[: words.index("--")] if "--" in words else words  # what follows is somebody else's command
    command, left = find_command(words)
    if left[:1] == ["compare"] and command.name == "profile":
        assert len(left) == 3, f"profile compare takes two profiles, not {left[1:]}"
        return
    if words:
        assert command.name != "mileage", f"no command {words[0]}"
    positional, values = check_arguments(command, left)
    if command.name == "train" and positional:
        learners = {each.name: each.learner() for each in BUILT_IN}
        assert positional[0] in learners
        known = {field.name for field in dataclasses.fields(learners[positional[0]].Config)}
        assert {pair.partition("=")[0] for pair in values.get("--set", [])} <= known
        assert ":" not in positional[-1] or (ROOT / positional[-1].partition(":")[0]).is_file()


@pytest.mark.parametrize(("page", "line"), console_lines(), ids=lambda text: str(text)[:60])
def test_commands_exist(page: str, line: str) -> None:
    words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=\S+", word)]
    program = Path(words[0]).name
    if program == "mileage":
        check_mileage(words[1:])
    elif program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets
    elif program in ("python", "pip"):
        scripts = [word for word in words[1:] if word.endswith(".py")]
        assert all((ROOT / script).is_file() for script in scripts)
    else:
        assert program in ("cd", "export", "git", "flock", "ruff"), f"{page} shows {program}, which is not checked"


def test_commands_named_in_the_text_exist() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        for word in re.findall(r"`mileage ([a-z][a-z-]*)", page.read_text()):
            assert word in known, f"{name_of(page)} names `mileage {word}`"


def test_a_wrong_command_would_be_found() -> None:
    for wrong in ("trian ppo CartPole-v1", "train ppo CartPole-v1 --sed 0", "train ppo X --set gama=1", "envs a b"):
        with pytest.raises(AssertionError):
            check_mileage(shlex.split(wrong))


# Links


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}"


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name == "index.md" or page.parent.name == "reports":
            continue
        link = page.relative_to(ROOT / "docs")
        assert f"({link})" in index or link.parts[0] == "adr", f"docs/index.md does not list {link}"


def test_pictures_are_small_and_load_nothing() -> None:
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        text = picture.read_text()
        assert len(text) < 200_000
        assert not re.search(r"url\(['\"]?http|<script|href=", text), f"{picture.name} would load something"


# Places in the tree

MAPS = ["docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md"]


def paths_in(text: str) -> set[str]:
    """Files and folders named in backticks: with a slash, or with the ending of a file; no options, no addresses."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    path = re.compile(r"[\w.*-]+(/[\w.*-]*)+|[\w*-]+\.(py|md|toml|json|svg)")
    return {span for span in spans if path.fullmatch(span) and not re.fullmatch(r"[\w-]+/[\w-]+-v\d", span)}


def is_there(path: str) -> bool:
    """Whether a path, from the root, the package or the documentation, exists; words in capitals stand for any name."""
    pattern = re.sub(r"\b[A-Z]{4,}\b", "*", path.rstrip("/")) if not (ROOT / path).exists() else path
    return any(list(base.glob(pattern)) for base in (ROOT, ROOT / "src" / "mileage", ROOT / "docs"))


@pytest.mark.parametrize("page", MAPS)
def test_places_named_in_the_maps_exist(page: str) -> None:
    missing = [path for path in sorted(paths_in((ROOT / page).read_text())) if not is_there(path)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_named_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"`(mileage(?:\.\w+)+)(?=[`(])", page.read_text()):
        parts = name.split(".")
        files = [ROOT / "src" / Path(*parts[:n]) for n in range(len(parts), 0, -1)]
        found = next(file for file in files if file.is_dir() or file.with_suffix(".py").is_file())
        rest = parts[len(found.relative_to(ROOT / "src").parts) :]
        text = (found / "__init__.py" if found.is_dir() else found.with_suffix(".py")).read_text()
        assert all(re.search(rf"\b{part}\b", text) for part in rest), f"{name_of(page)} names {name}"


def test_a_wrong_place_would_be_found() -> None:
    assert paths_in("`envs/native/` `x.py` `a b/c` `--set` `ALE/Pong-v5` `tests`\n```\n`y.py`\n```\n") == {
        "envs/native/",
        "x.py",
    }
    assert is_there("training/agent.py")
    assert is_there("docs/algorithms/ALGORITHM.md")
    assert not is_there("training/nothing.py")
