from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.config import RewardConfig
from mileage.coderl.patching import PatchSample
from mileage.coderl.pool import BuildReward
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.executor import BuildJob, BuildResult
from mileage.coderl.sandbox.snapshots import SnapshotMethod
from mileage.coderl.trainers import (
    async_trl_reward,
    async_verl_compute_score,
    candidate,
    trl_reward,
    verl_compute_score,
)
from mileage.errors import InfraError

DIFF = "--- a/part.h\n+++ b/part.h\n@@ -1 +1 @@\n-int part(int x);\n+int part(int good);\n"


@pytest.fixture
def pool(make_project: Path, work: Path) -> Iterator[BuildReward]:
    """A pool for which candidates that hold the word `good` compile."""

    def answer(job: BuildJob) -> BuildResult:
        good = not job.changes or any(b"good" in (change.content or b"") for change in job.changes)
        return fake_result(0.1, exit_code=0 if good else 1, output="" if good else "error: bad\n")

    config = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=2)
    with BuildReward(make_project, config, executor=FakeExecutor(answer), work_base=work) as made:
        yield made


def test_a_completion_is_a_diff_or_a_file() -> None:
    rule = candidate("part.c")
    assert rule(f"```diff\n{DIFF}```", {"id": 4}) == PatchSample("4", patch=DIFF)
    assert rule("int x;", {}) == PatchSample("", path="part.c", content="int x;")
    assert rule("int x;", {"path": "main.c"}).path == "main.c"


def test_trl_calls_with_columns_and_gets_one_float_per_completion(pool: BuildReward) -> None:
    function = trl_reward(pool, candidate("part.c"), name="compiles")
    assert function.__name__ == "compiles"  # type: ignore[attr-defined]
    completions: list[Any] = ["good", "bad", [{"role": "assistant", "content": f"```diff\n{DIFF}```"}], "../good"]
    rewards = function(
        prompts=["p"] * 4, completions=completions, completion_ids=[[1]] * 4, path=["part.c", "part.c", "", "/etc/x"]
    )
    assert rewards == [1.0, 0.0, 1.0, 0.0]
    asynchronous = async_trl_reward(pool, candidate("part.c"))
    assert asyncio.iscoroutinefunction(asynchronous)
    assert asyncio.run(asynchronous(completions=["good", "bad"], trainer_state=None)) == [1.0, 0.0]  # type: ignore[arg-type]


def test_verl_calls_once_per_solution(pool: BuildReward) -> None:
    score = verl_compute_score(pool)
    assert score("code", "good", {"path": "part.c"})["score"] == 1.0
    answer = score(data_source="code", solution_str="bad", ground_truth=None, extra_info={"path": "part.c", "index": 3})
    assert answer == {"score": 0.0, "verdict": "compile-error", "diagnostic": "error: bad", "masked": False}
    asynchronous = async_verl_compute_score(pool, candidate("part.c"))
    assert asyncio.run(asynchronous("code", "good", "ignored"))["verdict"] == "pass"  # type: ignore[arg-type]


@pytest.fixture
def failing_pool(make_project: Path, work: Path) -> Iterator[BuildReward]:
    """A pool whose machine fails on candidates that hold the word `unlucky`."""

    def answer(job: BuildJob) -> BuildResult:
        content = b"".join(change.content or b"" for change in job.changes)
        if b"unlucky" in content:
            raise InfraError("no space left on the machine")
        return fake_result(0.1, exit_code=int(b"bad" in content))

    config = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=2, retries=0)
    with BuildReward(make_project, config, executor=FakeExecutor(answer), work_base=work) as made:
        yield made


def test_trl_is_told_nothing_about_a_candidate_that_the_machine_failed(failing_pool: BuildReward) -> None:
    function = trl_reward(failing_pool, candidate("part.c"))
    assert function(completions=["good", "unlucky", "bad"]) == [1.0, None, 0.0]


