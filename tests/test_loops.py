"""Lines of a source file that run again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mileage.user_code import in_loop

SOURCE = """\
def features(x, parts):
    for i in range(4):
        x = parts[i](x)  # yes
    for i, part in enumerate(parts):
        x = x + part(x[:, i])  # yes
    for layer in parts:
        x = layer(x)  # no: one after the other
    for layer, norm in zip(parts, parts):
        x = norm(layer(x))  # no
    return x  # no


def samples(rows, net):
    made = [net(row) for row in rows]  # yes
    while made:
        made.pop()  # yes
    return made  # no


for _ in range(2):
    def within(x):
        return x  # no: the loop is another function's
"""
LINES = list(enumerate(SOURCE.splitlines(), start=1))


@pytest.mark.parametrize(("number", "text"), [each for each in LINES if "# " in each[1]])
def test_lines_in_loops_over_data(number: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    first = max(line for line, start in LINES[:number] if "def " in start)
    assert in_loop(str(tmp_path / "net.py"), first, number) is ("# yes" in text)


@pytest.mark.parametrize("data", [b"for x in", b"\0", b"\xff\xfe for"])
def test_what_is_no_python_has_no_loops(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_bytes(data)
    assert not in_loop(str(tmp_path / "net.py"), 1, 1)
    assert not in_loop(str(tmp_path / "none.py"), 1, 1)
    assert not in_loop("<string>", 1, 1)
