"""coderl."""
