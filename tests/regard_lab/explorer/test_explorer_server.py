"""The local page: only this machine's browser, only its own address, and nobody can keep others waiting."""

import http.client
import itertools
import json
import random
import socket
import threading
import time

import pytest

from regard.errors import ArgumentError
from regard_lab.cli.view import open_run
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.seeing.explorer.server import LARGEST_BODY, ExplorerServer

from .making import SOURCE, TOKENISER, language_model, translation, translator

ENOUGH = 2.5  # seconds in which others are served while a slow sentence is read
OTHERS_ANSWERED = threading.Event()  # then the slow sentence may end


def read(text):
    if text == "refused":
        raise ArgumentError("this sentence is refused")
    if text == "broken":
        raise IndexError("an index")
    if text == "slow":
        OTHERS_ANSWERED.wait(ENOUGH + 0.5)
    return translation()


@pytest.fixture(scope="module")
def server():
    with ExplorerServer(
        translation(), read, text="The animal.", label="Sentence"
    ).start() as running:
        yield running


def ask(server, method="GET", path=None, body=None, headers=None, host=None):
    """Status, headers and body of one request, whose headers may be anything."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host=True)
        host_header = {"Host": f"127.0.0.1:{server.server_port}" if host is None else host}
        for name, value in {**host_header, **(headers or {})}.items():
            connection.putheader(name, value)
        connection.endheaders()
        if body is not None:
            connection.send(body)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def post(server, content, **changes):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | changes.pop(
        "headers", {}
    )
    return ask(
        server, "POST", changes.pop("path", f"/{server.token}/read"), body, headers, **changes
    )


def sent(server, data):
    """The first line that the server answers to raw bytes, or b"" if it ends the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(65536).split(b"\r\n")[0]
        except OSError:
            return b""


def assert_serves(server):
    start = time.perf_counter()
    assert ask(server)[0] == 200
    assert time.perf_counter() - start < ENOUGH


def test_the_page_is_served_at_its_address_alone(server):
    status, headers, body = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'id="regard-explorer"' in body
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    assert ask(server, "HEAD")[2] == b""


def test_a_sentence_that_cannot_be_read_is_explained(server):
    for text, sentence in (("refused", "refused"), ("broken", "an index")):
        status, _, body = post(server, {"text": text})
        assert (status, sentence in json.loads(body)["error"]) == (422, True)


def test_another_host_two_hosts_or_none_are_refused(server):
    mine = f"127.0.0.1:{server.server_port}"
    wrong = (
        "",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost:80",
        "[::1]",
        f"{mine}.evil.example",
        "\xff",
    )
    for host in wrong:
        assert ask(server, host=host)[0] == 421, host
        assert post(server, {"text": "a"}, host=host)[0] == 421, host
    host_header = f"Host: {mine}\r\n"
    for hosts in ("", host_header + "Host: evil.example\r\n", host_header + host_header):
        assert b" 421 " in sent(server, f"GET /{server.token}/ HTTP/1.1\r\n{hosts}\r\n".encode())


PATHS = (
    "/",
    "",
    "//",
    "/{token}",
    "/{token}/../",
    "/{token}//",
    "/{token}/..%2f",
    "/{token}/%2e%2e/%2e%2e/etc/passwd",
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/%252e%252e%252fetc%252fpasswd",
    "/..%c0%af..%c0%afetc/passwd",
    "/....//....//etc/passwd",
    "/..\\..\\windows\\win.ini",
    "/{token}/read",
    "/{token}/?x=1",
    "/{token}/%00",
    "file:///etc/passwd",
    "http://127.0.0.1/{token}/",
    "/.git/config",
    "/{token}/explorer.js",
    "/x/{token}/",
    "/{token}/%ff",
    "*",
)


def test_no_other_path_leads_anywhere(server):
    for path in (path.format(token=server.token) or "/" for path in PATHS):
        status, _, body = ask(server, path=path)
        assert (status, b"root:" in body, server.token.encode() in body) == (404, False, False), (
            path
        )
        assert (
            path == f"/{server.token}/read" or post(server, {"text": "a"}, path=path)[0] == 404
        ), path


def test_a_page_that_needs_no_server_has_nothing_to_ask():
    with ExplorerServer(translation()).start() as running:
        assert b'"live":null' in running.page
        assert post(running, {"text": "a"})[0] == 404


def test_another_page_may_not_ask(server):
    for name, value, status in (
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("Content-Type", "text/plain", 415),
    ):
        assert post(server, {"text": "a"}, headers={name: value})[0] == status
    assert "Access-Control-Allow-Origin" not in ask(server)[1]


BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"text": 1}',
    b'{"text": ""}',
    b'{"text": "  "}',
    b'{"text": "\\ud800"}',
    b"\xff\xfe",
    b"[" * 60_000,
    json.dumps({"text": "a" * 4001}).encode(),
    b'{"other": "a"}',
    b"NaN",
    b"1" * 6000,
)


def test_a_body_that_is_no_sentence_is_explained(server):
    for body in BODIES:
        status, _, answer = post(server, body)
        assert (status, "4000 characters" in json.loads(answer)["error"]) == (400, True), body
    for text in ("", " \u00a0\n"):
        blank = json.loads(post(server, {"text": text})[2])["error"]
        assert blank == "The sentence is empty; write one of 1 to 4000 characters."


