"""From a finished job to a verdict: exit codes, and what each test said against what was expected of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from mileage.coderl.config import RewardConfig
from mileage.coderl.patching import PatchVerdict, judge
from mileage.coderl.projects.workarea import walk_files
from mileage.coderl.readers import Expected, TestFormat, TestResult, TestScore, read_tests, recognised
from mileage.coderl.sandbox.executor import BuildResult, Change
from mileage.coderl.sandbox.witness import RAN
from mileage.coderl.tamper import confirmed
from mileage.coderl.test_results import TestOutcome
from mileage.errors import BuildError, UsageError

# What a result keeps of what was printed, half of it from the beginning.
OUTPUT_CHARACTERS = 256 * 1024
# Characters of a judgement in a cache, beyond which the messages of its tests are left out.
MOST_REMEMBERED = 256 * 1024


@dataclass(frozen=True)
class Judgement:
    """What a candidate earned, and why."""

    verdict: PatchVerdict
    diagnostic: str = ""
    tests: tuple[TestResult, ...] = ()
    score: TestScore | None = None
    """How it did on the expected tests, where there are any."""
    exit_code: int = 0
    left_early: tuple[str, ...] = ()
    """Commands of the tests that did not come to their end."""
    told: frozenset[str] = frozenset()
    """What the test runner said past its output."""

    @property
    def share(self) -> float:
        """The share of the expected tests that partial credit counts; 0 where no test was run."""
        return self.score.share if self.score else 0.0


@dataclass(frozen=True)
class Judged:
    """What a candidate's job came to, before it is anybody's reward."""

    judgement: Judgement
    wall_seconds: float = 0.0
    output: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1


def infra_error(error: Exception) -> Judged:
    """What a candidate comes to that the machine failed."""
    return Judged(Judgement(PatchVerdict.INFRA_ERROR, f"{type(error).__name__}: {error}"))


def of_job(judgement: Judgement, result: BuildResult) -> Judged:
    """A judgement with the output and the times of its job."""
    seconds = {"overhead": result.overhead_seconds}
    for step in result.steps:
        name = " ".join(step.argv)
        seconds[name] = seconds.get(name, 0.0) + step.wall_seconds
    output = "".join(step.output for step in result.steps)
    if len(output) > OUTPUT_CHARACTERS:
        half = OUTPUT_CHARACTERS // 2
        output = f"{output[:half]}\n... {len(output) - 2 * half} characters left out ...\n{output[-half:]}"
    return Judged(judgement, result.wall_seconds, output, seconds)


@dataclass(frozen=True)
class TestRules:
    """How test steps are judged."""

    __test__ = False

    form: TestFormat | None = None
    """How the test command reports; None: to be recognised by what it prints."""
    expected: Expected = field(default_factory=Expected)
    may_leave: frozenset[str] = frozenset()
    """Commands that left before their end where they were known to be right, and so may do it again."""
    told: frozenset[str] = frozenset()
    """What the test runner said past its output where it was known to be right."""
    exits_cleanly: bool = True
    """Whether the tests that set the expectation ended with exit code 0; then those of a candidate must, too."""


def judge_job(result: BuildResult, compile_steps: int, rules: TestRules, *, learning: bool = False) -> Judgement:
    """The verdict on a job; commands after the first `compile_steps` run tests.

    With `learning`, what is judged is right by definition, and the way in which its programs end as well.
    """
    if result.tampered:
        listed = ", ".join(result.tampered[:3])
        return Judgement(PatchVerdict.TAMPERED, f"protected paths were changed while tests ran: {listed}")
    verdict, diagnostic = judge(result, compile_steps)
    ran = result.steps[compile_steps:]
    if not ran or verdict not in (PatchVerdict.PASS, PatchVerdict.TEST_FAILURE):
        return Judgement(verdict, diagnostic)
    output = "\n".join(step.output for step in ran)
    tests = confirmed(read_tests(rules.form or recognised(output), output, result.reports), result.told, rules.told)
    code = ran[-1].exit_code
    left = tuple(command for command in result.left_early if command not in rules.may_leave)
    # A program that ended before it began could not say so.
    left += tuple(sorted(line.removeprefix(RAN) for line in rules.told - result.told if line.startswith(RAN)))
    if left and not learning:
        # What else it reported is worth nothing.
        why = rules.expected.score(tests).diagnostic if rules.expected else ""
        if verdict is not PatchVerdict.PASS and rules.exits_cleanly:
            why = why or diagnostic
        why = why or f"left before the end of its tests: {left[0]}"
        return Judgement(PatchVerdict.TEST_FAILURE, why, tests, None, code, left)
    if not rules.expected:
        return Judgement(verdict, diagnostic, tests, None, code, left, result.told)
    score = rules.expected.score(tests)
    if not score.passed:
        return Judgement(PatchVerdict.TEST_FAILURE, score.diagnostic, tests, score, code)
    if verdict is not PatchVerdict.PASS and rules.exits_cleanly:
        return Judgement(verdict, diagnostic, tests, score, code)
    return Judgement(PatchVerdict.PASS, "", tests, score, code)


def check_base(name: str, config: RewardConfig, base: Judgement, last: Judgement) -> None:
    """Refuse a base that does not pass, unless candidates are to repair it; `last` is the solution's, if any."""
    if config.solution and last.verdict is not PatchVerdict.PASS:
        raise BuildError(f"the solution does not pass: {last.verdict}: {last.diagnostic}")
    if base.verdict is PatchVerdict.PASS or config.allow_broken_base:
        return
    if base.verdict is not PatchVerdict.TEST_FAILURE:
        raise BuildError(
            f"{name} does not build as it is ({base.verdict}), so no candidate could pass: {base.diagnostic} "
            f"({remedy(base.diagnostic)})"
        )
    if not (config.solution or config.fail_to_pass or config.grader_tests):
        raise BuildError(
            f"{name} does not pass its own tests: {base.diagnostic} (name what candidates are to repair in "
            "fail_to_pass, or set allow_broken_base=True)"
        )


