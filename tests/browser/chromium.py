"""A headless Chromium over its debugging pipe: no driver, no web socket, no dependency."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Path of an installed Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page of a running browser; ``events`` are all messages it sent by itself."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, width: int, height: int = 1000, scheme: str = "light") -> None:
        """Load a file at a size and colour scheme, and wait until it has loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self, seconds: float = 30.0) -> dict[str, Any]:
        limit = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], limit - time.monotonic())
            assert ready, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser has ended"
            self._rest += got
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser(executable: str, profile: Path) -> Iterator[Tab]:
    """A tab of a fresh browser, ended afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def pipes() -> None:  # Chromium reads commands from 3 and writes answers to 4
        os.dup2(to_read, 103)
        os.dup2(from_write, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    process = subprocess.Popen(
        [executable, *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Tab(to_write, from_read)
    finally:
        process.terminate()
        process.wait(20)
        os.close(to_write)
        os.close(from_read)
