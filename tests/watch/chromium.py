# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, told by its DevTools protocol over two pipes what to do."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

TIMEOUT_S = 60
NAMES = ("chromium", "chromium-browser", "google-chrome")


def program():
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one page. To be used in a `with`."""

    def __init__(self, profile):
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()

        def redirect():  # The protocol's pipes are descriptors 3 and 4.
            os.dup2(to_child, 100)
            os.dup2(from_child, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self._process = subprocess.Popen(
            [
                program(), "--headless", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                "--remote-debugging-pipe", f"--user-data-dir={profile}",
            ],
            preexec_fn=redirect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._number, self._bytes, self._session = 0, b"", None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _message(self, deadline):
        while b"\0" not in self._bytes:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise TimeoutError(f"Chromium said nothing for {TIMEOUT_S} s")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise EOFError("Chromium has ended")
            self._bytes += read
        text, _, self._bytes = self._bytes.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"])
        return message

    def _until(self, right):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._message(deadline)
            if right(message):
                return message

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda came: came.get("id") == self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url, width, height, phone):
        """Loads a page into a window of that size; a phone honours its viewport."""
        self.requests, self.errors = [], []
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.call("Page.navigate", url=url)
        self._until(lambda came: came.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """What a JavaScript expression is in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def point_at(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path):
        """Of the whole page, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip=size | {"scale": 1}
        )
        path.write_bytes(base64.b64decode(shot["data"]))