def remedy(said: str) -> str:
    """What to do about a base that does not build, by what it said."""
    if "not a git repository" in said or "cannot describe" in said:
        return "git = true in rl-bench.toml gives its builds the history that git describe needs"
    return "allow_broken_base=True if candidates are to repair it"


def learned_rules(config: RewardConfig, form: TestFormat | None, base: Judgement, last: Judgement) -> TestRules:
    """What is expected of candidates, where the base came to `base` and the solution, or the base again, to `last`."""
    expected = Expected.of(base.tests, last.tests if config.solution else None)
    named = config.fail_to_pass, config.pass_to_pass
    expected = Expected(
        expected.fail_to_pass if named[0] is None else frozenset(named[0]),
        expected.pass_to_pass - frozenset(named[0] or ()) if named[1] is None else frozenset(named[1]),
    )
    return TestRules(form, expected, frozenset(last.left_early), last.told, exits_cleanly=last.exit_code == 0)


def remembered(judgement: Judgement) -> str:
    """A judgement as text for a cache; of very many tests, their messages are left out."""
    tests = [(test.name, str(test.outcome), test.seconds, test.message) for test in judgement.tests]
    text = json.dumps({"diagnostic": judgement.diagnostic, "exit_code": judgement.exit_code, "tests": tests})
    if len(text) <= MOST_REMEMBERED:
        return text
    short = [test[:3] for test in tests]
    return json.dumps({"diagnostic": judgement.diagnostic, "exit_code": judgement.exit_code, "tests": short})


def recalled(verdict: PatchVerdict, text: str, rules: TestRules) -> Judgement:
    """The judgement that `remembered` made a text of."""
    data = json.loads(text)
    tests = tuple(TestResult(test[0], TestOutcome(test[1]), *test[2:]) for test in data["tests"])
    score = rules.expected.score(tests) if rules.expected and tests else None
    return Judgement(verdict, data["diagnostic"], tests, score, data["exit_code"])


def protected_paths(tree: Path, patterns: Sequence[str], outputs: Iterable[str] = ()) -> tuple[str, ...]:
    """The files and directories of `tree` that `patterns` name, without those inside one that is named already."""
    found: list[str] = []
    for name, _ in walk_files(tree, outputs):
        named = any(fnmatch(name, pattern) or name == pattern.rstrip("/") for pattern in patterns)
        if named and not any(name.startswith(parent + "/") for parent in found):
            found.append(name)
    return tuple(found)


def idle_names(tree: Path, config: RewardConfig) -> tuple[str, ...]:
    """A sentence for each protected name, patterns apart, that neither the project nor its grader's tests have."""
    added = {
        parent for test in grader_tests(config.grader_tests) for parent in (Path(test.path), *Path(test.path).parents)
    }
    return tuple(
        f"protected {name!r} names nothing in the project, so nothing is protected by it"
        for name in config.protected
        if not any(mark in name for mark in "*?[") and not (tree / name).exists() and Path(name) not in added
    )


def grader_tests(directory: Path | None) -> tuple[Change, ...]:
    """The files of a grader's directory, as changes to a tree."""
    if directory is None:
        return ()
    if not directory.is_dir():
        raise UsageError(f"grader_tests {str(directory)!r} is not a directory")
    names = [name for name, _ in walk_files(directory) if (directory / name).is_file()]
    return tuple(Change(name, (directory / name).read_bytes()) for name in names)
