"""What is tried from outside: which starts there are, and what is said of their times."""

from __future__ import annotations

import sys

import pytest

from mileage.errors import UsageError
from mileage.measure import Arm, MockExecutor
from mileage.profiling.tuning.arms import AS_IT_IS, Attempted, Start, attempt, chosen, starts, with_arguments


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("--num-envs {4,8}", [("--num-envs", "4"), ("--num-envs", "8")]),
        ("--lr={1e-3,1e-4}", [("--lr=1e-3",), ("--lr=1e-4",)]),
        ("--a {1,2} --b {x}", [("--a", "1", "--b", "x"), ("--a", "2", "--b", "x")]),
    ],
)
def test_choices_in_braces(template: str, words: list[tuple[str, ...]]) -> None:
    assert chosen(template) == words


@pytest.mark.parametrize("template", ["--num-envs 4", "--num-envs {4", "--num-envs {}", "{4}}"])
def test_templates_that_cannot_be_read(template: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: write choices in braces"):
        chosen(template)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("--n", "8"), ("python", "t.py", "--n", "8", "--x=3", "in")),
        (("--x", "5"), ("python", "t.py", "--n", "4", "--x", "5", "in")),
        (("--x=5",), ("python", "t.py", "--n", "4", "--x=5", "in")),
        (("--new", "-1"), ("python", "t.py", "--n", "4", "--x=3", "in", "--new", "-1")),
        (("--n", "8", "--new"), ("python", "t.py", "--n", "8", "--x=3", "in", "--new")),
    ],
)
def test_arguments_take_the_place_of_their_like(words: tuple[str, ...], command: tuple[str, ...]) -> None:
    assert with_arguments(("python", "t.py", "--n", "4", "--x=3", "in"), words) == command


def test_starts_change_one_thing_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    arms = starts(("python", "t.py"), ["--n {1,2}"], uses_jax=True)
    assert arms[0] == Arm(AS_IT_IS, Start(("python", "t.py")))
    one = next(arm for arm in arms if arm.name == "1 thread")
    assert one.subject.command == ("python", "t.py")
    assert one.subject.environment["OMP_NUM_THREADS"] == "1"
    assert "eigen=false" in one.subject.environment["XLA_FLAGS"]
    assert [arm.subject.command[2:] for arm in arms[-2:]] == [("--n", "1"), ("--n", "2")]
    with pytest.raises(UsageError, match="at most 24 can be tried"):
        starts(("python",), ["--n {" + ",".join(map(str, range(40))) + "}"])


def tried(**seconds: list[float]) -> Attempted:
    arms = [Arm(name.replace("_", " "), Start(("x",))) for name in seconds]
    executor = MockExecutor({arm.name: values for arm, values in zip(arms, seconds.values(), strict=True)})
    return attempt(arms, budget_seconds=sum(map(sum, seconds.values())) - 1e-9, executor=executor)  # type: ignore[arg-type]


def test_nothing_is_faster_whose_interval_says_otherwise() -> None:
    found = tried(
        as_it_is=[10, 11, 10, 11, 10], quick=[5, 5.5, 5, 5.2, 5], same=[10, 12, 9, 11, 10], slow=[20, 21, 20, 22, 20]
    )
    assert {arm.name: found.words(arm.name) for arm in found.arms} == {
        "as it is": "", "quick": "faster", "same": "no difference shown", "slow": "slower",
    }  # fmt: skip
    assert "0.5" in str(found.table().rows[1][3])


def test_too_few_rounds_say_nothing() -> None:
    assert tried(as_it_is=[10.0], quick=[5.0]).words("quick").startswith("too few rounds to say")


def test_a_start_that_fails_says_why() -> None:
    arms = (Arm(AS_IT_IS, Start((sys.executable, "-c", ""))),
            Arm("bad", Start((sys.executable, "-c", "raise SystemExit('no such option')"))))  # fmt: skip
    found = attempt(arms, budget_seconds=0.0)
    assert found.words("bad") == "failed: exit code 1, no such option"
    assert len(found.seconds(AS_IT_IS)) == 1
