"""`mileage serve`: the ledger as live pages in a browser."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from mileage.cli import options
from mileage.errors import MissingExtraError, UsageError


def serve(
    host: Annotated[str, Option(help="Address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 takes a free one.")] = 8350,
    token: Annotated[
        str | None,
        Option(help="Access token (MILEAGE_TOKEN); generated if needed.", envvar="MILEAGE_TOKEN"),
    ] = None,
    open_: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    db: options.Database = None,
) -> None:
    """Show the ledger as live pages: runs, recipes, comparisons, builds. Nothing can be changed there."""
    try:
        import uvicorn

        from mileage.report.web.app import SHORTEST_TOKEN, is_loopback, make_app
    except ImportError:
        raise MissingExtraError("mileage serve", "web") from None
    import secrets
    import socket

    from mileage.ledger.store import Store

    if not 0 <= port <= 65_535:
        raise UsageError(f"--port must be 0 to 65535, not {port}")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UsageError(f"--token must have at least {SHORTEST_TOKEN} plain characters")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(32)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(256)
    except OSError as error:
        listening.close()
        raise UsageError(f"--host {host} --port {port} cannot be listened on: {error.strerror}") from None
    with Store.viewer(db) as store:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/" + ("" if token is None else f"?token={token}")
        print(f"{store.shown_url} at {address} (Ctrl-C ends it)", flush=True)
        if open_:
            import webbrowser

            webbrowser.open(address)
        config = uvicorn.Config(
            make_app(store, token),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets=[listening])
