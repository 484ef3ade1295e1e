"""Marks for tests, and for parameters of tests, that need an extra: skipped without it, with a reason that names it."""

from __future__ import annotations

import importlib.util

import pytest


def needs(extra: str, *modules: str) -> pytest.MarkDecorator:
    """A mark that skips where one of the extra's `modules` is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the {extra} extra is not installed ({', '.join(missing)})")


ATARI = needs("atari", "ale_py", "cv2")
BOX2D = needs("box2d", "Box2D")
MLFLOW = needs("mlflow", "mlflow")
MUJOCO = needs("mujoco", "mujoco")
NOTEBOOK = needs("notebook", "matplotlib", "pandas")
ONNX = needs("onnx", "onnxruntime")
PARQUET = needs("parquet", "pyarrow")
POSTGRES = needs("postgres", "psycopg")
TENSORBOARD = needs("tensorboard", "tensorboard")
TORCH = needs("torch", "torch")
TRACKIO = needs("trackio", "trackio")
WANDB = needs("wandb", "wandb")
