"""The folder that goes first on the path of a watched program's interpreters."""
