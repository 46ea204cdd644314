"""A real browser: headless Chromium, driven over its debugging protocol through two pipes; no driver has to be installed.

with Browser() as browser:
    page = browser.open("http://127.0.0.1:8080/")
    page.wait("document.querySelector('h1')")
    assert page.text("h1") == "demo"

Where there is none a test that needs it is skipped, loudly; LLMPROXY_TEST_REQUIRE with `chromium` in it makes that a failure. `all` does not:
a machine without a browser runs everything else.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.support.process import needed

NAMES = (
    "chromium", "chromium-browser", "google-chrome", "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
PATIENCE = 20.0
"""Seconds that a page has; only a failing test waits so long."""


def chromium() -> str:
    """Return where Chromium is; skips the test where there is none."""
    found = os.environ.get("LLMPROXY_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        needed("Chromium (apt-get install chromium, or LLMPROXY_TEST_CHROMIUM=PATH)", "chromium", rare=True)
    return found


CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
    "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
TEXTS = {"Enter": "\r"}

ITS_PIPES = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, each in zip((3, 4), ours):
    os.dup2(each, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads 3 and writes 4, whatever the pipes are called here."""


class Browser:
    def __init__(self) -> None:
        program = chromium()  # skips the test without one: nothing is open yet
        self._folder = tempfile.TemporaryDirectory(prefix="llmproxy-chromium-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
                   "--disable-background-networking", "--disable-features=BackForwardCache", "--disable-component-update", "--disable-extensions",
                   f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe"]  # fmt: skip
        command = [sys.executable, "-c", ITS_PIPES, str(to_browser), str(from_browser), program, *options]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._idle: list[str] = []
        """Sessions of windows that are empty again."""
        self.events: list[dict[str, Any]] = []
        """What pages told and nobody has asked for yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)  # it ends when nobody drives it any more
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._folder.cleanup()

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            found = self._receive()
            if found.get("id") == number:
                if "error" in found:
                    raise AssertionError(f"{method}: {found['error']}")
                answer: dict[str, Any] = found["result"]
                return answer
            self.events.append(found)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], 2 * PATIENCE)[0]:
                raise AssertionError("the browser says nothing any more")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise AssertionError("the browser ended")
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def open(
        self, url: str, width: int = 1400, height: int = 900, *, dark: bool = False, offline: bool = False
    ) -> Page:
        """Open a page in a window of its own, with nothing kept from others: one that was closed and emptied, or a new one."""
        page = Page(self, self._idle.pop() if self._idle else self._new_window())
        self.events = [each for each in self.events if each.get("sessionId") != page.session]
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.send(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )
        page.go(url)
        return page

    def _new_window(self) -> str:
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = str(self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable", session)
        self.send("Emulation.setFocusEmulationEnabled", session, enabled=True)  # as if its window were in front
        return session

    def empty(self, page: Page) -> None:
        """Have a window ready for the next page: to make another one takes the time of several pages."""
        page.js("(() => { try { sessionStorage.clear(); localStorage.clear(); } catch {} })()")
        page.send("Page.navigate", url="about:blank")
        page.wait("location.href === 'about:blank'")
        for what in ("Network.clearBrowserCache", "Network.clearBrowserCookies", "Log.clear"):
            page.send(what)
        self._idle.append(page.session)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def close(self) -> None:
        self.browser.empty(self)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def go(self, url: str) -> None:
        """Go to an address, and wait until its document is there."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, code: str) -> Any:
        """Evaluate an expression in the page; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def wait(self, code: str) -> Any:
        """Wait until an expression is true; returns it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := self.js(
                f"(() => {{ try {{ const found = {code}; return found instanceof Node || found; }} catch {{ return null; }} }})()"
            ):
                return found
            time.sleep(0.02)
        raise AssertionError(
            f"never true at {self.js('location.hash')}: {code}\nerrors: {self.errors()}\n{self.js('document.body.innerText')[:3000]}"
        )

    def see(self, text: str, where: str = "body") -> None:
        self.wait(
            f"[...document.querySelectorAll({json.dumps(where)})].some((each) => each.innerText.includes({json.dumps(text)}))"
        )

    def text(self, where: str = "body") -> str:
        return str(self.js(f"document.querySelector({json.dumps(where)}).innerText"))

    def click(self, where: str, text: str = "") -> None:
        chosen = f"[...document.querySelectorAll({json.dumps(where)})].find((each) => each.innerText.includes({json.dumps(text)}))"
        self.wait(chosen)
        self.js(f"{chosen}.click()")

    def press(self, key: str) -> None:
        """Press a key where the focus is, with what a browser does then: Tab moves on, Enter and space press."""
        text = {"text": TEXTS.get(key, key)} if len(key) == 1 or key in TEXTS else {}
        code = {"windowsVirtualKeyCode": CODES[key], "code": key} if key in CODES else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, **code, **more)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def told(self, method: str) -> list[dict[str, Any]]:
        self.js("1")
        return [
            each["params"]
            for each in self.browser.events
            if each.get("sessionId") == self.session and each.get("method") == method
        ]

    def errors(self) -> list[str]:
        """Return exceptions, and what the page's policy refused."""
        thrown = [
            each["exceptionDetails"].get("exception", {}).get("description", "?")
            for each in self.told("Runtime.exceptionThrown")
        ]
        logged = [each["entry"]["text"] for each in self.told("Log.entryAdded") if each["entry"]["level"] == "error"]
        return thrown + logged

    def requests(self) -> list[str]:
        return [each["request"]["url"] for each in self.told("Network.requestWillBeSent")]
