"""Serves one page of the explorer to this machine: on loopback, under a random path, and only to requests for it.

A request for another host, another path or with a large body is refused with a sentence. No file is ever read for a
request. Each connection has a thread of its own and a deadline; the model reads one sentence at a time.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from regard.errors import ArgumentError, RegardError
from regard_lab.seeing.explorer.page import to_answer, to_page, walk_to_answer
from regard_lab.seeing.explorer.records import ShownWalk
from regard_lab.seeing.explorer.sources import Exploration

LOOPBACK = "127.0.0.1"
LARGEST_BODY = 64 * 1024  # bytes
MOST_CHARACTERS = 4000  # of a sentence
IDLE = 10.0  # seconds that a connection may wait for its next byte
DEADLINE = 30.0  # seconds in which a request must have arrived
MOST_CONNECTIONS = 400
Read = Callable[[str], Exploration]
Ask = Callable[[str], dict[str, Any]]  # from a sentence to the JSON values of its result


class ExplorerServer(ThreadingHTTPServer):
    """The local page of one exploration.

    Args:
        read: reads another sentence, for the form of the page; None for a page without a form.
        walk: computes the steps of a sentence, for the view Walk-through; None for a page without them.
        text, label: the sentence that the form contains at first, and what it asks for.
        port: 0 for one that is free.

    Raises:
        ArgumentError: the port is taken, or may not be used.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        exploration: Exploration,
        read: Read | None = None,
        *,
        walk: Callable[[str], ShownWalk] | None = None,
        text: str = "",
        label: str = "",
        port: int = 0,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self.asks: dict[str, Ask] = {}
        live: dict[str, Any] = {"text": text[:MOST_CHARACTERS], "label": label}
        if walk is not None:
            live["walk"] = True
            self.asks["walk"] = lambda text: walk_to_answer(walk(text))
        if read is not None:
            self.asks["read"] = lambda text: to_answer(read(text), live={**live, "text": text})
        self.page = to_page(exploration, live=live if self.asks else None).html.encode()
        self.reading = threading.Lock()
        self.thread: threading.Thread | None = None
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ArgumentError(
                f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}; give another port, or 0 for "
                f"one that is free"
            ) from None
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def url(self) -> str:
        """The address of the page, with the random path that a request must have."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def start(self) -> ExplorerServer:
        """Serve in a separate thread, as a notebook needs it, until `close`; returns this server."""
        if self.thread is None:
            self.thread = threading.Thread(
                target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
            )
            self.thread.start()
        return self

    def server_close(self) -> None:
        """Stop what `start` began and free the port; a `with` block does this when it ends."""
        if self.thread is not None:
            self.shutdown()
            self.thread.join()
            self.thread = None
        super().server_close()

    def close(self) -> None:
        """Stop serving and free the port."""
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)  # too many connections: this one is closed
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ends early is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "regard"
    sys_version = ""
    timeout = IDLE

    @property
    def explorer(self) -> ExplorerServer:
        assert isinstance(self.server, ExplorerServer)
        return self.server

    def handle_one_request(self) -> None:
        self.close_connection = True  # one request a connection: nobody waits for an idle one
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if len(self.raw_requestline) > 65536:
                self.requestline = self.request_version = self.command = ""
                self._refuse(
                    HTTPStatus.REQUEST_URI_TOO_LONG, "the address is longer than 65,536 bytes"
                )
            elif self.raw_requestline and self.parse_request():
                self._handle()
        except (TimeoutError, OSError):
            pass  # the other side has gone, or sends nothing
        finally:
            self.close_connection = True

    def _handle(self) -> None:
        if self.headers.get_all("Host") not in [[host] for host in self.explorer.hosts]:
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST, "this page is only served as localhost or 127.0.0.1"
            )
            return
        if self.command not in ("GET", "HEAD", "POST"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "the method must be GET, HEAD or POST")
            return

        if self.command == "POST":
            ask = self._asked()
            if ask is not None:
                self._answer(ask)
                return
        elif self._is_at(""):
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.explorer.page)
            return
        self._refuse(
            HTTPStatus.NOT_FOUND,
            "there is nothing here; open the address that regard view printed",
        )

    def _is_at(self, name: str) -> bool:
        """Whether the request is for a name below the random path; the time that this takes reveals nothing of it."""
        expected = f"/{self.explorer.token}/{name}"
        return hmac.compare_digest(self.path.encode("latin-1", "replace"), expected.encode())

    def _asked(self) -> Ask | None:
        """What the page asks for by its path; every path is compared, so that times reveal nothing."""
        asked = None
        for name, ask in self.explorer.asks.items():
            if self._is_at(name):
                asked = ask
        return asked

    def _answer(self, ask: Ask) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.explorer.hosts}:
            self._refuse(
                HTTPStatus.FORBIDDEN, "another page asked; only the page of regard view may"
            )
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in self.headers:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the request must have a Content-Length")
            return
        if len(length) > 9 or int(length) > LARGEST_BODY:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {length[:20]} bytes; at most {LARGEST_BODY}",
            )
            return
        text, wrong = _text(self._body(int(length)))
        if wrong:
            self._refuse(HTTPStatus.BAD_REQUEST, wrong)
            return
        try:
            with self.explorer.reading:
                answer = ask(text)
        except Exception as error:  # the page explains it; the command goes on serving
            sentence = str(error)
            if not isinstance(error, RegardError):
                sentence = f"the model cannot read this: {type(error).__name__}: {error}"
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, sentence)
            return
        self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())

    def _body(self, length: int) -> bytes:
        parts = []
        left = length
        end = time.monotonic() + DEADLINE
        while left and time.monotonic() < end:
            part = self.rfile.read1(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses; a request that cannot be read is the client's fault."""
        code = HTTPStatus.BAD_REQUEST if code >= 500 else code
        self._refuse(HTTPStatus(code), message or "the request cannot be read")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, "application/json", json.dumps({"error": sentence}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.request_version = "HTTP/1.1"  # status and headers are always sent
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if getattr(self, "command", "") != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their paths contain the token."""


def _text(body: bytes) -> tuple[str, str]:
    """The text of a body, and a sentence about what is wrong with it."""
    needs = f"write one of 1 to {MOST_CHARACTERS} characters"
    try:
        text = json.loads(body)["text"]
        text.encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "", f"The request has no sentence in UTF-8; {needs}."
    if not text.strip():
        return "", f"The sentence is empty; {needs}."
    if len(text) > MOST_CHARACTERS:
        return "", f"The sentence has {len(text)} characters; {needs}."
    return text, ""
