from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.config import RewardConfig
from mileage.coderl.patching import PatchSample, PatchVerdict
from mileage.coderl.pool import BuildReward
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.executor import BuildJob, BuildResult
from mileage.coderl.sandbox.snapshots import SnapshotMethod
from mileage.errors import BuildError, InfraError, UsageError

LIB = "pub fn double(x: u32) -> u32 {\n    x * 2\n}\n"
TESTS = (
    "\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn doubles() {\n        assert_eq!(super::double(4), 8);\n    }\n}\n"
)
CORPUS = (
    PatchSample("same-meaning", path="core/src/lib.rs", content=LIB.replace("x * 2", "x + x") + TESTS),
    PatchSample("wrong-answer", path="core/src/lib.rs", content=LIB.replace("x * 2", "x * 3") + TESTS),
    PatchSample("type-error", path="core/src/lib.rs", content=LIB.replace("x * 2", '"x"') + TESTS),
    PatchSample("removed-function", path="core/src/lib.rs", content="pub fn other() {}\n"),
    PatchSample("new-module", patch="--- /dev/null\n+++ b/app/src/bin/two.rs\n@@ -0,0 +1 @@\n+fn main() {}\n"),
    PatchSample("broken-new-file", patch="--- /dev/null\n+++ b/app/src/bin/two.rs\n@@ -0,0 +1 @@\n+fn main() {\n"),
    PatchSample("deleted-main", patch="--- a/app/src/main.rs\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-fn main() {\n"
                '-    println!("{}", core_lib::double(21));\n-}\n'),
    PatchSample("build-script-fails", path="app/build.rs", content="fn main() { panic!(\"no\") }\n"),
    PatchSample("stale-context", patch="--- a/app/src/main.rs\n+++ b/app/src/main.rs\n@@ -1 +1 @@\n-fn start() {\n"
                "+fn go() {\n"),
    PatchSample("bad-manifest", path="core/Cargo.toml", content="[package\n"),
)  # fmt: skip
EXPECTED = {
    "same-meaning": PatchVerdict.PASS,
    "wrong-answer": PatchVerdict.TEST_FAILURE,
    "type-error": PatchVerdict.COMPILE_ERROR,
    "removed-function": PatchVerdict.COMPILE_ERROR,
    "new-module": PatchVerdict.PASS,
    "broken-new-file": PatchVerdict.COMPILE_ERROR,
    "deleted-main": PatchVerdict.COMPILE_ERROR,
    "build-script-fails": PatchVerdict.COMPILE_ERROR,
    "stale-context": PatchVerdict.DOES_NOT_APPLY,
    "bad-manifest": PatchVerdict.COMPILE_ERROR,
}


@pytest.mark.parametrize("method", [SnapshotMethod.OVERLAY, SnapshotMethod.HARD_LINK])
def test_warm_verdicts_equal_cold_ones_and_the_truth(
    request: pytest.FixtureRequest, cargo_project: Path, work: Path, method: SnapshotMethod
) -> None:
    isolation = Isolation.OFF
    if method is SnapshotMethod.OVERLAY:
        request.getfixturevalue("isolation")
        isolation = Isolation.REQUIRE
    # Without namespaces the same commands run; a few candidates of each verdict are enough there.
    corpus = CORPUS if method is SnapshotMethod.OVERLAY else CORPUS[:4]
    found = {}
    for warm in (True, False):
        config = RewardConfig(("build", "test"), workers=2, warm=warm, method=method, isolation=isolation)
        with BuildReward(cargo_project, config, work_base=work) as pool:
            found[warm] = {result.id: result.verdict for result in pool.reward(corpus)}
    assert found[True] == found[False] == {sample.id: EXPECTED[sample.id] for sample in corpus}
    assert list(work.iterdir()) == []


def counting_executor(delay: float = 0.0) -> FakeExecutor:
    def answer(job: BuildJob) -> BuildResult:
        time.sleep(delay)
        bad = any(b"bad" in (change.content or b"") for change in job.changes)
        return fake_result(0.1, exit_code=int(bad), output="error: bad\n" if bad else "")

    return FakeExecutor(answer)


