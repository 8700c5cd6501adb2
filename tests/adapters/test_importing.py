"""Nobody pays for providers that are not used: their packages are imported with the first request."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ENTRY_POINTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]


def test_all_plugins_in_the_box_register_without_any_provider_s_package() -> None:
    code = (
        "import sys\n"
        "from importlib import import_module\n"
        "for package in ('anthropic', 'openai', 'httpx', 'httpx2', 'pydantic'):\n"
        "    sys.modules[package] = None\n"
        "names = []\n"
        "for module in sys.argv[1:]:\n"
        "    register = getattr(import_module(module), 'register_adapters', lambda register: None)\n"
        "    register(lambda adapter: names.append(adapter.name))\n"
        "print(*sorted(names))\n"
    )
    modules = [value.partition(":")[0] for value in ENTRY_POINTS["flightlog"].values()]
    command = [sys.executable, "-W", "error", "-c", code, *modules]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.split() == ["anthropic", "deepseek", "openai", "openai-chat", "scripted"]
