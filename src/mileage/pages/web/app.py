"""The server: addresses, what answers them, and errors in one sentence. It can only read: see `Store.viewer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mileage._errors import LedgerError, MileageError, UnmatchedError
from mileage._records import strict_json
from mileage._version import __version__
from mileage.charts.document import script, style
from mileage.ledger.store import Store
from mileage.pages.web import lists, views
from mileage.pages.web.access import Guard
from mileage.pages.web.frame import message, number
from mileage.pages.web.live import MOST_WATCHERS, Watch
from mileage.report import answers
from mileage.report.compare import compare_selections
from mileage.text import plain

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
        self._store, self._watch = store, Watch(store)

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
        answers.shown(store, request.path_params["run_id"], target=request.query_params.get("target") or None)
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