def make_pool(project: Path, work: Path, executor: FakeExecutor, **config: object) -> BuildReward:
    rules = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, **config)  # type: ignore[arg-type]
    return BuildReward(project, rules, executor=executor, work_base=work)


def samples(*contents: str) -> list[PatchSample]:
    return [PatchSample(str(index), path="part.c", content=content) for index, content in enumerate(contents)]


def test_results_keep_the_order_of_the_samples_and_rewards_follow_verdicts(make_project: Path, work: Path) -> None:
    rewards = {PatchVerdict.PASS: 1.0, PatchVerdict.COMPILE_ERROR: -0.5}
    with make_pool(make_project, work, counting_executor(), workers=3, rewards=rewards) as pool:
        results = pool(samples("a", "bad", "c", "bad too"))
    assert [result.id for result in results] == ["0", "1", "2", "3"]
    assert [result.reward for result in results] == [1.0, -0.5, 1.0, -0.5]
    assert results[1].diagnostic == "error: bad"


def test_equal_content_is_built_once_however_it_is_written(make_project: Path, work: Path) -> None:
    executor = counting_executor()
    diff = "--- a/part.h\n+++ b/part.h\n@@ -1 +1 @@\n-int part(int x);\n+int part(int y);\n"
    whole = PatchSample("whole", path="part.h", content="int part(int y);\n")
    with make_pool(make_project, work, executor, workers=1) as pool:
        first, second = pool.reward([PatchSample("diff", patch=diff), whole])
    assert (first.cached, second.cached) == (False, True)
    assert first.verdict is second.verdict is PatchVerdict.PASS
    assert len([job for job in executor.jobs if job.changes]) == 1


def test_equal_content_at_the_same_time_is_built_once(make_project: Path, work: Path) -> None:
    executor = counting_executor(delay=0.2)
    with make_pool(make_project, work, executor, workers=4) as pool:
        results = pool.reward(samples("x", "x", "x", "x"))
    assert len([job for job in executor.jobs if job.changes]) == 1
    assert sum(result.cached for result in results) == 3


def test_a_cache_file_outlives_the_pool_and_forgets_when_the_project_changes(
    make_project: Path, work: Path, tmp_path: Path
) -> None:
    def judge() -> bool:
        with make_pool(make_project, work, counting_executor(), cache_path=tmp_path / "c.db") as pool:
            return pool.reward(samples("x"))[0].cached

    assert [judge(), judge()] == [False, True]
    (make_project / "main.c").write_text("int main(void) { return 0; }\n")
    assert judge() is False


def test_without_a_cache_every_sample_is_built(make_project: Path, work: Path) -> None:
    executor = counting_executor()
    with make_pool(make_project, work, executor, workers=1, use_cache=False) as pool:
        pool.reward(samples("x", "x"))
    assert len([job for job in executor.jobs if job.changes]) == 2


def test_protected_and_built_files_cannot_be_changed(cargo_project: Path, work: Path) -> None:
    executor = FakeExecutor(lambda job: fake_result(1.0))
    with make_pool(cargo_project, work, executor, protected=("core/src",)) as pool:
        results = pool.reward(
            [
                PatchSample("test", path="core/src/lib.rs", content=""),
                PatchSample("output", path="target/debug/app", content=""),
            ]
        )
    assert {result.verdict for result in results} == {PatchVerdict.DOES_NOT_APPLY}
    assert all("protected" in result.diagnostic for result in results)


def test_several_threads_and_an_event_loop_may_share_a_pool(make_project: Path, work: Path) -> None:
    with make_pool(make_project, work, counting_executor(delay=0.02), workers=2) as pool:
        found: list[int] = []

        def call(name: int) -> None:
            results = pool.reward(samples(*[f"{name} {index}" for index in range(5)]))
            found.append(sum(result.reward == 1.0 for result in results))

        threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [5, 5, 5, 5]
        assert [r.reward for r in asyncio.run(pool.areward(samples("q", "bad q")))] == [1.0, 0.0]


