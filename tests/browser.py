"""Open a page in Chromium, from the package PySide6-WebEngine, without a display; describe it and save a picture.

    python tests/browser.py PAGE PICTURE WIDTH light
    python tests/browser.py PAGE PICTURE WIDTH dark

The description is printed as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

SECONDS = 60  # time limit
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
})"""


def open_page(page: Path, picture: Path, width: int, dark: bool) -> dict[str, Any]:
    """Return the description of a page in a window of this width. The browser is a process of its own."""
    pytest.importorskip("PySide6", reason="make test-long installs the browser")
    command = [sys.executable, __file__, page, picture, str(width), "dark" if dark else "light"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
    assert process.returncode == 0, process.stderr
    description: dict[str, Any] = json.loads(process.stdout)
    return description


def main(page: str, picture: str, width: str, colours: str) -> None:
    os.environ |= {"QT_QPA_PLATFORM": "offscreen"}
    os.environ |= {"QTWEBENGINE_CHROMIUM_FLAGS": f"{FLAGS} {DARK if colours == 'dark' else ''}"}
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
    view.setPage(shown)
    shown.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)  # as on a phone
    view.resize(int(width), 900)

    def finish(description: str) -> None:
        view.grab().save(picture)
        print(json.dumps(json.loads(description) | {"console": Page.messages}), flush=True)
        os._exit(0)  # a normal exit may wait for a renderer process

    def ask() -> None:
        shown.runJavaScript(DESCRIBE, finish)

    view.loadFinished.connect(lambda: QTimer.singleShot(3000, ask))  # by then the page is drawn, and videos are read
    view.setUrl(QUrl.fromLocalFile(str(Path(page).resolve())))
    view.show()
    QTimer.singleShot(SECONDS * 1000, lambda: os._exit(1))
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