def test_a_body_of_a_gigabyte_is_refused_before_it_is_read(server):
    start = time.perf_counter()
    none = ("-1", "x", "", "1e3", "\u0661".encode("utf-8").decode("latin-1"))
    assert (
        ask(server, "POST", f"/{server.token}/read", headers={"Content-Type": "application/json"})[
            0
        ]
        == 411
    )
    for name, value, status in (
        *(("Content-Length", str(length), 413) for length in (10**9, LARGEST_BODY + 1, "9" * 400)),
        *(("Content-Length", length, 411) for length in none),
        ("Transfer-Encoding", "chunked", 411),
    ):
        headers = {"Content-Type": "application/json", "Content-Length": "2", name: value}
        assert ask(server, "POST", f"/{server.token}/read", headers=headers)[0] == status
    assert time.perf_counter() - start < 10


def test_unknown_methods_are_refused(server):
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"):
        assert ask(server, method)[0] == 405


def test_two_hundred_idle_connections_keep_nobody_waiting(server):
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(200)]
    try:
        for number, connection in enumerate(idle):
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\nHost:")  # and no more
        for _ in range(3):
            assert_serves(server)
    finally:
        for connection in idle:
            connection.close()


def test_a_slow_reader_and_a_slow_sentence_keep_nobody_waiting(server):
    slow = socket.create_connection(("127.0.0.1", server.server_port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    slow.sendall(
        f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    )
    thinking = threading.Thread(target=post, args=(server, {"text": "slow"}))
    thinking.start()
    try:
        time.sleep(0.2)
        assert_serves(server)
        assert thinking.is_alive()
    finally:
        OTHERS_ANSWERED.set()
        slow.close()
        thinking.join()


def fuzzed(generator, server):
    """A request that is nearly right: some bytes changed, removed, doubled, or all of it random."""
    body = json.dumps({"text": "refused"})
    first_lines = f"HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    requests = (
        f"GET /{server.token}/ {first_lines}\r\n",
        f"POST /{server.token}/read {first_lines}{about}{body}",
    )
    data = bytearray(
        generator.choice(
            [
                *map(str.encode, requests),
                generator.randbytes(generator.randrange(60, 400)) + b"\r\n\r\n",
            ]
        )
    )
    for _ in range(generator.randrange(6)):
        offset = generator.randrange(len(data))
        match generator.randrange(4):
            case 0:
                data[offset] = generator.randrange(256)
            case 1:
                del data[offset : offset + generator.randrange(1, 9)]
            case 2:
                data[offset:offset] = data[offset : offset + generator.randrange(1, 40)]
            case 3:
                data[offset:offset] = generator.choice(
                    [b"\r\n", b"\0", b" ", b"HTTP/9.9", b"\xff" * 30, b"A" * 70_000, b": "]
                )
    return bytes(data)


@pytest.mark.parametrize("count", [300, pytest.param(50_000, marks=pytest.mark.slow)])
def test_fuzzed_requests_are_refused_or_explained(server, count):
    generator = random.Random(0)
    for _ in range(count):
        data = fuzzed(generator, server)
        first = sent(server, data)
        assert not first or first.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), (first, data[:200])
    assert_serves(server)


@pytest.fixture(scope="module", params=["translator", "language model", "bert", "t5"])
def asked(request, tmp_path_factory):
    """A server of a run, or a folder of Hugging Face, that reads and walks through every sentence."""
    run = tmp_path_factory.mktemp("runs") / "run"
    kind = request.param
    if kind in ("translator", "language model"):
        # one layer suffices for questions of any shape
        model = translator(encoder_layers=1) if kind == "translator" else language_model()
        model.save(run, {TOKENISER_FILE: TOKENISER.to_json()})
    else:
        pytest.importorskip(
            "transformers",
            reason="transformers is not installed: pip install 'regard[transformers]'",
        )
        from . import pretrained

        model = pretrained.bert("BertForMaskedLM")
        if kind == "t5":
            model = pretrained.t5(decoder_layers=1, layers=1)
        model.save_pretrained(run)
        (pretrained.PAIRS if kind == "t5" else pretrained.PIECES).save_pretrained(run)
    opened = open_run(run)
    with (
        pytest.MonkeyPatch.context() as patched,
        ExplorerServer(
            translation(), lambda text: opened.read(text, None), walk=opened.walk
        ).start() as running,
    ):
        if kind == "t5":
            patched.setattr("regard_lab.seeing.transformers.texts.MOST_WRITTEN", 2)
        yield running


HOSTILE = (
    "",
    " ",
    "a",
    "</script><script>",
    "\0",
    "\ud800",
    "\u202e",
    "\n\t",
    "__proto__",
    "../../etc",
    "a b",
    "\U0001f600",
    "x" * 70,
    "猫",
    "e\u0301",
    "<begin>",
    "<end>",
    "</s>",
    "[MASK]",
    "\x1b[2J",
    None,
    1,
    1.5,
    float("nan"),
    10**300,
    True,
    [],
    {},
)


def test_a_question_of_any_shape_is_answered_or_explained(asked):
    answered = 0
    bodies = {"text": SOURCE, "more": 1}, *({"text": text} for text in HOSTILE), *HOSTILE
    for name, body in itertools.product(("read", "walk"), bodies):
        status, headers, answer = post(asked, body, path=f"/{asked.token}/{name}")
        assert status in (200, 400, 422), (body, answer)
        assert headers["Content-Type"] == "application/json"
        record = json.loads(answer, parse_constant=pytest.fail)  # NaN is no JSON
        answered += status == 200
        if status != 200:  # a sentence of ours, and not the text of an error inside the model
            assert 15 < len(record["error"]) < 3000
            assert "the model cannot read this" not in record["error"], (
                name,
                body,
                record["error"],
            )
            assert "Traceback" not in record["error"]
    assert answered > 10
    assert_serves(asked)