def test_a_project_that_does_not_build_is_refused_unless_candidates_repair_it(make_project: Path, work: Path) -> None:
    (make_project / "part.c").write_text("int part(int x) { return }\n")
    config = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=1)
    with pytest.raises(BuildError, match="does not build as it is"):
        BuildReward(make_project, config, work_base=work)
    assert list(work.iterdir()) == []
    allowed = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=1, allow_broken_base=True)
    with BuildReward(make_project, allowed, work_base=work) as pool:
        (result,) = pool.reward(samples('#include "part.h"\nint part(int x) { return x + 1; }\n'))
    assert result.verdict is PatchVerdict.PASS


def test_a_build_that_asks_git_for_its_version_is_told_how_to_have_it(make_project: Path, work: Path) -> None:
    makefile = make_project / "Makefile"
    recipe = "VERSION := $(shell git describe --always || exit 1)\n$(if $(VERSION),,$(error no version))\n"
    makefile.write_text(recipe + makefile.read_text())
    config = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=1)
    with pytest.raises(BuildError, match=r"git = true in rl-bench.toml"):
        BuildReward(make_project, config, work_base=work)


def test_a_killed_launcher_does_not_stop_the_pool(make_project: Path, work: Path) -> None:
    def answer(job: BuildJob) -> BuildResult:
        if any(b"evil" in (change.content or b"") for change in job.changes):
            raise InfraError("the build launcher died without an answer: killed")
        return fake_result(0.1)

    with make_pool(make_project, work, FakeExecutor(answer), workers=1) as pool:
        results = pool.reward(samples("evil", "good"))
    assert [result.verdict for result in results] == [PatchVerdict.INFRA_ERROR, PatchVerdict.PASS]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"steps": ("compile",)}, "steps"),
        ({"steps": "build"}, "steps"),
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"jobs": 0}, "jobs"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": 1e9}, "memory_bytes"),
        ({"disk_bytes": -1}, "disk_bytes"),
        ({"max_processes": 0}, "max_processes"),
        ({"cpu_cores": 0}, "cpu_cores"),
        ({"retries": -1}, "retries"),
        ({"confirmations": 0}, "confirmations"),
        ({"method": SnapshotMethod.OVERLAY, "isolation": Isolation.OFF}, "overlay"),
        ({"method": SnapshotMethod.COPY, "isolation": Isolation.REQUIRE}, "method 'copy' has no isolation"),
        ({"method": "copy", "isolation": "require"}, "method 'copy' has no isolation"),
        ({"isolation": "nonsense"}, "isolation"),
        ({"isolation": None}, "isolation"),
        ({"method": "overlai"}, "did you mean 'overlay'"),
        ({"protected": "tests"}, "protected"),
        ({"protected": ("/etc",)}, "protected"),
        ({"protected": ("../tests",)}, "protected"),
        ({"protected": ("",)}, "protected"),
        ({"readable": "/opt"}, "readable"),
        ({"readable": ("opt",)}, "readable"),
        ({"readable": ("/no/such/path",)}, "readable"),
        ({"pass_env": "PATH"}, "pass_env"),
        ({"rewards": {"passs": 1}}, "did you mean 'pass'"),
        ({"rewards": {"pass": "1"}}, "reward of 'pass'"),
        ({"rewards": {"pass": float("inf")}}, "reward of 'pass'"),
        ({"rewards": {"infra-error": 0.0}}, "infra-error"),
        ({"rewards": [1.0]}, "rewards"),
        ({"partial_credit": 2.0, "steps": ("test",)}, "partial_credit"),
        ({"cache_path": 7}, "cache_path"),
        ({"network": "no"}, "network must be True or False, not 'no'"),
        ({"warm": "false"}, "warm"),
        ({"fuzzy": 1}, "fuzzy"),
        ({"use_cache": None}, "use_cache"),
        ({"allow_broken_base": "no"}, "allow_broken_base"),
        ({"steps": ("build", "build")}, "each once"),
        ({"solution": "x", "steps": ("test",)}, "solution must be a PatchSample"),
    ],
)
def test_impossible_configurations_are_refused(config: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        RewardConfig(**config)  # type: ignore[arg-type]


def test_options_are_understood_by_name_and_normalised() -> None:
    config = RewardConfig(
        isolation="off",  # type: ignore[arg-type]
        method="hard-link",  # type: ignore[arg-type]
        protected=("./tests", "a/b/"),
        rewards={"pass": 2, "timeout": -1},  # type: ignore[dict-item]
    )
    assert config.isolation is Isolation.OFF
    assert config.method is SnapshotMethod.HARD_LINK
    assert config.protected == ("tests", "a/b")
    assert config.rewards == {PatchVerdict.PASS: 2, PatchVerdict.TIMEOUT: -1}


def test_a_protected_name_that_is_not_there_is_named(cargo_project: Path, work: Path) -> None:
    executor = FakeExecutor(lambda job: fake_result(0.1))
    with (
        pytest.warns(UserWarning, match="protected 'tset' names nothing"),
        make_pool(cargo_project, work, executor, protected=("tset", "core/src", "*.snap")) as pool,
    ):
        assert [sentence for sentence in pool.containment.fallbacks if "names nothing" in sentence] == [
            "protected 'tset' names nothing in the project, so nothing is protected by it"
        ]


def test_a_method_without_isolation_is_named_where_isolation_was_to_be_had(
    make_project: Path, work: Path, isolation: None
) -> None:
    config = RewardConfig(method=SnapshotMethod.COPY, workers=1)
    with pytest.warns(UserWarning, match="candidates are not isolated"):
        pool = BuildReward(make_project, config, executor=counting_executor(), work_base=work)
    with pool:
        assert pool.containment.fallbacks[0].startswith("candidates are not isolated: method 'copy'")
        assert not pool.isolated


def test_a_failure_of_the_machine_is_tried_again_has_no_reward_and_is_not_cached(
    make_project: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.coderl.pool.RETRY_SECONDS", 0.0)
    calls: list[bytes] = []

    def answer(job: BuildJob) -> BuildResult:
        content = b"".join(change.content or b"" for change in job.changes)
        calls.append(content)
        if b"always" in content or (b"once" in content and calls.count(content) == 1):
            raise InfraError("mount: no space left on device")
        if b"full" in content:
            raise OSError(28, "No space left on device")
        return fake_result(0.1)

    with make_pool(make_project, work, FakeExecutor(answer), workers=1, retries=2) as pool:
        always, once, full = pool.reward(samples("always", "once", "full"))
        again = pool.reward(samples("always"))[0]
    assert [(r.verdict, r.reward, r.attempts) for r in (always, once, full)] == [
        (PatchVerdict.INFRA_ERROR, None, 3),
        (PatchVerdict.PASS, 1.0, 2),
        (PatchVerdict.INFRA_ERROR, None, 3),
    ]
    assert not again.cached
    assert calls.count(b"always") == 6


HOSTILE = (
    PatchSample("long name", path="n" * 300, content="x"),
    PatchSample("surrogate", path="part.c", content="\ud800"),
    PatchSample("surrogate in a name", path="\ud800", content="x"),
    PatchSample("digits", patch=f"--- a/part.c\n+++ b/part.c\n@@ -{'1' * 5000} +1 @@\n-x\n+y\n"),
    PatchSample("far", patch="--- a/part.c\n+++ b/part.c\n@@ -1000000000000 +1 @@\n-x\n+y\n"),
    PatchSample("not a text", path="part.c", content=7),  # type: ignore[arg-type]
    PatchSample("no path"),
)


def test_nothing_that_a_model_writes_ends_the_training(make_project: Path, work: Path) -> None:
    good = PatchSample("good", path="part.c", content="good")
    with make_pool(make_project, work, counting_executor(), workers=1) as pool:
        results = pool.reward([*HOSTILE, good])
    assert {result.verdict for result in results[:-2]} == {PatchVerdict.DOES_NOT_APPLY}
    assert results[-2].verdict in (PatchVerdict.NO_CHANGE, PatchVerdict.DOES_NOT_APPLY)
    assert results[-1].verdict is PatchVerdict.PASS


def test_a_result_has_output_times_and_a_base_to_compare_with(make_project: Path, work: Path) -> None:
    with make_pool(make_project, work, counting_executor(), workers=1) as pool:
        (result,) = pool.reward(samples("bad"))
        assert pool.base.verdict is PatchVerdict.PASS
    assert result.output == "error: bad\n"
    assert result.seconds["fake"] == 0.1
    assert set(result.seconds) == {"waiting", "overhead", "fake"}


def test_the_cache_forgets_where_anything_that_decides_has_changed(
    make_project: Path, work: Path, tmp_path: Path
) -> None:
    def is_cached(**config: object) -> bool:
        with make_pool(make_project, work, counting_executor(), cache_path=tmp_path / "c.db", **config) as pool:
            return pool.reward(samples("x"))[0].cached

    assert [is_cached(), is_cached()] == [False, True]
    for change in ({"network": True}, {"memory_bytes": 1 << 30}, {"timeout_seconds": 9.0}, {"max_processes": 9},
                   {"disk_bytes": 1 << 24}, {"cpu_cores": 0.5}, {"warm": False}):  # fmt: skip
        assert not is_cached(**change), change


def test_a_verdict_of_tests_is_not_frozen_by_one_run(make_project: Path, work: Path) -> None:
    runs: list[int] = []

    def answer(job: BuildJob) -> BuildResult:
        if not job.changes:
            return fake_result(0.1)
        runs.append(1)
        # A test that fails the first time: the candidate must not be stuck with that.
        return fake_result(0.1, exit_code=int(len(runs) == 1), output="error: unlucky\n")

    with make_pool(make_project, work, FakeExecutor(answer), workers=1, steps=("test",)) as pool:
        verdicts = [pool.reward(samples("x"))[0].verdict for _ in range(4)]
    assert verdicts == [PatchVerdict.TEST_FAILURE, *[PatchVerdict.PASS] * 3]
    assert len(runs) == 4


@pytest.mark.parametrize("warm", [True, False])
def test_a_base_that_fails_in_the_candidates_place_is_refused_with_the_reason(
    make_project: Path, work: Path, warm: bool
) -> None:
    (make_project / "main.c").write_text("int main(void) { return 1; }\n")
    config = RewardConfig(("build", "test"), isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=1, warm=warm)
    with pytest.raises(BuildError, match="does not pass its own tests"):
        BuildReward(make_project, config, work_base=work)
    with BuildReward(make_project, replace(config, allow_broken_base=True), work_base=work) as pool:
        assert pool.base.verdict is PatchVerdict.TEST_FAILURE


def test_variables_are_passed_on_by_name_only(make_project: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@db")
    monkeypatch.setenv("PROJECT_SWITCH", "on")
    executor = counting_executor()
    with make_pool(make_project, work, executor, pass_env=("PROJECT_SWITCH",)) as pool:
        pool.reward(samples("x"))
    assert executor.jobs[-1].env["PROJECT_SWITCH"] == "on"
    assert "DATABASE_URL" not in executor.jobs[-1].env
    with pytest.raises(UsageError, match="NOT_THERE"):
        make_pool(make_project, work, executor, pass_env=("NOT_THERE",))


def test_a_project_without_tests_cannot_be_asked_to_pass_them(
    tmp_path: Path, work: Path, write_files: Callable[[Path, dict[str, str]], Path]
) -> None:
    root = write_files(tmp_path / "p", {"rl-bench.toml": '[rl-bench]\nbuild = "true"\noutputs = ["o"]\n'})
    with pytest.raises(UsageError, match="no test command"):
        BuildReward(root, RewardConfig(("build", "test"), isolation=Isolation.OFF), work_base=work)
