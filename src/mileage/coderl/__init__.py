"""Code RL: builds as KPIs (`run_bench`), candidate patches, and the build-reward pool (`BuildReward`)."""

from __future__ import annotations

from mileage.coderl.bench import BenchConfig, Progress, describe, run_bench
from mileage.coderl.config import RewardConfig, RewardResult
from mileage.coderl.kpi import KpiSettings
from mileage.coderl.patching import PatchSample, PatchVerdict, load_corpus
from mileage.coderl.pool import BuildReward
from mileage.coderl.projects.detection import detect
from mileage.coderl.projects.modes import BASELINE, default_modes
from mileage.coderl.projects.systems import Project
from mileage.coderl.readers import Expected, TestFormat, TestOutcome, TestResult, read_tests
from mileage.coderl.report import BenchReport, to_html, to_json, to_markdown, to_text
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.executor import LocalExecutor, TakingTurns
from mileage.coderl.sandbox.snapshots import SnapshotMethod
from mileage.coderl.store import KpiStore, kpi_rows
from mileage.coderl.trainers import (
    async_trl_reward,
    async_verl_compute_score,
    candidate,
    trl_reward,
    verl_compute_score,
)

Verdict = PatchVerdict
"""As it was called first."""

__all__ = [
    "BASELINE",
    "BenchConfig",
    "BenchReport",
    "BuildReward",
    "Expected",
    "Isolation",
    "KpiSettings",
    "KpiStore",
    "LocalExecutor",
    "PatchSample",
    "PatchVerdict",
    "Progress",
    "Project",
    "RewardConfig",
    "RewardResult",
    "SnapshotMethod",
    "TakingTurns",
    "TestFormat",
    "TestOutcome",
    "TestResult",
    "Verdict",
    "async_trl_reward",
    "async_verl_compute_score",
    "candidate",
    "default_modes",
    "describe",
    "detect",
    "kpi_rows",
    "load_corpus",
    "read_tests",
    "run_bench",
    "to_html",
    "to_json",
    "to_markdown",
    "to_text",
    "trl_reward",
    "verl_compute_score",
]
