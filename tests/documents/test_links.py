"""Links of the documents that a host of repositories shows lead to files and headings that exist.

Sphinx checks the links of the site's pages.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = sorted(ROOT.glob("*.md"))
DOCUMENTS += sorted([*ROOT.glob("contrib/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
# [text](target), ![text](target "title"), [label]: target, and what is written in HTML.
LINKS = (
    re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)"),
    re.compile(r"^\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE),
    re.compile(r"\b(?:href|src|srcset)=\"([^\"\s]+)"),
)


def prose(text):
    """The text without its code, in which a bracket is no link."""
    return re.sub(r"(`+)[^`].*?\1", "", FENCED.sub("", text))


def links(text):
    return [target for link in LINKS for target in link.findall(prose(text))]


def anchors(text):
    """The anchors that GitHub gives headings, and those that the text has itself."""
    found, counts = set(), {}
    text = FENCED.sub("", text)
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*\s*$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = counts[slug] = counts.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found | set(re.findall(r"\b(?:id|name)=\"([^\"]+)", text))


def broken(document):
    """The relative links of a document that lead nowhere."""
    wrong = []
    text = document.read_text()
    for target in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        if not path.exists():
            wrong.append(target)
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document):
    assert broken(document) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `name`, and more\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#a-name-and-more) [b](other.md#twice-1) [c](#here) `[d](none.md)`\n"
        "[e](https://example.com/none.md)\n```\n# Not here\n[f](none.md)\n```\n"
        '[g](gone.md "title") [h](other.md#twice-2) [i](#not-here) <img src="gone.svg">\n'
        "[j]: gone.txt\n"
    )
    assert broken(page) == ["gone.md", "other.md#twice-2", "#not-here", "gone.txt", "gone.svg"]
