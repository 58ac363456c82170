"""Hooks for mkdocs: pages outside docs/ join the site, and links work there as they do between the project's files."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).parents[2]
HOME = "README.md"
OUTSIDE = (HOME, "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/notes/*.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
COMMENT = re.compile(r"<!--.*?-->\n?", re.S)


def site_path(path: str) -> str:
    """Return the path on the site of a file of the project, both relative: docs/x.md is x.md there."""
    return "index.md" if path == HOME else path.removeprefix("docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/."""
    for path in sorted(found for pattern in OUTSIDE for found in PROJECT.glob(pattern)):
        name = path.relative_to(PROJECT).as_posix()
        files.append(File.generated(config, site_path(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the marks of tables, and rewrite links. A link to a file that is not on the site becomes its text."""
    source = PurePosixPath(Path(str(page.file.abs_src_path)).relative_to(PROJECT).as_posix())

    def rewrite(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        name, _, anchor = target.partition("#")
        if "://" in target or not name:
            return match[0]
        linked = normpath(str(source.parent / name))
        if files.get_file_from_path(site_path(linked)):
            address = relpath(site_path(linked), str(PurePosixPath(page.file.src_uri).parent))
            return f"{picture}[{text}]({address}{'#' * bool(anchor)}{anchor})"
        if picture or not (PROJECT / linked).exists():
            raise PluginError(f"{source}: {target} does not exist")
        return f"`{text}`" if text == name else text

    return LINK.sub(rewrite, COMMENT.sub("", markdown))
