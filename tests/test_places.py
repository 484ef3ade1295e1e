"""Users' code by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mileage import user_code
from mileage.errors import UsageError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\ny = 1 +\n", r"mine.py' cannot be imported: SyntaxError: invalid syntax"),
        ("x = 1\ny = undefined\n", r"mine.py' cannot be imported: NameError: .* \(line 2\)$"),
        ("import nothing_of_the_kind\n", r"mine.py' cannot be imported: ModuleNotFoundError: .* \(line 1\)$"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        user_code.load(str(tmp_path / "mine.py"), "environment")


def test_what_a_file_refuses_itself_is_said_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import mileage\nmileage.PPO('MlpPolicy')\n")
    with pytest.raises(UsageError, match=r"^'MlpPolicy' is the name of a network"):
        user_code.load(str(tmp_path / "mine.py"), "environment")
