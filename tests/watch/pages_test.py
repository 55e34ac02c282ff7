#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The curve page of a run and the status page of a coordinator, in a browser.

  pages_test.py SHERD SCRATCH

Trains two replicas and opens both pages in headless Chromium, as wide as a desk's
screen and as a phone: nothing is cut off or too small to read, and nothing is
loaded from elsewhere. Leaves screenshots in SCRATCH. Exit status 77, a counted
skip, where there is no Chromium (Debian's package chromium).
"""

import pathlib
import shutil
import sys

from chromium import Chromium, program
from watched_job import EXIT_SKIPPED, expect, job, wait_for

WIDTHS = {"desk": 1280, "phone": 390}
HEIGHT = 844
LETTERS_PX_MIN = 12

# Of each element that has text of its own: where it is, and how large it is.
TEXTS = """
[...document.body.querySelectorAll("*")]
  .filter(e => !["SCRIPT", "STYLE"].includes(e.tagName) &&
      [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => ({text: e.textContent.trim().slice(0, 40), tick: !!e.closest(".x, .y"),
      scrolls: !!e.closest(".scroll"), size: parseFloat(getComputedStyle(e).fontSize),
      box: (b => [b.left, b.top, b.right, b.bottom])(e.getBoundingClientRect())}))
"""


def overlap(one, other):
    return (
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    )


def check_readable(browser, width):
    wide = browser.value("document.documentElement.scrollWidth")
    assert wide <= width, f"expected a page of {width} pixels, found {wide}"
    assert browser.value("window.innerWidth") == width
    texts = browser.value(TEXTS)
    assert len(texts) > 8, texts
    for text in texts:
        assert text["size"] >= LETTERS_PX_MIN, f"expected larger letters: {text}"
        inside = text["box"][0] >= 0 and text["box"][2] <= width
        assert inside or text["scrolls"], f"expected text inside the page: {text}"
    ticks = [text for text in texts if text["tick"]]
    for index, one in enumerate(ticks):
        for other in ticks[:index]:
            assert not overlap(one["box"], other["box"]), (one, other)


def check_curve(browser, width):
    plots = browser.value(
        "[...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect().toJSON())"
    )
    assert len(plots) == 3, plots
    for plot in plots:
        assert plot["width"] > 0.7 * min(width, 1000) and plot["height"] > 150, plot
    first = plots[0]
    browser.point_at(first["left"] + first["width"] / 2, first["top"] + 50)
    shown = browser.value("document.getElementById('values').textContent")
    expect(shown, "step ", "loss ", "smoothed ", "rate ", "norm ")
    rules = browser.value(
        "[...document.querySelectorAll('.rule')].map(r => getComputedStyle(r).display)"
    )
    assert rules == ["block"] * 3, rules
    lines = browser.value(
        "[...document.querySelectorAll('polyline')].map(p => p.points.numberOfItems)"
    )
    assert len(lines) == 5 and min(lines) >= 1 and lines[0] >= 10, lines


def look(browser, name, url, scratch, check=lambda *_: None):
    for place, width in WIDTHS.items():
        browser.open(url, width, HEIGHT, phone=place == "phone")
        check_readable(browser, width)
        check(browser, width)
        browser.screenshot(scratch / f"{name}-{place}.png")
        # The status page reloads itself.
        assert set(browser.requests) == {url}, browser.requests
        assert browser.errors == [], browser.errors


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if program() is None:
        print("skipped: there is no chromium")
        sys.exit(EXIT_SKIPPED)
    scratch = pathlib.Path(sys.argv[2]).resolve()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with job(sys.argv[1], scratch / "run") as address:
        page = scratch / "run" / "replica-0" / "curve.html"
        wait_for("a page after ten steps", page.exists)
        still = scratch / "curve.html"  # The run writes new ones.
        shutil.copy(page, still)
        with Chromium(scratch / "profile") as browser:
            look(browser, "curve", still.as_uri(), scratch, check_curve)
            look(browser, "status", f"http://{address}/", scratch)


if __name__ == "__main__":
    main()