def test_verl_hands_over_a_batch_and_the_failed_one_gets_the_mean_of_its_group(failing_pool: BuildReward) -> None:
    score = verl_compute_score(failing_pool, candidate("part.c"))
    scores = score(
        data_sources=["code"] * 5,
        solution_strs=["good", "unlucky", "bad", "good 2", "unlucky 2"],
        ground_truths=[None] * 5,
        extra_infos=[{"index": index} for index in (0, 0, 0, 1, 1)],
        some_option=3,
    )
    assert [(row["score"], row["verdict"], row["masked"]) for row in scores] == [
        (1.0, "pass", False),
        (0.5, "infra-error", True),
        (0.0, "compile-error", False),
        (1.0, "pass", False),
        (1.0, "infra-error", True),
    ]


def test_a_batch_keeps_the_whole_pool_busy(make_project: Path, work: Path) -> None:
    both = threading.Barrier(2)

    def answer(job: BuildJob) -> BuildResult:
        if job.changes:
            both.wait(timeout=60)
        return fake_result(0.1)

    config = RewardConfig(isolation=Isolation.OFF, method=SnapshotMethod.COPY, workers=2)
    with BuildReward(make_project, config, executor=FakeExecutor(answer), work_base=work) as pool:
        scores = verl_compute_score(pool, candidate("part.c"))(solution_strs=["one", "two"])
    assert [row["score"] for row in scores] == [1.0, 1.0]


def test_verl_scores_from_processes_of_its_own(pool: BuildReward) -> None:
    """As its manager `prime` does: the function goes to workers, and what comes back is a number or a pair."""
    score = verl_compute_score(pool, candidate("part.c"))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        futures = [workers.submit(score, "code", text, None, {"index": 1}) for text in ("good", "bad", "good too")]
        found = [future.result(timeout=120) for future in futures]
    assert [float(result[0]) for result in found] == [1.0, 0.0, 1.0]
    assert [result["verdict"] for result in found] == ["pass", "compile-error", "pass"]


@pytest.mark.slow
@pytest.mark.parametrize("make_reward", [trl_reward, async_trl_reward], ids=["sync", "async"])
@pytest.mark.filterwarnings("ignore")
def test_a_real_grpo_trainer_is_rewarded_by_a_real_compiler(
    make_project: Path, work: Path, tmp_path: Path, make_reward: Any
) -> None:
    """TRL trains a tiny model, made here, for a few steps; its logged reward is what the compiler said."""
    for name in ("trl", "transformers", "datasets", "torch", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    # Six words drawn at random compile about as often as not: `y` is not declared.
    words = ["<pad>", "<eos>", "x;", "1;", "x+1;", "x*2;", "go;", "y;"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    shape = GPT2Config(vocab_size=len(words), n_positions=32, n_embd=16, n_layer=1, n_head=2,
                       bos_token_id=1, eos_token_id=1, pad_token_id=0)  # fmt: skip
    seen: list[float] = []
    torch.manual_seed(0)

    def to_sample(text: str, row: dict[str, Any]) -> PatchSample:
        source = f'#include "part.h"\nint part(int x) {{ int go = 1; {text} return go + x; }}\n'
        return PatchSample("", path="part.c", content=source)

    with BuildReward(make_project, RewardConfig(workers=2, timeout_seconds=300), work_base=work) as pool:
        original = pool.submit

        def spying_submit(samples: Any) -> Any:
            futures = original(samples)
            seen.extend(future.result().reward for future in futures)
            return futures

        pool.submit = spying_submit  # type: ignore[method-assign]
        trainer = GRPOTrainer(
            model=GPT2LMHeadModel(shape),
            processing_class=fast,
            reward_funcs=make_reward(pool, to_sample),
            train_dataset=Dataset.from_dict({"prompt": ["go;"] * 8}),
            args=GRPOConfig(
                output_dir=str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=4, num_generations=4,
                max_completion_length=6, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
            ),
        )  # fmt: skip
        trainer.train()
        logged = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert len(seen) == 8
    assert logged == pytest.approx([sum(seen[:4]) / 4, sum(seen[4:]) / 4])
    assert set(seen) == {0.0, 1.0}
