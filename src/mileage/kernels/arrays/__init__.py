"""Public functions on NumPy arrays: advantages, returns, groups, tokens, moments, random streams."""
