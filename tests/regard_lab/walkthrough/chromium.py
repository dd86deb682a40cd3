"""A headless Chromium, spoken to over two pipes: pages are tried where a browser is, and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
# Becomes the browser, which reads from its file 3 and writes to its file 4.
START = """
import fcntl, os, sys
theirs = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, file in enumerate(theirs, start=3):
    os.dup2(file, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The browser of this machine, if there is one that can be driven here."""
    return next(filter(None, map(shutil.which, NAMES)), None) if sys.platform == "linux" else None


class Page:
    """One tab; what it asked of a network and what it complained about is kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._waiting, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page, or what it promises."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, "ArrowRight": 39}[key]
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has gone"
            self._waiting += more
        raw, _, self._waiting = self._waiting.partition(b"\0")
        message = json.loads(raw)
        method, told = message.get("method", ""), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(told))
        return message


@contextmanager
def browser(path: str, folder: Path) -> Generator[Page]:
    """A tab of a new browser that keeps nothing."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(theirs_in), str(theirs_out), path, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)
        process.terminate()
        process.wait(30)
        os.close(ours_in)
