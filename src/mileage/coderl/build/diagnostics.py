"""The first thing a compiler complained about."""

from __future__ import annotations

import re

LONGEST = 300
# In the order they are tried; each matches one line.
_PATTERNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^error(?:\[E\d+\])?: (?!could not compile|aborting|test failed).+$",  # rustc, cargo
        r"^\S+?:\d+:(?:\d+:)? (?:fatal )?error: .+$",  # gcc, clang
        r"^\S+?\(\d+,\d+\): error TS\d+: .+$",  # tsc
        r"^\[ERROR\] \S+\.java:.+$",  # maven
        r"^\[ERROR\] \S.+$",  # maven, other than the compiler
        r"^\S+\.go:\d+(?::\d+)?: .+$",  # go
        r"^(?:E\s+)?(?:\w+\.)*\w*(?:Error|Exception)\b.*$",  # python
        r"^.*\b(?:error|FAILED|panicked at|undefined reference|No space left|cannot start)\b.*$",
    )
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RUST_PLACE = re.compile(r"\s*--> (\S+)")


def first_diagnostic(output: str) -> str:
    """The first error line of a build's output, with its place where the compiler names one apart."""
    text = _COLOUR.sub("", output)
    for pattern in _PATTERNS:
        match = pattern.search(text)
        if match:
            place = _RUST_PLACE.match(text[match.end() :])
            line = match[0].strip() + (f" ({place[1]})" if place else "")
            return line[:LONGEST]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""
