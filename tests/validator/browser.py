"""A headless Chromium by WebDriver, in the standard library alone: what a page logs, requests and looks like."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
AVAILABLE = shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    """One Chromium with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        """Remember where the profile lies."""
        self.profile = profile

    def __enter__(self) -> "Browser":
        """Start the driver and the browser."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()
        options = {
            "binary": shutil.which("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={self.profile}", "about:blank"],
            "perfLoggingPrefs": {"enableNetwork": True},
        }
        wanted = {
            "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
        }
        self.session = self._call("POST", "/session", {"capabilities": wanted})["sessionId"]
        self._call("POST", f"/session/{self.session}/url", {"url": "about:blank"})
        self.requests()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """End both."""
        if hasattr(self, "session"):
            self._call("DELETE", f"/session/{self.session}")
        self.driver.terminate()
        self.driver.wait(timeout=20)

    def _wait(self) -> None:
        for _ in range(100):
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except urllib.error.URLError:
                time.sleep(0.1)
        raise AssertionError("chromedriver did not start")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def devtools(self, command: str, **params: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self._call("POST", f"/session/{self.session}/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, page: Path, *, width: int, dark: bool = False, media: str = "screen") -> None:
        """Open a file in a window of so many pixels."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        self._call("POST", f"/session/{self.session}/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        """Run a script in the page and give what it returns."""
        return self._call("POST", f"/session/{self.session}/execute/sync", {"script": script, "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Give what was logged since the last look: ``browser`` or ``performance``."""
        entries: list[dict[str, Any]] = self._call("POST", f"/session/{self.session}/se/log", {"type": kind})
        return entries

    def requests(self) -> list[str]:
        """Give the addresses that were asked for since the last look."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [item for item in messages if item["method"] == "Network.requestWillBeSent"]
        return [item["params"]["request"]["url"] for item in sent]

    def screenshot(self, target: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        target.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, target: Path) -> None:
        """Print the page."""
        target.write_bytes(base64.b64decode(self.devtools("Page.printToPDF", printBackground=True)["data"]))
