"""Opens a page in a headless Chromium, acts on it by a script, and returns what the script found."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

#: Skips tests that need a browser where there is none.
needs_browser = pytest.mark.skipif(_CHROMIUM is None, reason="chromium is not installed")

#: In virtual time Chromium draws few frames: what waits for the next one does not wait for it.
_FRAMES = "<script>window.requestAnimationFrame = draw => setTimeout(draw, 16);</script>"
_RUN = """
<script>
addEventListener("load", async () => {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  const errors = [];
  addEventListener("error", event => errors.push(event.message));
  const isShown = element => { const box = element.getBoundingClientRect();
    return box.height > 0 && box.top < innerHeight && box.bottom > 0 && box.left < innerWidth; };
  const shownText = () => [...document.querySelectorAll("h3, dd, dt, li, p, text, td, .big, .dim")].filter(isShown)
    .map(element => element.textContent).join("\\n");
  let result = null;
  await wait(500);  // charts are drawn after the page
  try { result = await (async () => { %s })(); } catch (error) { errors.push(String(error)); }
  const report = document.createElement("pre");
  report.id = "browser-result";
  report.textContent = btoa(unescape(encodeURIComponent(JSON.stringify({result, errors}))));
  document.body.append(report);
});
</script>
"""


def _read_result(words, seconds=120):
    """Start Chromium and return what the page's script reported, in base64.

    Chromium is killed once the result has been read: it sometimes hangs at exit, with the page
    written out.
    """
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as browser:
        end = threading.Timer(seconds, os.killpg, (browser.pid, signal.SIGKILL))
        end.start()
        try:
            for line in browser.stdout:
                if found := re.search(rb'id="browser-result">([^<]+)<', line):
                    return found.group(1)
        finally:
            end.cancel()
            os.killpg(browser.pid, signal.SIGKILL)
    raise AssertionError(f"the script did not finish within {seconds} s")


def run_in_browser(page, script, folder, width=1280, height=900):
    """Open a page (HTML text), run an async script body in it, and return what it returns.

    The script can call `wait(ms)`, `isShown(element)` and `shownText()`, the text in the viewport.
    Errors of the page's own scripts fail the test.
    """
    file = folder / "page_under_test.html"
    page = page.replace("<head>", f"<head>{_FRAMES}", 1)
    file.write_text(page.replace("</body>", _RUN % script + "</body>"), "utf-8")
    words = [
        _CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        file.as_uri(),
    ]
    outcome = json.loads(base64.b64decode(_read_result(words)))
    assert not outcome["errors"], outcome["errors"]
    return outcome["result"]
