"""Files as the loopback servers look at them: a provider opens what it is sent, and refuses what it is not."""

from __future__ import annotations

import base64
import binascii

_BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
}
IMAGES = frozenset(kind for kind in _BEGINNINGS if kind.startswith("image/"))
PDF = frozenset({"application/pdf"})


def fault(media_type: object, data: object, allowed: frozenset[str]) -> str:
    """Why the file with these bytes, in base64, is refused; "" when it is taken."""
    if media_type not in allowed:
        return f"media type {media_type} is not one of {sorted(allowed)}"
    try:
        content = base64.b64decode(str(data), validate=True)
    except binascii.Error as error:
        return f"invalid base64 data: {error}"
    if not content.startswith(_BEGINNINGS[str(media_type)]):
        return f"the file does not match the provided media type {media_type}"
    return ""


def url_fault(url: object, allowed: frozenset[str]) -> str:
    """The same of a data URL."""
    media_type, comma, data = str(url).removeprefix("data:").partition(";base64,")
    return fault(media_type, data, allowed) if comma else "expected a base64-encoded data URL"
