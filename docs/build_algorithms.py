"""Fill the tables of docs/algorithms/*.md from the code: hyperparameters from configurations, presets from their files.

Each page holds marked regions, `<!-- NAME:begin -->` to `<!-- NAME:end -->`; everything else on it is written by hand.
`make docs` writes them, `--check` only says whether they are up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from mileage.algorithms.registry import BUILT_IN, find_algorithm
from mileage.tables import Markdown, Table

PAGES = Path(__file__).with_name("algorithms")


def field_texts(kind: type[Any]) -> dict[str, str]:
    """The sentence below each field of a dataclass; Python itself does not keep it."""
    texts: dict[str, str] = {}
    for each in kind.__mro__[-2::-1]:  # bases first, so that what a configuration says itself comes last
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def hyperparameters(algorithm: str) -> str:
    """A table of all fields of an algorithm's configuration."""
    kind = find_algorithm(algorithm).learner().Config
    texts = field_texts(kind)
    rows = [
        (Markdown(f"`{field.name}`"), Markdown(f"`{spelled(field.default)}`"), Markdown(texts[field.name]))
        for field in dataclasses.fields(kind)
    ]
    header = ("hyperparameter", "default", "meaning")
    return Table.of(header, rows, left=header).markdown()


def presets(algorithm: str) -> str:
    """A table of the presets that ship for an algorithm."""
    file = resources.files("mileage.training").joinpath(f"presets/{algorithm}.toml")
    table = tomllib.loads(file.read_text()) if file.is_file() else {}
    if not table:
        return "No preset ships for this algorithm yet: the defaults above are used, and `total_steps` is 100,000."
    header = ("environment", "settings")
    rows = [
        (Markdown(f"`{env}`"), Markdown(", ".join(f"`{name}={spelled(value)}`" for name, value in values.items())))
        for env, values in table.items()
    ]
    return Table.of(header, rows, left=header).markdown()


def spelled(value: Any) -> str:
    """A value as one would type it: lists as lists, large whole numbers with separators, small floats short."""
    if isinstance(value, list | tuple):
        return str(list(value))
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    return f"{value:g}" if abs(value) < 1e-3 and value else str(value)


def filled(text: str, name: str, content: str) -> str:
    """`text` with `content` in its region `name`."""
    pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"region {name!r} is missing")
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def page(algorithm: str) -> str:
    """The page of an algorithm with its tables made anew."""
    text = (PAGES / f"{algorithm}.md").read_text()
    text = filled(text, "hyperparameters", hyperparameters(algorithm))
    return filled(text, "presets", presets(algorithm))


def out_of_date() -> list[str]:
    """Pages whose tables are not what the code says."""
    names = [each.name for each in BUILT_IN]
    return [f"docs/algorithms/{name}.md" for name in names if (PAGES / f"{name}.md").read_text() != page(name)]


def write() -> None:
    """Write all pages."""
    for name in (each.name for each in BUILT_IN):
        (PAGES / f"{name}.md").write_text(page(name))


def main() -> None:
    """Write or check the pages."""
    if "--check" in sys.argv:
        stale = out_of_date()
        if stale:
            sys.exit(f"{', '.join(stale)} out of date: run 'make docs'")
        return
    write()
    print(f"wrote {', '.join(f'algorithms/{each.name}.md' for each in BUILT_IN)}")


if __name__ == "__main__":
    main()
