"""Micro-benchmarks of every primitive on this machine."""
