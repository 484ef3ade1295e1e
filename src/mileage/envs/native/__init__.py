"""Environments compiled from plain functions, and the vector environment that steps them."""
