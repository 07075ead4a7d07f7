"""What the browser asks of `hloc explore`: the page, the panes of a text, a file to share.

    GET  /TOKEN/          the page
    POST /TOKEN/panes     {"text", "name", "panes"} -> lines of JSON, as hloc/explore/worker.py makes them
    POST /TOKEN/share     {"text", "name", "panes", "answers"} -> one HTML file

It listens on 127.0.0.1 alone. An address without the token, another Host (a name that was pointed here), another Origin
(a page of somebody else's) and larger bodies are refused before anything is read of them.
"""
from __future__ import annotations

import asyncio
import hmac
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hloc.explore.pool import Limits, Pool
from hloc.interrupts import ENDING
from hloc.pages.explore_page import explore_page, policy

MOST_BODY = 96 << 20
MOST_TEXT = 16 << 20               # bytes of a module's text
CLOSING_SECONDS = 1
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"}
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Guard:
    """Refuses what does not come from the page that was served. port: where the server listens."""

    def __init__(self, app: Any, token: str, port: int):
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refused := self._refusal(scope)) is not None:
            await refused(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Any) -> Response | None:
        headers = dict(scope["headers"])
        if headers.get(b"host") not in self.hosts:
            return _refused(403, "another host")
        origin = headers.get(b"origin")
        if origin is not None and origin.removeprefix(b"http://") not in self.hosts:
            return _refused(403, "another origin")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return _refused(403, "another site")
        token = scope["path"].split("/")[1] if scope["path"].count("/") >= 2 else ""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return _refused(403, "open the address that hloc explore has printed: it holds a token")
        if scope["method"] == "POST":
            if headers.get(b"content-type") != b"application/json":
                return _refused(415, "the body is not JSON")
            if int(headers.get(b"content-length", b"0") or 0) > MOST_BODY:
                return _too_large()
        return None


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status, headers=HEADERS)


def _too_large() -> Response:
    return _refused(413, f"more than {MOST_BODY >> 20} MiB; a module's text may have {MOST_TEXT >> 20} MiB")


class Answers(Response):
    """Lines as they come; where the browser closes the connection, the work for them ends."""

    def __init__(self, pool: Pool, question: dict[str, Any]):
        super().__init__(media_type="application/x-ndjson", headers=HEADERS)
        self.pool, self.question = pool, question
        del self.headers["content-length"]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._lines(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def _lines(self, send: Send) -> None:
        lines = self.pool.ask(self.question)
        try:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            await lines.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, keys: dict[str, type]) -> dict[str, Any] | Response:
    """The question in a request, or why it is none."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MOST_BODY:
            return _too_large()
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return _refused(400, "the body is not JSON")
    if not isinstance(found, dict) or any(not isinstance(found.get(key), kind) for key, kind in keys.items()):
        return _refused(400, "the body must have " + ", ".join(keys))
    if len(found["text"]) > MOST_TEXT:
        return _refused(413, f"the text has more than {MOST_TEXT >> 20} MiB")
    if len(found["panes"]) > 100 or not all(isinstance(pane, dict) for pane in found["panes"]):
        return _refused(400, "panes are at most 100 objects")
    return found


QUESTION: dict[str, type] = {"text": str, "name": str, "panes": list}


def application(token: str, port: int, state: dict[str, Any], facts: dict[str, Any], limits: Limits) -> Guard:
    """The whole server. state: the text that the page opens with, its name, panes; facts: what it offers
    (menu.py)."""
    pool = Pool(limits)

    async def show(request: Request) -> Response:
        headers = HEADERS | {"Content-Security-Policy": policy(served=True)}
        return HTMLResponse(explore_page(state, facts, served=True), headers=headers)

    async def panes(request: Request) -> Response:
        question = await _body(request, QUESTION)
        return question if isinstance(question, Response) else Answers(pool, {key: question[key] for key in QUESTION})

    async def share(request: Request) -> Response:
        shared = await _body(request, QUESTION | {"answers": list})
        if isinstance(shared, Response):
            return shared
        kept = {key: shared[key] for key in (*QUESTION, "answers")}
        return HTMLResponse(explore_page(kept, facts, served=False), headers=HEADERS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(_warmed(pool))
        yield
        warming.cancel()
        pool.close()

    routes = [Route("/{token}/", show), Route("/{token}/panes", panes, methods=["POST"]),
              Route("/{token}/share", share, methods=["POST"])]
    return Guard(Starlette(routes=routes, lifespan=lifespan), token, port)


async def _warmed(pool: Pool) -> None:
    """The worker starts while the browser reads the page; where it cannot, the first question says so."""
    with suppress(OSError):
        await pool.start()


def serve(listening: socket.socket, token: str, state: dict[str, Any], facts: dict[str, Any], limits: Limits,
          opened: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `opened` is called with the address once the server answers."""
    port = listening.getsockname()[1]
    config = uvicorn.Config(application(token, port, state, facts, limits), log_level="critical", access_log=False,
                            lifespan="on", timeout_graceful_shutdown=CLOSING_SECONDS, server_header=False)
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            opened(f"http://127.0.0.1:{port}/{token}/")
        await serving

    with _ended_in_order(server):
        asyncio.run(run())


@contextmanager
def _ended_in_order(server: uvicorn.Server) -> Iterator[None]:
    """Signals that end the process let the server end first. An exception that a handler raises would be lost where it
    meets a task of the event loop; uvicorn itself looks after SIGINT and SIGTERM alone, and only while it serves."""
    received = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
