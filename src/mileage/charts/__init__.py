"""Charts as text: pure functions from numbers to SVG, and the markup they are made of. Nothing here reads a run."""
