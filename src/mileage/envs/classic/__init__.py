"""The classic control tasks as native environments."""
