"""Interrupts `regard view` at named moments; `python interrupted_view.py RUN FOLDER` prints how each ends, as JSON.

Everything is imported once, and each moment is a fork that interrupts itself.
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import torch

import regard_lab.cli.app
from regard_lab.cli import console, main, view

PATIENCE = 60.0  # seconds


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)  # in which Python notices


def before(name):
    """When a function of `regard_lab.cli.view` is called first."""
    own = getattr(view, name)

    def interrupted(*arguments, **named):
        setattr(view, name, own)
        interrupt()
        return own(*arguments, **named)

    setattr(view, name, interrupted)


def while_an_object_is_freed():
    """Where Python prints an exception, and goes on."""
    own = view.explore_translation

    class Freed:
        def __del__(self):
            interrupt()

    def interrupted(*arguments, **named):
        Freed()
        return own(*arguments, **named)

    view.explore_translation = interrupted


def while_the_page_is_served():
    own = view.ExplorerServer.serve_forever

    def serve(server):
        interrupt()
        own(server)

    view.ExplorerServer.serve_forever = serve


def while_a_sentence_is_read():
    """A thread of the server is inside PyTorch, and comes back to Python while that ends."""
    own = view.ExplorerServer.serve_forever

    def read(body):
        threading.Timer(0.1, interrupt).start()
        while True:
            torch.ones(1000, 1000).exp_()

    def ask(server):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/{server.token}/read", json.dumps({"text": "a"}), headers)
        connection.getresponse()

    def serve(server):
        server.asks["read"] = read
        threading.Thread(target=ask, args=(server,), daemon=True).start()
        own(server)

    view.ExplorerServer.serve_forever = serve


def after(seconds):
    """So many seconds after `main` has begun to answer interruptions, wherever that is."""
    own = regard_lab.cli.quiet_interrupts

    @contextmanager
    def started():
        with own():
            threading.Timer(seconds, interrupt).start()
            yield

    regard_lab.cli.quiet_interrupts = started


MOMENTS = {
    "before the model is loaded": partial(before, "open_run"),
    "before the sentence is translated": partial(before, "explore_translation"),
    "before the page is made": partial(before, "ExplorerServer"),
    "while an object is freed": while_an_object_is_freed,
    "while the page is served": while_the_page_is_served,
    "while a sentence is read": while_a_sentence_is_read,
    **{f"after {seconds} s": partial(after, seconds) for seconds in (0.05, 0.3)},
}


def ended(moment, run, folder):
    """The exit code of a fork, and what it wrote."""
    paths = [f"{folder}/{moment}.{name}" for name in ("out", "err")]
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False, encoding="utf-8") for number in (1, 2))
        sys.argv = ["regard", "view", run, "The animal slept."]
        MOMENTS[moment]()
        main()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)  # one that has ended keeps its code
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [code, *(open(path, encoding="utf-8").read() for path in paths)]


if __name__ == "__main__":
    assert regard_lab.cli.app
    assert console  # imported before the forks
    print(json.dumps({moment: ended(moment, *sys.argv[1:3]) for moment in sys.argv[3:] or MOMENTS}))
