"""The algorithms on any torch module."""
