"""Runs out to other tools and in from them, one file per format."""
