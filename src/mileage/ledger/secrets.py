"""Passwords, tokens and keys are taken out of every text before it becomes part of the record.

A record cannot be changed, is shown, exported and shared: what must not be in it has to be stopped at the door. The
rules know addresses with a password, settings and options whose name says that they are secret, the forms in which
well-known services hand out keys, and the secrets of this process's own environment by their value.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mileage.ledger.rows import KIND_OF, Row

HIDDEN = "***"

_TOKENS = (
    "access|api|app|auth|bearer|bot|client|gh|github|gitlab|hf|hub|id|login|oauth|personal|refresh|secret|session|"
    "slack|sso|user|wandb"
)
_NAME = (
    r"(?:[\w-]*(?:passw(?:or)?d|passwd|passphrase|passcode|secret|credentials?|(?:api|access|private|secret|account|auth|"
    r"signing|encryption|service)[_-]?key|authorization)"
    rf"|(?:[\w-]*[_-])?(?:pwd|pass|apikey|pgpass)|(?:[\w-]*[_-])?(?:{_TOKENS})[_-]?token|token|[\w-]*_auth)"
)
"""The names of settings that are secret; a length (`max_tokens`) or a special token of a vocabulary is none of them."""
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"'&;,]+)"""

# Compiled when they are first needed, which takes longer than everything else before a run is on disk.
_SECRET_NAME = rf"(?i){_NAME}"
# A user and a password before the @ of an address; a password may hold what ought to have been encoded, even an @.
_ADDRESS = r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:\"']*:)(?P<secret>(?:(?!://)[^\s\"'])+)(?=@)"
_WHOLE_ADDRESS = r"(?s)(?P<before>\A(?:-[\w-]+=)?[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:)(?P<secret>.+)(?=@[^@]*\Z)"
_SETTING = (
    rf"(?i)(?P<before>(?<![\w-]){_NAME}[\"']?(?:\s*[=:]\s*|%3d))"
    rf"(?P<secret>(?:(?:Bearer|Basic|Token)\s+)?{_VALUE})"
)
_OPTION = rf"(?i)(?P<before>(?<!\S)--?{_NAME}\s+)(?P<secret>(?!-){_VALUE})"
_BEARER = r"(?P<before>\b(?:Bearer|Basic)\s+)(?P<secret>[A-Za-z0-9._~+/=-]{12,})"
_ISSUED = (
    r"(?P<before>)(?P<secret>\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}|pypi-[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|$))"
)
_RULES = (_ADDRESS, _SETTING, _OPTION, _BEARER, _ISSUED)
# None of the rules finds anything in a text without one of these: most texts are done with one look.
_HINTS = (
    "://", "pass", "pwd", "secret", "token", "key", "auth", "credential", "bearer", "basic", "hf_", "sk-", "akia",
    "asia", "aiza", "xox", "glpat", "pypi-", "eyj", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
)  # fmt: skip
_SHORTEST_VALUE = 6
"""A secret of the environment is looked for by its value from this length on: a shorter one is a word."""

TEXT_FIELDS: dict[str, tuple[str, ...]] = {
    "run": ("command", "config", "machine", "price"),
    "checkpoint": ("path", "reset_reasons", "claimed"),
    "profile": ("summary",),
    "sample": ("diagnostic",),
    "note": ("text",),
    "end": ("reason", "gpus"),
}
"""The fields of each kind of row that hold what users, their tools and their machines wrote."""
JSON_TEXTS = ("config", "machine", "price", "reset_reasons", "claimed", "summary", "gpus")


def scrubbed_text(text: str) -> str:
    """`text` with every secret in it replaced by `***`; doing it again changes nothing."""
    for value in _environment_secrets():
        text = text.replace(value, HIDDEN)
    if not _hints(text):
        return text
    for rule in _RULES:
        text = re.sub(rule, _hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    secret = match["secret"]
    quote = secret[0] if secret[:1] in ("'", '"') and secret[-1:] == secret[:1] and len(secret) > 1 else ""
    return f"{match['before']}{quote}{HIDDEN}{quote}"


def scrubbed_value(value: Any) -> Any:
    """Plain JSON values with every secret replaced, whether its own text or the name it stands under gives it away."""
    if isinstance(value, str):
        return scrubbed_text(value)
    if isinstance(value, Mapping):
        return {scrubbed_text(str(name)): _scrubbed_entry(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed_value(each) for each in value]
    return value


def _scrubbed_entry(name: str, value: Any) -> Any:
    if isinstance(value, str | int | float) and not isinstance(value, bool) and _is_secret(name):
        return HIDDEN if value != "" else value
    return scrubbed_value(value)


def scrubbed_json(text: str) -> str:
    """The same for JSON text; what is not JSON is taken as text."""
    if not _may_hold_secrets(text):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return scrubbed_text(text)
    clean = scrubbed_value(value)
    return text if clean == value else json.dumps(clean, sort_keys=True, separators=(",", ":"))


def _may_hold_secrets(text: str) -> bool:
    return _hints(text) or any(value in text for value in _environment_secrets())


def _is_secret(name: str) -> bool:
    """Whether a setting of this name is one."""
    return _hints(name) and re.fullmatch(_SECRET_NAME, name) is not None


def _hints(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


def scrubbed_command(arguments: Sequence[str]) -> str:
    """A command line as it may be written down: an option's value is hidden where its name says that it is secret."""
    shown: list[str] = []
    secret = False
    for argument in arguments:
        if secret and not argument.startswith("-"):
            shown.append(HIDDEN)
            secret = False
            continue
        name = argument.lstrip("-")
        secret = argument.startswith("-") and "=" not in argument and _is_secret(name)
        # An argument that is an address as a whole may have blanks in its password.
        shown.append(scrubbed_text(re.sub(_WHOLE_ADDRESS, _hide, argument) if "://" in argument else argument))
    return " ".join(shown)


def scrubbed_row(row: Row) -> Row:
    """`row` without secrets; the row itself where it has none."""
    fields = TEXT_FIELDS.get(KIND_OF[type(row)])
    if fields is None:
        return row
    changes: dict[str, str] = {}
    for field, value in zip(row._fields, row, strict=True):
        if field in fields and isinstance(value, str) and value:
            clean = scrubbed_json(value) if field in JSON_TEXTS else scrubbed_text(value)
            if clean != value:
                changes[field] = clean
    return row._replace(**changes) if changes else row  # type: ignore[arg-type]


def _environment_secrets() -> tuple[str, ...]:
    """The values of this process's secret variables, and passwords of addresses in others; looked up once a second."""
    return _secrets_of_environment(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _secrets_of_environment(_: int) -> tuple[str, ...]:
    found = set()
    for name, value in os.environ.items():
        if _is_secret(name):
            found.add(value)
        elif "://" in value:
            found |= {match["secret"] for match in re.finditer(_ADDRESS, value)}
    # A path is no secret, whatever the variable is called: GIT_ASKPASS, SSH_AUTH_SOCK.
    secrets = [value for value in found if len(value) >= _SHORTEST_VALUE and not value.startswith("/")]
    return tuple(sorted(secrets, key=len, reverse=True))
