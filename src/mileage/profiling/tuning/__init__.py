"""Fixes tried: which change of a run's settings reaches the target sooner, measured."""
