"""Commands that only tell: envs, doctor, warmup, help, and the reference made from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from mileage.cli import main
from mileage.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def test_envs_lists_the_native_ones() -> None:
    result = runner.invoke(app, ["envs", "--json"])
    assert result.exit_code == 0
    listed = {row["id"]: row for row in json.loads(result.stdout)}
    assert listed["CartPole-v1"]["max_steps"] == 500
    assert listed["CartPole-v1"]["actions"] == "2 choices"
    assert listed["Pendulum-v1"]["actions"] == "1 numbers"
    assert {"Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"} <= set(listed)


def test_envs_all_also_lists_what_gymnasium_has() -> None:
    result = runner.invoke(app, ["envs", "--all", "--json"])
    by_id = {row["id"]: row["native"] for row in json.loads(result.stdout)}
    assert by_id["Taxi-v4" if "Taxi-v4" in by_id else "Taxi-v3"] is False
    assert by_id["CartPole-v1"] is True


def test_doctor_finds_an_unwritable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEAGE_CACHE_DIR", "/proc/nowhere")
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert "every process compiles anew" in json.loads(result.stdout)["problems"][0]


def test_doctor_says_all_well() -> None:
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "all well" in result.stdout
    assert "openblas" in result.stdout


def test_warmup_compiles_what_a_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = runner.invoke(app, ["warmup", "CartPole-v1"])
    assert result.exit_code == 0
    assert "CartPole-v1: ready" in result.stdout
    assert "update, gae, rollout, evaluate: ready" in result.stdout


def commands(command: object, prefix: str = "mileage") -> list[tuple[str, object]]:
    found = [(prefix, command)]
    for name, child in getattr(command, "commands", {}).items():
        found += commands(child, f"{prefix} {name}")
    return found


@pytest.mark.parametrize(("name", "command"), commands(typer.main.get_command(app)), ids=lambda value: str(value)[:40])
def test_every_command_and_option_has_help(name: str, command: object) -> None:
    assert command.help, name  # type: ignore[attr-defined]
    assert hasattr(command, "commands") or command.epilog.startswith(f"Example: {name}")  # type: ignore[attr-defined]
    for parameter in command.params:  # type: ignore[attr-defined]
        if parameter.param_type_name == "option":
            assert parameter.help, f"{name} {parameter.name}"


ENDLESS = {"mileage serve", "mileage bench", "mileage warmup"}
"""What works without an argument, and for long, or compiles whatever other tests have registered."""
READS_NOTHING = {"mileage ledger backup"}
"""What takes any argument."""


@pytest.mark.parametrize("words", [[], ["no-such-thing"]], ids=["alone", "nonsense"])
@pytest.mark.parametrize("name", [name for name, _ in commands(typer.main.get_command(app))])
def test_every_command_alone_or_with_nonsense_says_what_is_wrong(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not words and name in ENDLESS:
        words = ["--nonsense"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "l.db"))
    monkeypatch.setattr(sys, "argv", [*name.split(), *words])
    monkeypatch.setattr("warnings.showwarning", None)  # main() has its own; this puts the old one back
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2 or (ended.value.code == 0 and (not words or name in READS_NOTHING))
    assert "Traceback" not in said.err
    assert (said.err + said.out).strip()
    if said.err.startswith("mileage:"):
        assert len(said.err.strip().splitlines()) == 1
        assert len(said.err) < 400


def test_help_is_in_groups_and_a_switch_has_no_type() -> None:
    shown = runner.invoke(app, ["train", "--help"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    for heading in ("Training", "Target", "Recording and price", "Output", "Where it runs"):
        assert f"─ {heading} ─" in shown
    for words in ([], ["ledger"], ["ledger", "list"], ["env"], ["train"]):
        assert "<bool>" not in runner.invoke(app, [*words, "--help"], catch_exceptions=False).stdout
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    assert all(each.rich_help_panel for each in train.params if each.param_type_name == "option")


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_imports_neither_numba_nor_sqlalchemy_nor_gymnasium() -> None:
    code = (
        "import sys; sys.argv = ['mileage', '--help']\n"
        "from mileage.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('numba', 'sqlalchemy', 'gymnasium', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_a_short_training_loads_no_database_library(tmp_path: Path) -> None:
    """The courier, a process of its own, brings its rows to the database."""
    code = (
        "import sys; from mileage.cli import main; from mileage.ledger.writer import Writer\n"
        "Writer.__init__.__kwdefaults__['load_after'] = 3600.0\n"  # as short as that, however long kernels compile
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('sqlalchemy', 'gymnasium', 'torch', 'tensorboard') if name in sys.modules])"
    )
    words = ["train", "ppo", "CartPole-v1", "--steps", "2048", "--db", str(tmp_path / "l.db"), "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
