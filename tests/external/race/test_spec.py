"""The file of a race: what it must say, and what it gets nowhere with."""

from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.external.race import RaceSpec, TunedBy
from mileage.external.race.spec import filled

GOOD = """
[race]
name = "r"
env = "CartPole-v1"
target = "mean_return>=475"

[[arm]]
name = "a"
tuned_by = "us"
algorithm = "ppo"

[[arm]]
name = "b"
tuned_by = "its authors"
command = ["prog", "--seed={seed}"]
"""


def read(folder: Path, text: str) -> RaceSpec:
    path = folder / "race.toml"
    path.write_text(text)
    return RaceSpec.read(path)


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD)
    assert (spec.seeds, spec.most_seeds, spec.episodes, spec.reference) == (5, 5, 100, "a")
    assert spec.looks == (5,)
    assert [arm.kind for arm in spec.arms] == ["recipe", "command"]
    assert spec.arms[1].tuned_by is TunedBy.AUTHORS
    assert len(spec.panel.seeds) == 100
    assert spec.panel.env_version
    assert spec.directory == tmp_path


def test_the_panel_is_that_of_mileage_train(tmp_path: Path) -> None:
    import mileage

    spec = read(tmp_path, GOOD)
    with mileage.PPO("CartPole-v1") as agent:
        assert agent.default_panel(spec.target, 100).panel_id == spec.panel.panel_id


def test_looks_are_the_planned_ones(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD.replace("[race]", "[race]\nseeds = 5\nmost_seeds = 20"))
    assert spec.sequential
    assert spec.looks == (5, 10, 20)


def test_what_is_measured_decides_the_digest(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD)
    assert read(tmp_path, GOOD + "\n[budget]\nseconds = 9\n").digest == spec.digest
    assert read(tmp_path, GOOD.replace("[race]", "[race]\nprice = 2")).digest == spec.digest
    assert read(tmp_path, GOOD.replace("475", "474")).digest != spec.digest
    assert read(tmp_path, GOOD.replace('"ppo"', '"a2c"')).digest != spec.digest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[race]", "[rice]"), r"needs \[race\]"),
        (('name = "r"', 'name = "../../etc"'), r"name of \[race\] must be up to 60 letters"),
        (('name = "a"', 'name = "x;rm -rf ~"'), "must be up to 60 letters"),
        (('name = "b"', 'name = "a"'), "given once, not 'a'"),
        (('tuned_by = "us"', ""), "arm 'a' needs tuned_by"),
        (('tuned_by = "us"', 'tuned_by = "nobody"'), "must be one of 'defaults', 'its authors', 'us'"),
        (('algorithm = "ppo"', 'algorithm = "pppo"'), "did you mean 'ppo'"),
        (('algorithm = "ppo"', 'algorithm = "ppo"\ncommand = ["x", "{seed}"]'), "needs either algorithm"),
        (('algorithm = "ppo"', ""), "needs either algorithm"),
        (('"--seed={seed}"', '"1"'), r"must say \{seed\} somewhere"),
        (('"--seed={seed}"', '"{seed}", "{home}"'), "placeholder in the command of arm 'b' 'home'"),
        (('["prog", "--seed={seed}"]', '"prog {seed}"'), "must be a list of words"),
        (("mean_return>=475", "mean_return>=nan"), "finite"),
        (("[race]", "[race]\nseeds = 0"), r"seeds of \[race\] must be a whole number of at least 1"),
        (("[race]", "[race]\nseeds = true"), "must be a whole number"),
        (("[race]", "[race]\nseeds = 5\nmost_seeds = 7"), "planned looks"),
        (("[race]", "[race]\nseeds = 10\nmost_seeds = 5"), "second not below the first"),
        (("[race]", "[race]\nmost_seeds = 31"), "from 1 to 30"),
        (("[race]", '[race]\nreference = "c"'), "unknown arm 'c'"),
        (("[race]", "[race]\nfirst_seed = 4000000000"), "seed"),
        (("[race]", "[race]\nsede = 3"), r"unknown key of \[race\] 'sede'"),
        (("[race]", "[budget]\nseconds = -1\n[race]"), r"seconds of \[budget\] must be a number above 0, not -1"),
        (("[race]", "[budget]\nseconds = nan\n[race]"), "must be a number above 0"),
        (("[race]", "[budget]\ndollars = 1.0\n[race]"), "need a price"),
        (("[race]", "[race]\nprice = [1]"), "must be dollars an hour"),
        (('tuned_by = "us"', 'tuned_by = "us"\nrevision = "HEAD"'), "needs both repository and revision"),
        (('tuned_by = "us"', 'tuned_by = "us"\nrepository = "."\nrevision = "--exec=x"'), "must be a git revision"),
        (('tuned_by = "us"', 'tuned_by = "us"\nsettings = {when = 2026-11-17}'), "must hold text, numbers"),
        (('tuned_by = "its authors"', 'tuned_by = "us"\nsteps = 5'), "must be left out: its command has them"),
        (('tuned_by = "its authors"', 'tuned_by = "us"\nenvironment = {"A=B" = "x"}'), "must map names to texts"),
    ],
)  # fmt: skip
def test_what_cannot_be_raced_is_one_sentence(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UsageError, match=says) as error:
        read(tmp_path, GOOD.replace(*change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[race", "a = 1", "arm = 3\n[race]\n", "\x00", "[[arm]]\n" * 3, "a = [" * 2000])
def test_files_that_are_no_race(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, text)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        RaceSpec.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not UTF-8"):
        RaceSpec.read(tmp_path / "bytes.toml")


ODD: tuple[object, ...] = (
    None, True, -1, 0, 2**63, 1.5, float("nan"), float("inf"), "", "\0", "x" * 5000, "{}", [], [None], [[]], {},
    {"": None},
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_odd_values_anywhere_are_refused_or_harmless(tmp_path: Path, odd: object) -> None:
    good = tomllib.loads(GOOD)
    for place in (good["race"], good["arm"][0], good["arm"][1]):
        known = {*place, "seeds", "price", "settings", "threads", "revision", "environment", "reference", "success"}
        for key in sorted(known):
            before = dict(place)
            place[key] = odd
            with contextlib.suppress(UsageError):
                RaceSpec.of(good, tmp_path)
            place.clear()
            place.update(before)
    RaceSpec.of(good, tmp_path)


def test_words_are_filled_in() -> None:
    words = filled(("a", "--s={seed}", "{threads}", '{"json": 1}'), seed=3, threads=2)
    assert words == ["a", "--s=3", "2", '{"json": 1}']
