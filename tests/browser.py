"""Open a page in a real browser without a display, describe it and save a screenshot.

    python tests/browser.py PAGE PICTURE WIDTH light
    python tests/browser.py PAGE PICTURE WIDTH dark

The browser is Chromium, from the package PySide6-WebEngine. The description is printed as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

SECONDS = 60  # time limit for loading the page
FLAGS = "--no-sandbox --disable-gpu --disable-dev-shm-usage"  # as in a container
DARK = "--blink-settings=preferredColorScheme=0"
# A table's number is the width that is hidden when its box is scrolled to the right.
DESCRIBE = """JSON.stringify({
  inner: innerWidth,
  width: document.documentElement.scrollWidth,
  figures: [...document.querySelectorAll("[role=img]")].map(box => [box.clientWidth, box.clientHeight]),
  tables: [...document.querySelectorAll("table")].map(table => {
    const box = table.parentElement, edge = box.getBoundingClientRect().right;
    box.scrollLeft = 1e6;
    const cells = [...table.rows].map(row => row.cells[row.cells.length - 1]);
    return Math.max(...cells.map(cell => cell.getBoundingClientRect().right)) - edge;
  }),
  videos: [...document.querySelectorAll("video")].map(video => [video.videoWidth, video.error && video.error.message]),
  scripts: document.scripts.length,
  fetched: performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:")),
  text: Object.fromEntries([...document.querySelectorAll("section")].map(section => [section.id, section.innerText])),
})"""


def look(page: Path, picture: str, width: int) -> dict[str, Any]:
    """Open a page in a window of the given width, wait until it is loaded, and save a picture of the window.

    Returns:
        What the JavaScript in DESCRIBE reports, and the console messages; empty if the page did not load in time.
    """
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings
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
    view.setPage(shown)
    view.resize(width, 900)
    description: dict[str, Any] = {}

    def describe(answer: str) -> None:
        description.update(json.loads(answer), console=list(Page.messages))
        view.grab().save(picture)
        application.quit()

    def ask() -> None:
        shown.runJavaScript(DESCRIBE, describe)

    view.loadFinished.connect(lambda: QTimer.singleShot(3000, ask))  # by then the page is drawn, and videos are read
    view.setUrl(QUrl.fromLocalFile(str(page.resolve())))
    view.show()
    QTimer.singleShot(SECONDS * 1000, application.quit)
    application.exec()
    return description


def open_page(page: Path, picture: Path, width: int, dark: bool) -> dict[str, Any]:
    """Open a page in a browser in a process of its own, and return its description; for tests."""
    pytest.importorskip("PySide6", reason="make test-long installs the browser")
    command = [sys.executable, __file__, page, picture, str(width), "dark" if dark else "light"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    description: dict[str, Any] = json.loads(process.stdout)
    return description


if __name__ == "__main__":
    opened, screenshot, pixels, colours = sys.argv[1:]
    os.environ |= {"QT_QPA_PLATFORM": "offscreen"}
    os.environ |= {"QTWEBENGINE_CHROMIUM_FLAGS": f"{FLAGS} {DARK if colours == 'dark' else ''}"}
    seen = look(Path(opened), screenshot, int(pixels))
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0 if seen else 1)  # a normal exit may wait for a renderer process
