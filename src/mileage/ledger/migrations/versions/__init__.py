"""The migration scripts, in order."""
