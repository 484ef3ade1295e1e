"""Candidate patches, and the verdicts on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mileage._errors import UsageError
from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import Change, JobResult, StepOutcome
from mileage.coderl.patching import PatchError, apply_diff, replace_file

PATCH_SUFFIXES = (".diff", ".patch")


class PatchVerdict(StrEnum):
    """What became of a candidate."""

    PASS = "pass"
    COMPILE_ERROR = "compile-error"
    TEST_FAILURE = "test-failure"
    DOES_NOT_APPLY = "does-not-apply"
    # Nothing was proposed: no text, or a tree that is what it was.
    NO_CHANGE = "no-change"
    # Changed what judges it while the tests ran.
    TAMPERED = "tampered"
    TIMEOUT = "timeout"
    # Broke the memory or process limit, or the job could not be run to its end.
    KILLED = "killed"
    # The machine failed, not the candidate: it has no reward, is tried again, and is never cached.
    INFRA_ERROR = "infra-error"


@dataclass(frozen=True)
class PatchSample:
    """A candidate: a unified diff, or the new content of one file."""

    id: str
    patch: str | None = None
    path: str | None = None
    content: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was proposed: no diff, no content, or only white space."""
        return not str(self.patch if self.patch is not None else self.content or "").strip()

    def changes(self, tree: Path, protected: Sequence[str] = (), fuzzy: bool = False) -> tuple[Change, ...]:
        """What the candidate does to `tree`; PatchError if it does not apply or may not be applied."""
        if self.patch is not None:
            return apply_diff(self.patch, tree, protected, fuzzy)
        if self.path is None or self.content is None:
            raise PatchError("the sample has neither a patch nor a path with content")
        return replace_file(self.path, self.content, tree, protected)


def load_corpus(path: Path) -> tuple[PatchSample, ...]:
    """Read a directory of .diff and .patch files, or a JSONL file of {id, patch} or {id, path, content}."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in PATCH_SUFFIXES)
        samples = [PatchSample(file.stem, patch=_read(file)) for file in files]
    elif path.is_file():
        samples = [_sample(path, number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line]
    else:
        raise UsageError(f"samples {str(path)!r} does not exist: give a directory of diffs or a JSONL file")
    if not samples:
        raise UsageError(f"samples {str(path)!r} holds no patch: expected {' or '.join(PATCH_SUFFIXES)} files or JSONL")
    repeated = [name for name, count in Counter(sample.id for sample in samples).items() if count > 1]
    if repeated:
        raise UsageError(f"samples {str(path)!r} has the id {repeated[0]!r} more than once: make ids unique")
    return tuple(samples)


def _read(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "surrogateescape")


def _sample(path: Path, number: int, line: str) -> PatchSample:
    try:
        data = json.loads(line)
        sample = PatchSample(str(data["id"]), data.get("patch"), data.get("path"), data.get("content"))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f'{path} line {number} is not an object with "id": use {{id, patch}} or {{id, path, content}}'
        ) from None
    if sample.patch is None and (sample.path is None or sample.content is None):
        raise UsageError(f"{path} line {number} has neither a patch nor a path with content")
    return sample


def judge(result: JobResult, compile_steps: int) -> tuple[PatchVerdict, str]:
    """The verdict on a job and its first diagnostic; the first `compile_steps` commands compile."""
    last = result.steps[-1]
    if result.succeeded:
        return PatchVerdict.PASS, ""
    if last.outcome is StepOutcome.TIMEOUT:
        return PatchVerdict.TIMEOUT, f"killed after {result.wall_seconds:.1f} s: {' '.join(last.argv)}"
    if last.outcome is StepOutcome.CANCELLED:
        return PatchVerdict.INFRA_ERROR, "cancelled: the pool was closed"
    if last.outcome is not StepOutcome.EXITED:
        return PatchVerdict.KILLED, f"killed: {last.outcome} limit: {' '.join(last.argv)}"
    diagnostic = first_diagnostic(last.output) or f"exit code {last.exit_code}"
    return (PatchVerdict.COMPILE_ERROR if len(result.steps) <= compile_steps else PatchVerdict.TEST_FAILURE), diagnostic


def count_verdicts(verdicts: Iterable[PatchVerdict]) -> dict[str, int]:
    """How often each verdict was given, in the order of the enum."""
    counts = Counter(verdicts)
    return {str(verdict): counts[verdict] for verdict in PatchVerdict if counts[verdict]}
