"""Secrets found and kept out of rows, text and addresses.

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
_KEYS = (
    "access|account|admin|api|auth|aws|azure|db|deploy|encryption|gcp|hf|kaggle|licen[cs]e|master|openai|private|root|"
    "secret|service|shared|signing|ssh|storage|wandb|webhook"
)
_NAME = (
    rf"(?:[\w-]*(?:passw(?:or)?ds?|passphrase|passcode|secrets?|credentials?|(?:{_KEYS})[_-]?keys?|authorization)"
    rf"|(?:[\w-]*[_-])?(?:(?:db|pg|my|root|admin)?pwd?|pass|apikeys?|pgpass|auth|cookies?)"
    rf"|(?:[\w-]*[_-])?(?:{_TOKENS})[_-]?token|token)"
)
"""The names of settings that are secret; a length (`max_tokens`) or a special token of a vocabulary is none of them."""
_NAME_OF_TOKENS = rf"(?:(?:[\w-]*[_-])?(?:{_TOKENS})[_-]?)?tokens"
"""Several of them where they are words: numbers under these names are counted."""
# Where settings follow each other, a comma or semicolon ends a value only if another one begins behind it.
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:[^\s"'&;,}]|[&;,](?!\s|\Z|["'\w.%-]+[=:]))+)"""

# Compiled when they are first needed, which takes longer than everything else before a run is on disk.
_SECRET_NAME = rf"(?i){_NAME}"
# A user and a password before the @ of an address; a password may hold what ought to have been encoded, even an @.
_ADDRESS = r"(?P<before>[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:\"']*:)(?P<secret>(?:(?!://)[^\s\"'])+)(?=@)"
_WHOLE_ADDRESS = r"(?s)(?P<before>\A(?:-[\w-]+=)?[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:)(?P<secret>.+)(?=@[^@]*\Z)"
_SETTING = (
    rf"(?i)(?P<before>(?<![\w-]){_NAME}[\"']?(?:\s*[=:]\s*|%3d))"
    rf"(?P<secret>(?:(?:Bearer|Basic|Token)\s+)?{_VALUE})"
)
# What the query of an address gives away: there every value ends at the next &.
_QUERY = (
    rf"(?i)(?P<before>[?&](?:{_NAME}|sig|key|code|(?:x-\w+-)?(?:signature|credential|security-token))=)"
    r"(?P<secret>[^&\s\"'#]+)"
)
_HEADER = r"(?i)(?P<before>\b(?:set-)?cookie:\s*)(?P<secret>[^\"'\n]+)"
_FETCHERS = ("curl", "wget", "http", "https")
_LOGINS = ("-u", "--user", "--proxy-user")
_LOGIN = (
    r"(?P<before>\b(?:curl|wget|https?)\b[^|\n]*?\s(?:-u|--user|--proxy-user)(?:\s+|=)[\"']?[^\s:\"']+:)"
    r"(?P<secret>[^\s\"']+)"
)
_OPTION = rf"(?i)(?P<before>(?<!\S)--?{_NAME}\s+)(?P<secret>(?!-){_VALUE})"
_BEARER = r"(?P<before>\b(?:Bearer|Basic)\s+)(?P<secret>[A-Za-z0-9._~+/=-]{12,})"
_ISSUED = (
    r"(?P<before>)(?P<secret>\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}|pypi-[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|$))"
)
_LIST = rf"(?i)(?P<before>(?<![\w-]){_NAME_OF_TOKENS}[\"']?\s*[=:]\s*)(?P<secret>\[[^\]]*[a-z][^\]]*\])"
_RULES = (_ADDRESS, _QUERY, _HEADER, _SETTING, _OPTION, _BEARER, _LOGIN, _LIST, _ISSUED)
# A setting that is an argument of its own: everything behind its name belongs to it.
_WHOLE_SETTING = rf"(?is)(?P<before>(?:--?|[+~]*)(?:[\w-]+\.)*{_NAME}=)(?P<secret>.+)"
# None of the rules finds anything in a text without one of these: most texts are done with one look.
_HINTS = (
    "://", "pass", "pw", "secret", "cookie", "-u", "--user", "--proxy",
    "token", "key", "auth", "credential", "bearer", "basic", "hf_", "sk-", "akia",
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
        return _scrubbed_argument(value)
    if isinstance(value, Mapping):
        return {scrubbed_text(str(name)): _scrubbed_entry(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):  # it may be a command line
        return _scrubbed_arguments(value)
    return value


def _scrubbed_entry(name: str, value: Any) -> Any:
    secret = _is_secret(name) or (_hints(name) and re.fullmatch(f"(?i){_NAME_OF_TOKENS}", name) and _has_words(value))
    return _hidden(value) if secret else scrubbed_value(value)


def _has_words(value: Any) -> bool:
    """Whether a value, or one inside it, is a text that is no number."""
    if isinstance(value, Mapping | list | tuple):
        return any(map(_has_words, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and not re.fullmatch(r"[\d.,_]*[kKMG]?", value)


def _hidden(value: Any) -> Any:
    """The value of a secret setting: nothing of it is shown but its form."""
    if isinstance(value, Mapping):
        return {name: _hidden(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(each) for each in value]
    return value if value is None or isinstance(value, bool) or value == "" else HIDDEN


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
    return " ".join(_scrubbed_arguments(arguments))


def _scrubbed_arguments(arguments: Sequence[Any]) -> list[Any]:
    """The same, an argument at a time; what is no text is a value like any other."""
    shown: list[Any] = []
    secret = False
    words = [each if isinstance(each, str) else "" for each in arguments]
    fetches = any(word.rpartition("/")[2] in _FETCHERS for word in words)
    for argument, before in zip(arguments, ["", *words], strict=False):
        names_secret = isinstance(argument, str) and argument.startswith("-") and _is_secret(argument.lstrip("-"))
        # What follows the name of a secret is one, even if it looks like an option.
        shown.append(HIDDEN if secret and isinstance(argument, str | int | float) else scrubbed_value(argument))
        if fetches and before in _LOGINS and isinstance(argument, str) and ":" in argument:
            shown[-1] = f"{argument.partition(':')[0]}:{HIDDEN}"
        secret = names_secret
    return shown


def _scrubbed_argument(text: str) -> str:
    """A text that stands for itself: as an address or a setting as a whole, it may have anything in its password."""
    if not _may_hold_secrets(text):
        return text
    for rule in (_WHOLE_SETTING, _WHOLE_ADDRESS):
        found = re.match(rule, text)
        if found is not None:
            text = _hide(found) + text[found.end() :]
    return scrubbed_text(text)


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
    from urllib.parse import quote, unquote

    found = set()
    for name, value in os.environ.items():
        if is_secret_variable(name):
            found.add(value)
        if _hints(value):
            found |= {match["secret"].strip("'\"") for rule in _RULES for match in re.finditer(rule, value)}
    # A path is no secret, whatever the variable is called: GIT_ASKPASS, SSH_AUTH_SOCK.
    secrets = {value for value in found if len(value) >= _SHORTEST_VALUE and not value.startswith("/")}
    # Inside an address a password is written in another way.
    secrets |= {written for value in secrets for written in (unquote(value), quote(value, safe=""))}
    return tuple(sorted(secrets, key=len, reverse=True))


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: there, every KEY and TOKEN is one."""
    return re.search(r"(?i)(?:^|_)(?:key|token|pin|dsn|webhook)s?$", name) is not None or _is_secret(name)
