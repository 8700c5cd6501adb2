"""HTML as readable text, in time that grows with its length whatever is in it.

What is left open goes to the end: a comment, a tag, a script. So nothing is looked at twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Final
from urllib.parse import urljoin

LINK_MAX_CHARS: Final = 300
"""A longer address is cut, and ends with "…"."""
_HIDDEN: Final = frozenset(("script", "style", "template", "noscript", "svg", "iframe", "textarea", "select"))
_BLOCKS: Final = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "li"),
        *("main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "th", "thead", "title"),
        *("tr", "ul"),
    )
)
_KEPT_SPACE: Final = "\ue000"
"""A space of preformatted text, until all others are made one. No script has this character."""
_TAG_START: Final = re.compile(r"/?[a-zA-Z]")
_NAME: Final = re.compile(r"/?([a-zA-Z][^\s/>]{0,50})")
_TAG_STOP: Final = re.compile(r"""[>"']""")
_HREF: Final = re.compile(r"""\shref\s{0,5}=\s{0,5}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_CLOSING: Final = {name: re.compile(f"</{name}(?![a-z0-9-])", re.IGNORECASE) for name in _HIDDEN}


def readable(html: str, url: str, wanted: int) -> str:
    """The text of a page at `url`: a line for each block, links to other pages as `[words](address)`.

    Of a longer text all is returned up to some place behind the first `wanted` characters.
    """
    text: list[str] = []
    link, preformatted, found = "", False, 0
    for piece, tag in _pieces(html):
        if found > wanted:
            break
        if not tag:
            words = _unescaped(piece)
            # Spaces and | may go in the end, so they do not count.
            found += sum(map(len, words.replace("|", " ").split()))
            text.append(words.replace(" ", _KEPT_SPACE) if preformatted else words.replace("\n", " "))
            continue
        if tag == "pre":
            preformatted = not piece.startswith("</")
        if tag in _BLOCKS:
            text.append("\n")
        elif tag in ("td", "th") and not piece.startswith("</"):
            text.append(" | ")
        if tag == "a":
            if link:
                text.append(f"]({link})")
                found += len(link)
            link = _link(piece, url)
            text.append("[" if link else "")
    if link:
        text.append(f"]({link})")
    lines = (" ".join(line.split()) for line in "".join(text).split("\n"))
    return "\n".join(line for line in lines if line.strip("| ")).replace(_KEPT_SPACE, " ")


def _pieces(html: str) -> Iterator[tuple[str, str]]:
    """What is shown as (text, ""), and tags as (their text, their name in small letters), in order."""
    at = 0
    while at < len(html):
        start = html.find("<", at)
        yield html[at : start if start >= 0 else len(html)], ""
        if start < 0:
            return
        if html.startswith("<!--", start):
            end = html.find("-->", start + 4)
            at = end + 3
        elif html.startswith(("<!", "<?"), start):
            end = html.find(">", start)
            at = end + 1
        elif not _TAG_START.match(html, start + 1):
            yield "<", ""
            end, at = start, start + 1
        else:
            end = _tag_end(html, start)
            at = end + 1
            found = _NAME.match(html, start + 1)
            assert found, "it begins with a letter"
            name = found[1].lower()
            yield html[start:at], name
            if name in _HIDDEN and html[start + 1] != "/" and end >= 0:
                closing = _CLOSING[name].search(html, at)
                end = at = closing.start() if closing else -1
        if end < 0:
            return


def _tag_end(html: str, start: int) -> int:
    """Where the tag at `start` ends: a > outside of quotes; -1 for nowhere."""
    at = start
    while stop := _TAG_STOP.search(html, at):
        if stop[0] == ">":
            return stop.start()
        at = html.find(stop[0], stop.end()) + 1
        if not at:
            return -1
    return -1


def _link(tag: str, url: str) -> str:
    found = None if tag.startswith("</") else _HREF.search(tag)
    if not found:
        return ""
    try:
        target = urljoin(url, _unescaped(next(filter(None, found.groups()), "")).strip())
    except ValueError:
        return ""
    shown = target.startswith(("http://", "https://")) and target.partition("#")[0] != url
    if not shown:
        return ""
    address = "".join(target.split())
    return address if len(address) <= LINK_MAX_CHARS else f"{address[:LINK_MAX_CHARS]}…"


def _unescaped(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a number of more digits than Python reads
        return text
