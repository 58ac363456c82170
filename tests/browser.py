"""Open a page in a real browser without a display, describe it and save a screenshot.

    python tests/browser.py PAGE PICTURE --width 390
    python tests/browser.py PAGE PICTURE --width 1280 --dark
    python tests/browser.py PAGE PICTURE --search words    # the site's search

The browser is Chromium, from the package PySide6-WebEngine. The description is printed as JSON. Exit code 3 means that
the package or a system library is missing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

MISSING = 3
SECONDS = 60  # time limit for loading the page
FLAGS = (
    "--no-sandbox --disable-gpu --disable-dev-shm-usage"  # a container has no sandbox, no GPU and little shared memory
)
DARK = "--blink-settings=preferredColorScheme=0"
# Browsers start no worker for a page that is opened from a file. Only this one does.
NO_WORKER = 'window.Worker = class { constructor() { throw new DOMException("a file", "SecurityError") } }'
FOUND = """[...document.querySelectorAll(".md-search-result__link h1, .md-search-result__link h2")]"""
READY = f"""(() => document.readyState === "complete" && [...document.images].every(image => image.complete)
  && [...document.querySelectorAll("video")].every(video => video.readyState >= 1 || video.error)
  && (!location.search || {FOUND}.length > 0))()"""
DESCRIBE = """JSON.stringify({
  found: FOUND.map(title => title.textContent),
  title: document.title,
  inner: innerWidth,
  width: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  background: getComputedStyle(document.body).backgroundColor,
  images: [...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width]),
  tables: [...document.querySelectorAll("table")].map(table => {
    const box = table.parentElement, edge = box.getBoundingClientRect().right;
    const cells = [...table.rows].map(row => row.cells[row.cells.length - 1]);
    const hidden = () => Math.max(...cells.map(cell => cell.getBoundingClientRect().right)) - edge;
    const before = hidden();
    box.scrollLeft = 1e6;
    const after = hidden();
    box.scrollLeft = 0;
    return [before, after];
  }),
  videos: [...document.querySelectorAll("video")].map(video => [video.videoWidth, video.error && video.error.message]),
  scripts: document.scripts.length,
  fetched: performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:")),
  text: Object.fromEntries([...document.querySelectorAll("section")].map(section => [section.id, section.innerText])),
})""".replace("FOUND", FOUND)


def look(page: Path, picture: Path, width: int, words: str) -> dict[str, Any]:
    """Open a page in a window of the given width, wait until it is loaded, and save a picture of the whole page.

    If words are given, the site's search looks for them, and its results are waited for.

    Returns:
        What the JavaScript in DESCRIBE reports, and the console messages; empty if the page did not load in time.
    """
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineScript, QWebEngineSettings
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    class Page(QWebEnginePage):
        messages: ClassVar[list[str]] = []

        def javaScriptConsoleMessage(self, level, message, line, source):
            self.messages.append(message)

    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    shown = Page(view)
    shown.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)  # as on a phone
    script = QWebEngineScript()
    script.setInjectionPoint(QWebEngineScript.InjectionPoint.DocumentCreation)
    script.setWorldId(QWebEngineScript.ScriptWorldId.MainWorld)
    script.setSourceCode(NO_WORKER)
    shown.scripts().insert(script)
    view.setPage(shown)
    view.resize(width, 900)
    description: dict[str, Any] = {}

    def describe(answer: str) -> None:
        description.update(json.loads(answer), console=list(Page.messages))
        view.resize(width, min(description["height"], 12_000))
        QTimer.singleShot(1000, save)  # the page is drawn again first

    def save() -> None:
        view.grab().save(str(picture))
        application.quit()

    def ready(answer: bool) -> None:
        if answer:
            shown.runJavaScript(DESCRIBE, describe)
        else:
            QTimer.singleShot(100, ask)

    def ask() -> None:
        shown.runJavaScript(READY, ready)

    view.loadFinished.connect(ask)
    address = QUrl.fromLocalFile(str(page.resolve()))
    if words:
        address.setQuery(f"q={words}")
    view.setUrl(address)
    view.show()
    QTimer.singleShot(SECONDS * 1000, application.quit)
    application.exec()
    return description


def open_page(page: Path, picture: Path, *options: object) -> dict[str, Any]:
    """Open a page in a browser in a process of its own, and return its description; for tests."""
    command = [sys.executable, __file__, page, picture, *options]
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    if process.returncode == MISSING or "no Qt platform plugin could be initialized" in process.stderr:
        pytest.skip(f"no browser starts here: {process.stderr.strip()}")
    assert process.returncode == 0, process.stderr
    description: dict[str, Any] = json.loads(process.stdout)
    return description


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--search", default="", metavar="WORDS")
    args = parser.parse_args()
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": f"{FLAGS} {DARK if args.dark else ''}"}
    try:
        description = look(args.page, args.picture, args.width, args.search)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    print(json.dumps(description))
    sys.stdout.flush()
    os._exit(0 if description else 1)  # a normal exit may wait for a renderer process


if __name__ == "__main__":
    main()
