"""Thousands of small logs: in memory."""

from __future__ import annotations

from support.memory_folder import tmp_path

__all__ = ["tmp_path"]
