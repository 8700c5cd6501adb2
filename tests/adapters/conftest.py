"""Small logs in memory, keys that no real provider knows, and no way to a real one."""

from __future__ import annotations

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
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", wire_anthropic.KEY)
    monkeypatch.setenv("OPENAI_API_KEY", wire_chat.KEY)
    monkeypatch.setenv("DEEPSEEK_API_KEY", wire_chat.KEY)
