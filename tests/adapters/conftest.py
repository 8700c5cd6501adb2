"""Small logs in memory, keys that no real provider knows, and no way to a real one."""

from __future__ import annotations

import os

import pytest

from support import wire_anthropic, wire_chat
from support.memory_folder import tmp_path

__all__ = ["tmp_path"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ANTHROPIC_BASE_URL",
        "OPENAI_BASE_URL",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "all_proxy",
        "SSL_CERT_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    # Each client reads all certificates of the machine, which takes longer than most tests; the loopback has none.
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)
    monkeypatch.setenv("ANTHROPIC_API_KEY", wire_anthropic.KEY)
    monkeypatch.setenv("OPENAI_API_KEY", wire_chat.KEY)
    monkeypatch.setenv("DEEPSEEK_API_KEY", wire_chat.KEY)
