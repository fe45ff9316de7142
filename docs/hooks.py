"""mkdocs hook: adds files outside docs/ to the site and keeps the repository's relative links working there."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
MOUNTED = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "training/README.md", "bench/README.md"),
    *("bench/results/*.md", "bench/results/*.png", "examples/*.yaml"),
)
"""Repository paths that the site serves under the same path."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the mounted files."""
    for pattern in MOUNTED:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links from repository paths to site paths; a link to a source file becomes its label."""
    site_path = page.file.src_uri
    in_docs = not page.file.generated_by
    folder = posixpath.dirname(f"docs/{site_path}" if in_docs else site_path)

    def rewrite(link: re.Match[str]) -> str:
        image, label, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        served = path.removeprefix("docs/")
        if files.get_file_from_path(served) is not None:
            relative = posixpath.relpath(served, posixpath.dirname(site_path) or ".")
            return f"{image}[{label}]({relative}{anchor})"
        return label if (ROOT / path).exists() else link[0]

    return _LINK.sub(rewrite, markdown)
