"""The pages as a site: every link works, nothing comes from elsewhere, and the search works without a server."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from browser import open_page
from running import PROJECT

pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """Collects the ids of a page, its links, and the addresses of what it loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        target = attributes.get("href") or attributes.get("src")
        if target:
            (self.links if tag == "a" else self.loaded).append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material"):
        pytest.importorskip(package, reason="make site installs what the site needs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    process = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Links(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_docs_is_on_the_site(site, pages):
    pages_of_docs = {f"{path.stem}.html" for path in PROJECT.glob("docs/*.md")}
    assert pages_of_docs | {"index.html"} <= {path.relative_to(site).as_posix() for path in pages}


def test_every_link_leads_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for target in page.links + page.loaded:
            address = urlsplit(target)
            linked = (path.parent / unquote(address.path)).resolve() if address.path else path
            missing = address.fragment and linked in pages and unquote(address.fragment) not in pages[linked].ids
            if not address.scheme and (missing or not linked.exists()):
                broken.append(f"{path.name}: {target}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(pages):
    assert not [target for page in pages.values() for target in page.loaded if urlsplit(target).netloc]


def test_the_search_works_in_pages_opened_from_files(site, tmp_path):
    seen = open_page(site / "running.html", tmp_path / "seen.png", "--search", "bootstrap interval")
    assert "Reports" in seen["found"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_fits_the_window(site, tmp_path, width, dark):
    seen = open_page(site / "index.html", tmp_path / "seen.png", "--width", width, *(["--dark"] if dark else []))
    assert seen["inner"] == width
    assert seen["width"] <= width
    assert (seen["background"] == "rgb(255, 255, 255)") != dark
    assert all(natural > 0 and shown < width for natural, shown in seen["images"])
    assert seen["console"] == []
