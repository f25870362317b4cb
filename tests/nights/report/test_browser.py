"""Pages in a real browser, where one is on this machine: nothing runs, nothing scrolls sideways, at the width of a phone and of a desk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nights.report.test_page import html

pytestmark = pytest.mark.slow
NAMES = ("run hostile", "run failed", "run small", "night hostile", "night evaluation", "night space", "index whole", "index hostile")
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body><script>
window.fired = 0;
function look(frame, id) {
  const page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll('body *')].filter(one => !one.closest('svg, .said, .hide, .skip, thead')
    && one.getBoundingClientRect().right > root.clientWidth + 1).map(one => one.tagName + '.' + one.className);
  const style = frame.contentWindow.getComputedStyle(page.querySelector('.tile, .card'));
  document.getElementById(id).textContent = JSON.stringify({scroll: root.scrollWidth, client: root.clientWidth, wide: wide.slice(0, 5),
    border: style.borderTopWidth, scripts: page.scripts.length, fired: window.fired});
}
</script>
"""


def chromium() -> str | None:
    """`CHROMIUM`, or what is on the PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nightbatch-pages-") as name:
        yield Path(name)


def looked_at(folder: Path, name: str, width: int) -> dict[str, object]:
    import json

    found = chromium()
    if found is None:
        pytest.skip("no Chromium is on this machine (or named by CHROMIUM)")
    page = folder / f"{name.replace(' ', '-')}.html"
    page.write_text(html(name), encoding="utf-8")
    frame = folder / f"{page.stem}-{width}.html"
    frame.write_text(
        f"{FRAME}<iframe src='{page.name}' width='{width}' height='900' onload=\"look(this, 'told')\"></iframe><pre id='told'></pre>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            found, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--virtual-time-budget=4000",
            f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom", frame.as_uri(),
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    told = re.search(r'<pre id="told">(\{.*?\})</pre>', done.stdout)
    assert told is not None, done.stderr[-2000:]
    seen: dict[str, object] = json.loads(told[1])
    return seen


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_styled_runs_nothing_and_does_not_scroll_sideways(folder: Path, name: str, width: int) -> None:
    seen = looked_at(folder, name, width)
    assert seen["border"] == "1px"  # the policy lets its own style pass
    assert (seen["scripts"], seen["fired"]) == (0, 0)
    assert seen["scroll"] == seen["client"], seen
    assert seen["wide"] == []


def test_the_same_look_finds_a_page_that_is_too_wide(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = html("run small")
    table = f"<table><tr>{'<td>12345678</td>' * 40}</tr></table>"
    monkeypatch.setitem(looked_at.__globals__, "html", lambda name: whole.replace("<h1>", f"{table}<h1>"))
    assert looked_at(folder, "run wide", 360)["wide"]
