"""The server: addresses, who may see them, and errors in one sentence. It can only read: see `Store.viewer`."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mileage.errors import LedgerError, MileageError, UnmatchedError
from mileage.ledger.store import Store
from mileage.records import strict_json
from mileage.report import answers
from mileage.report.compare import compare_selections
from mileage.report.markup import SERVED_POLICY, script, style
from mileage.report.web import lists, views
from mileage.report.web.lists import message, number
from mileage.report.web.live import MOST_WATCHERS, LiveView
from mileage.tables import plain
from mileage.version import __version__

# --- Who may see the pages: this machine alone, or whoever has the token; headers of every answer ---
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


Endpoint = Callable[[Request], Awaitable[Response]]
_TRUE = ("1", "true", "yes")


def make_app(store: Store, token: str | None = None) -> Starlette:
    """The pages of `store`; with a token, for whoever has it."""
    pages = _Pages(store)
    routes = [
        Route("/", pages.html(lambda request: lists.runs(store, request.query_params))),
        Route("/recipes", pages.html(lambda request: lists.recipes(store, request.query_params))),
        Route(
            "/recipes/{run_id}",
            pages.html(lambda request: views.recipe(store, request.path_params["run_id"], request.query_params)),
        ),
        Route("/runs/{run_id}", pages.run),
        Route("/runs/{run_id}/live", pages.part),
        Route("/events/{run_id}", pages.events),
        Route("/compare", pages.compare),
        Route("/builds", pages.html(lambda _: views.builds(store))),
        Route("/api/runs.json", pages.json(_list)),
        Route("/api/runs/{run_id}.json", pages.json(_show)),
        Route("/api/compare.json", pages.json(_compare)),
        Route("/openapi.json", pages.json(lambda _store, _request: openapi())),
        Route("/static/page.css", pages.text(style(), "text/css")),
        Route("/static/page.js", pages.text(script(), "text/javascript")),
    ]
    handlers = {MileageError: _mistake, LookupError: _missing, HTTPException: _http, Exception: _fault}
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token)],
        exception_handlers=handlers,
    )


class _Pages:
    """What answers requests from one ledger; the database is asked in threads of its own."""

    def __init__(self, store: Store) -> None:
        self._store, self._watch = store, LiveView(store)

    def html(self, make: Callable[[Request], str]) -> Endpoint:
        async def answer(request: Request) -> Response:
            return HTMLResponse(await anyio.to_thread.run_sync(make, request))

        return answer

    def json(self, make: Callable[[Store, Request], object]) -> Endpoint:
        async def answer(request: Request) -> Response:
            found = await anyio.to_thread.run_sync(make, self._store, request)
            return Response(strict_json(found), media_type="application/json")

        return answer

    def text(self, content: str, kind: str) -> Endpoint:
        async def answer(_: Request) -> Response:
            return Response(content, media_type=kind)

        return answer

    async def run(self, request: Request) -> Response:
        run_id = request.path_params["run_id"]
        version, _ = await self._watch.state(run_id)
        return HTMLResponse(await anyio.to_thread.run_sync(views.run, self._store, run_id, version))

    async def part(self, request: Request) -> Response:
        run_id = request.path_params["run_id"]
        return HTMLResponse(await self._watch.part(run_id, lambda: views.run_part(self._store, run_id)))

    async def events(self, request: Request) -> Response:
        run_id, since = request.path_params["run_id"], request.query_params.get("since")
        if self._watch.watching >= MOST_WATCHERS:
            return _said(request, "too many pages are watching: close some", 429)
        await anyio.to_thread.run_sync(views.known, self._store, run_id)
        return StreamingResponse(self._watch.events(run_id, since), media_type="text/event-stream")

    async def compare(self, request: Request) -> Response:
        content, status = await anyio.to_thread.run_sync(views.compare, self._store, request.query_params)
        return HTMLResponse(content, status)


def _list(store: Store, request: Request) -> object:
    query = request.query_params
    limit = number(query, "limit", 50, 10_000_000)
    return answers.list_answer(
        answers.listed(store, query.get("selection") or None, state=query.get("state") or None, limit=limit)
    )


def _show(store: Store, request: Request) -> object:
    return answers.run_answer(
        answers.shown_run(store, request.path_params["run_id"], target=request.query_params.get("target") or None)
    )


def _compare(store: Store, request: Request) -> object:
    query = request.query_params
    allow, sequential = query.getlist("allow_unmatched"), query.get("sequential", "") in _TRUE
    found = compare_selections(
        store,
        query.get("a", ""),
        query.get("b", ""),
        allow=allow,
        sequential=sequential,
        target=query.get("target") or None,
    )
    return found.as_dict()


def _said(request: Request, sentence: str, status: int) -> Response:
    """One sentence, for a program or for a person."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": sentence}, status)
    title = {404: "Not found", 503: "The ledger cannot be read"}.get(status, "That cannot be shown")
    return HTMLResponse(message(title, plain(sentence, 1000)), status)


async def _mistake(request: Request, error: Exception) -> Response:
    if isinstance(error, UnmatchedError):
        return _said(request, str(error), 409)
    if isinstance(error, LedgerError):
        return _said(request, str(error), 503)
    return _said(request, str(error), 404 if "no run matches" in str(error) else 400)


async def _missing(request: Request, error: Exception) -> Response:
    return _said(request, str(error.args[0]) if error.args else "there is nothing here", 404)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is no such page", 405: "pages can only be read"}.get(error.status_code, error.detail)
    return _said(request, said, error.status_code)


async def _fault(request: Request, _: Exception) -> Response:
    return _said(request, "this page cannot be made: that is a mistake in mileage, please report it", 500)


def openapi() -> dict[str, object]:
    """What a program may ask, as an OpenAPI document."""

    def get(summary: str, *parameters: tuple[str, str, str]) -> dict[str, object]:
        asked = [
            {"name": name, "in": where, "required": where == "path", "schema": {"type": kind}}
            for name, where, kind in parameters
        ]
        kinds = {
            "200": "the answer",
            "400": "what is wrong with the question",
            "404": "nothing there",
            "409": "sets of runs that may not be compared",
        }
        answers_ = {code: {"description": said} for code, said in kinds.items()}
        return {"get": {"summary": summary, "parameters": asked, "responses": answers_}}

    run_id = ("run_id", "path", "string")
    text = [(name, "query", "string") for name in ("q", "state", "sort", "order")]
    sides = [(name, "query", "string") for name in ("a", "b", "target", "allow_unmatched", "sequential")]
    paths = {
        "/": get("All runs", *text, ("page", "query", "integer")),
        "/recipes": get("Runs by recipe", *text, ("page", "query", "integer")),
        "/recipes/{run_id}": get("The seeds of a recipe", run_id, ("x", "query", "string")),
        "/runs/{run_id}": get("One run", run_id),
        "/runs/{run_id}/live": get("What changes on its page", run_id),
        "/compare": get("Two selections against each other", *sides),
        "/builds": get("Build benchmarks"),
        "/api/runs.json": get(
            "What `mileage ledger list --json` prints",
            ("selection", "query", "string"),
            ("state", "query", "string"),
            ("limit", "query", "integer"),
        ),
        "/api/runs/{run_id}.json": get(
            "What `mileage ledger show --json` prints", run_id, ("target", "query", "string")
        ),
        "/api/compare.json": get("What `mileage ledger compare --json` prints", *sides),
    }
    return {"openapi": "3.1.0", "info": {"title": "mileage", "version": __version__}, "paths": paths}
