"""Who may see the pages: this machine alone, or whoever has the token; and the headers that every answer carries."""

from __future__ import annotations

import hmac
import ipaddress
import re
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mileage.charts.document import SERVED_POLICY

COOKIE = "mileage_token"
SHORTEST_TOKEN = 16
LONGEST_ADDRESS = 8_000
"""Characters of path and query."""
_HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the pages: unknown hosts, missing tokens and odd addresses get no further."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, query = Headers(scope=scope), scope.get("query_string", b"")
        raw = scope.get("raw_path") or scope["path"].encode()
        if len(raw) + len(query) > LONGEST_ADDRESS:
            return PlainTextResponse("the address is too long", 414)
        if _CONTROL.search(unquote_to_bytes(raw)) or _CONTROL.search(unquote_to_bytes(query.replace(b"+", b" "))):
            return PlainTextResponse("an address has no control characters", 400)
        if self._token is None:
            # Without a token only this machine may ask, also by way of a page that has a name lead here.
            host = re.sub(r":\d*$", "", headers.get("host", ""))
            return None if is_loopback(host) else PlainTextResponse("ask by the name localhost or 127.0.0.1", 421)
        return self._token_refusal(scope, headers, query)

    def _token_refusal(self, scope: Scope, headers: Headers, query: bytes) -> Response | None:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in pairs if name == "token"), None)
        if given is not None:
            if not self._is_token(given):
                return PlainTextResponse("this token is not the right one", 403)
            rest = urlencode([pair for pair in pairs if pair[0] != "token"])
            path = "/" + scope["path"].lstrip("/\\")
            there = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            there.set_cookie(COOKIE, given, httponly=True, samesite="strict")
            return there
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if self._is_token(_cookie(headers.get("cookie", ""))):
            return None
        return PlainTextResponse("a token is needed: open the address that mileage serve printed", 401)

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
