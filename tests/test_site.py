"""The pages as a site. mkdocs itself refuses dead links. Skipped where `make site` has not installed it."""

import os
import re
import subprocess
import sys

import pytest

from browser import open_page
from running import PROJECT

pytestmark = pytest.mark.slow


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


def test_every_page_of_docs_is_on_the_site_and_loads_nothing_from_elsewhere(site):
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {f"{path.stem}.html" for path in PROJECT.glob("docs/*.md")} | {"index.html"} <= pages.keys()
    for name, text in pages.items():
        loaded = re.findall(r"<(?!a\b)\w+ [^>]*?(?:src|href)=[\"']?([^\"'\s>]+)", text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(\w+:)?//", address)], name


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_page_fits_the_window(site, tmp_path, width, dark):
    seen = open_page(site / "index.html", tmp_path / "seen.png", width, dark)
    assert seen["inner"] == width
    assert seen["width"] <= width
    assert (seen["background"] == "rgb(255, 255, 255)") != dark
    assert all(natural > 0 and shown < width for natural, shown in seen["images"])
    assert seen["console"] == []
