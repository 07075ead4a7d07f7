"""Hooks of mkdocs: links of a page to files of the repository outside docs/.

On a page of the site such a link shows the file's path, since the site does not hold the file; an image is copied into
the site: [models](../testdata/models/README.md) => models (`testdata/models/README.md`).
"""
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")
ROOT = Path(__file__).parent.parent


def on_page_markdown(markdown, *, page, config, files):
    """The page's text with its outside links replaced. Raises FileNotFoundError where a file does not exist."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match) -> str:
        image, text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return link[0]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {target}")
        if not image:
            return f"{text} (`{path}`)"
        copy = "images/" + posixpath.basename(path)
        files.append(File.generated(config, copy, abs_src_path=str(ROOT / path)))
        return f"![{text}]({posixpath.relpath(copy, folder or '.')})"

    return LINK.sub(replaced, markdown)
