"""Images and documents at every provider: shown as it takes them, and where it does not, the model is told."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.core.limits import FILE_MAX_BYTES
from flightlog.testing import Bundle
from flightlog_hookspecs import FileBlock, Head, TextBlock, ToolOutput, ToolResult, UserMessage, tool
from flightlog_plugins.anthropic.encoding import IMAGE_MAX_BYTES
from support import values
from support.kernels import records_of, verified
from support.wire_kernels import ONCE, messages_of
from support.wire_providers import ANTHROPIC, CHAT, DEEPSEEK, PROVIDERS, RESPONSES, Provider
from support.wire_server import Asked, served

CAT = FileBlock.of(b"\x89PNG\r\n\x1a\n of a cat", name="cat.png")
REPORT = FileBlock.of(b"%PDF-1.7 in full", name="report.pdf")
NOTES = FileBlock.of("ünd so weiter\n".encode(), name="notes.txt")
ZIP = FileBlock.of(b"PK\3\4", name="all.zip")
BROKEN = FileBlock.of(b"GIF89a but it says PNG", name="broken.png")
EVERY = (TextBlock(text="see these"), CAT, REPORT, NOTES, ZIP, BROKEN, evolve(REPORT, name=""), TextBlock(text=" "))
TOLD = (
    "[file all.zip, application/zip, 4 bytes: not shown to this model]",
    "[image broken.png, image/png, 22 bytes: not shown to this model]",
    "[file notes.txt, text/plain, 15 bytes]\\nünd so weiter\\n",
)
"""What every model is told of what no provider takes."""

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)


def showing(*content: Any, error: bool = False) -> Bundle:
    @tool(mode="parallel", effect="read")
    async def look(where: str = "here") -> ToolOutput:
        """Look somewhere."""
        return ToolOutput(content=(TextBlock(text=where), *content), is_error=error)

    return Bundle(tools=[look])


async def bodies(provider: Provider, path: Path, given: tuple[Any, ...], plugin: Bundle) -> tuple[list[Any], list[str]]:
    """What the provider is sent in two turns with calls, and what it refuses."""
    asked: list[Any] = []
    wire = provider.wire([provider.full, provider.short, provider.full])

    def noted(request: Asked) -> Any:
        asked.append(request.body)
        return wire(request)

    async with (
        served(noted) as server,
        flightlog.open_kernel(path, discover=False, plugins=[provider.plugin, plugin]) as kernel,
        kernel.session("s", model=provider.at(server.url), limits=ONCE) as session,
    ):
        for content in (given, "and now?"):
            await session.followup(content)
            turn = await session.run()
            assert turn is not None
            assert turn.message == ""
    return asked, wire.refused


@providers
@pytest.mark.parametrize("error", [False, True])
async def test_files_of_users_and_tools_are_accepted_and_proven(
    provider: Provider, error: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    asked, refused = await bodies(provider, path, EVERY, showing(*EVERY, error=error))
    assert refused == []
    for body in asked:
        text = json.dumps(body, ensure_ascii=False)
        assert all(words in text for words in TOLD)
    assert verified(path, provider.adapter()) == len(records_of(path))


IN_BASE64 = {file.name: base64.b64encode(file.data).decode() for file in (CAT, REPORT)}
CAT_URL, REPORT_URL = (
    f"data:image/png;base64,{IN_BASE64['cat.png']}",
    f"data:application/pdf;base64,{IN_BASE64['report.pdf']}",
)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IN_BASE64["cat.png"]}}
DOCUMENT = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": IN_BASE64["report.pdf"]},
    "title": "report.pdf",
}
INPUTS = [
    {"type": "input_image", "detail": "auto", "image_url": CAT_URL},
    {"type": "input_file", "filename": "report.pdf", "file_data": REPORT_URL},
]
CAT_TOLD = "[image cat.png, image/png, 17 bytes: not shown to this model]"
REPORT_TOLD = "[file report.pdf, application/pdf, 16 bytes: not shown to this model]"
USER = UserMessage(message_id="m", content=(TextBlock(text="see"), CAT, REPORT))
RESULT = ToolResult(position=0, call_id="c1", name="look", message_seq=3, outcome="ok", content=USER.content)


def sent(provider: Provider, *messages: Any) -> Any:
    """The messages of the request that these make."""
    adapter = provider.adapter()
    head = Head(adapter=provider.name, model=provider.model)
    body = json.loads(provider.body([adapter.encode(part) for part in (head, *messages)]))
    return body.get("messages", body.get("input"))


def test_anthropic_takes_images_and_documents_from_users_and_tools() -> None:
    (message,) = sent(ANTHROPIC, USER)
    assert message["content"] == [{"type": "text", "text": "see"}, IMAGE, DOCUMENT]
    ((result,),) = [message["content"] for message in sent(ANTHROPIC, RESULT)]
    assert result == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "see"}, IMAGE, DOCUMENT],
    }


def test_anthropic_is_told_of_the_files_of_a_failed_call() -> None:
    """It takes text alone there."""
    ((result,),) = [message["content"] for message in sent(ANTHROPIC, evolve(RESULT, outcome="error"))]
    assert [block["text"] for block in result["content"]] == ["see", CAT_TOLD, REPORT_TOLD]


@pytest.mark.parametrize("extra", [0, 1])
def test_anthropic_is_told_of_an_image_larger_than_it_takes(extra: int) -> None:
    data = CAT.data.ljust(IMAGE_MAX_BYTES + extra, b"\0")
    ((block,),) = [m["content"] for m in sent(ANTHROPIC, evolve(USER, content=(FileBlock.of(data, name="big.png"),)))]
    assert block["type"] == ("text" if extra else "image")


def test_responses_takes_images_and_documents_from_users_and_tools() -> None:
    (message,) = sent(RESPONSES, USER)
    assert message == {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, *INPUTS]}
    failed, fine = sent(RESPONSES, evolve(RESULT, outcome="error"), RESULT)
    assert fine["output"] == message["content"]
    assert failed["output"] == [{"type": "input_text", "text": "[error] "}, *message["content"]]


def test_chat_takes_images_and_documents_from_users_and_is_told_of_those_of_tools() -> None:
    user, result = sent(CHAT, USER, RESULT)
    assert user["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": CAT_URL}},
        {"type": "file", "file": {"filename": "report.pdf", "file_data": REPORT_URL}},
    ]
    assert result["content"] == f"see\n{CAT_TOLD}\n{REPORT_TOLD}"


def test_deepseek_is_told_of_all_files_and_given_the_words_of_texts() -> None:
    (user,) = sent(DEEPSEEK, evolve(USER, content=(*USER.content, NOTES, TextBlock(text="well?"))))
    assert user["content"] == (
        f"see\n{CAT_TOLD}\n{REPORT_TOLD}\n[file notes.txt, text/plain, 15 bytes]\nünd so weiter\n\nwell?"
    )


@providers
@pytest.mark.parametrize("file", [evolve(REPORT, name=""), evolve(REPORT, name=" ")])
def test_a_document_without_a_name_gets_one_where_there_must_be_one(provider: Provider, file: FileBlock) -> None:
    text = json.dumps(sent(provider, evolve(USER, content=(file,))))
    assert ("document.pdf" in text) == (provider in (CHAT, RESPONSES))
    assert '"title"' not in text


@providers
def test_a_text_that_is_not_in_utf8_is_no_text(provider: Provider) -> None:
    latin = FileBlock.of("ü".encode("latin-1"), name="a.txt")
    assert "text/plain, 1 bytes: not shown to this model]" in json.dumps(sent(provider, evolve(USER, content=(latin,))))


@providers
@given(content=st.lists(values.files() | st.builds(TextBlock, text=values.texts(large=False)), max_size=4).map(tuple))
def test_no_file_whatsoever_makes_a_request_that_is_refused_or_says_nothing_of_it(
    provider: Provider, content: tuple[Any, ...]
) -> None:
    wire = provider.wire([provider.short])
    adapter = provider.adapter()
    parts = [
        adapter.encode(part)
        for part in (Head(adapter=provider.name, model=provider.model), evolve(USER, content=content))
    ]
    assert parts == [
        adapter.encode(part)
        for part in (Head(adapter=provider.name, model=provider.model), evolve(USER, content=content))
    ]
    raw = provider.body(parts)
    wire(evolve(provider.asked, raw=raw))
    assert wire.refused == []
    for file in content:
        if isinstance(file, FileBlock):
            shown = base64.b64encode(file.data).decode() in raw.decode()
            assert shown or f"{file.media_type}, {file.size_bytes} bytes" in raw.decode()


def test_the_largest_file_fits_into_a_request() -> None:
    assert FILE_MAX_BYTES * 4 / 3 < 30_000_000


@providers
async def test_a_session_with_files_goes_on_with_any_other_model(provider: Provider, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await bodies(provider, path, EVERY, showing(CAT))
    for other in PROVIDERS:
        wire = other.wire([other.short])
        plugins = [other.plugin, showing(CAT)]
        async with (
            served(wire) as server,
            flightlog.open_kernel(path, discover=False, plugins=plugins) as kernel,
            kernel.session("s", model=other.at(server.url), limits=ONCE) as session,
        ):
            await session.followup("go on")
            turn = await session.run()
            assert turn is not None
            assert (turn.message, turn.text, wire.refused) == ("", other.short_text, [])
    assert any(isinstance(message, ToolResult) for message in messages_of(path))
