from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mileage.ledger.recorder import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_pytorch_loop.py"


def test_the_plain_pytorch_loop_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    spec = importlib.util.spec_from_file_location("plain_pytorch_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run_id = module.train(str(tmp_path / "mileage.db"), episodes=25, panel_size=2)
    (record,) = Ledger(tmp_path / "mileage.db").records()
    assert record.run.run_id == run_id
    assert record.end is not None
    assert record.end.checkpoints == 1
    assert record.end.env_steps > 25
    assert record.end.eval_seconds > 0


def test_a_loop_needs_no_more_than_twenty_lines_of_the_ledger() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if "run." in line or "ledger" in line.lower()]
    assert len(lines) <= 20, lines
