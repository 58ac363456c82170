"""A page in a real browser without a display: what is on it, and a screenshot. Chromium comes in PySide6-WebEngine.

    python tests/browser.py PAGE PICTURE --width 390
    python tests/browser.py PAGE PICTURE --width 1280 --dark

It prints JSON. Exit code 3 means that the browser does not start here, for want of the package or of a system library.
"""

import argparse
import json
import os
import sys
from pathlib import Path

MISSING = 3
SECONDS = 60  # until everything on the page has to be there
FLAGS = "--no-sandbox --disable-gpu --disable-dev-shm-usage"  # a container has neither, and little of the last
DARK = "--blink-settings=preferredColorScheme=0"
READY = """(() => document.readyState === "complete" && [...document.images].every(image => image.complete)
  && [...document.querySelectorAll("video")].every(video => video.readyState >= 1 || video.error))()"""
SEEN = """JSON.stringify({
  title: document.title,
  inner: innerWidth,
  width: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  background: getComputedStyle(document.body).backgroundColor,
  images: [...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width]),
  videos: [...document.querySelectorAll("video")].map(video => [video.videoWidth, video.error && video.error.message]),
  scripts: document.scripts.length,
  fetched: performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:")),
  text: Object.fromEntries([...document.querySelectorAll("section")].map(section => [section.id, section.innerText])),
})"""


def look(page: Path, picture: Path, width: int) -> dict:
    """Open a page in a window of some width, wait until all of it is there, and save all of it as a picture."""
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    class Page(QWebEnginePage):
        said = ()

        def javaScriptConsoleMessage(self, level, message, line, source):
            self.said = (*self.said, message)

    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    shown = Page(view)
    shown.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)  # as on a telephone
    view.setPage(shown)
    view.resize(width, 900)
    found: dict = {}

    def seen(answer: str) -> None:
        found.update(json.loads(answer), console=list(shown.said))
        view.resize(width, min(found["height"], 12_000))
        QTimer.singleShot(1000, save)  # for drawing it anew

    def save() -> None:
        view.grab().save(str(picture))
        application.quit()

    def ready(answer: bool) -> None:
        if answer:
            shown.runJavaScript(SEEN, seen)
        else:
            QTimer.singleShot(100, ask)

    def ask() -> None:
        shown.runJavaScript(READY, ready)

    view.loadFinished.connect(ask)
    view.setUrl(QUrl.fromLocalFile(str(page.resolve())))
    view.show()
    QTimer.singleShot(SECONDS * 1000, application.quit)
    application.exec()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": f"{FLAGS} {DARK if args.dark else ''}"}
    try:
        found = look(args.page, args.picture, args.width)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0 if found else 1)  # Qt's own way out of a process may wait for a renderer


if __name__ == "__main__":
    main()
