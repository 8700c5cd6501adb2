from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing import Bundle, FakeModel, words
from flightlog.testing.conformance import Check, SectionCase, checks
from flightlog_hookspecs import UserMessage

from flightlog_todo import LINES_MAX, todo

FILE = Path(tempfile.mkdtemp(prefix="todo-")) / "TODO.md"
CASE = SectionCase(
    section=todo(FILE),
    states={
        "no file": lambda: FILE.unlink(missing_ok=True),
        "nothing to do": lambda: FILE.write_text("- [x] rest\n"),
        "two things": lambda: FILE.write_text("- [ ] write\n- [x] read\n- [ ] count\n"),
        "too much": lambda: FILE.write_text("- [ ] write and write and write\n" * 10_000),
        "no text": lambda: FILE.write_bytes(b"\xff\xfe- [ ]\n" * 3),
    },
    max_chars=(LINES_MAX + 2) * 210,
)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_prompt_sections(check: Check) -> None:
    check()


def test_the_model_is_told_again_when_the_file_has_changed(
    kernel_with: KernelWith, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = kernel_with(Bundle(adapters=[FakeModel([words("I see."), words("Done.")])]), discover=["todo"])
    with kernel.session("s", model="fake:model") as session:
        for left in ("write", "count"):
            Path("TODO.md").write_text(f"- [ ] {left}\n")
            session.followup("Go on.")
            session.run()
    told = [message for message in kernel.read("s").messages() if isinstance(message, UserMessage)]
    news = [message.text for message in told if message.source == "context"]
    assert ["write" in text for text in news] == [True, False], news
    assert "count" in news[1]
