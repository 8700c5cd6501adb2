"""The caller's mistakes: a `UsageError` at once, and nothing changed."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Kernel, Limits, Session
from flightlog.testing import Bundle, FakeModel, words
from flightlog_hookspecs import FileBlock, TextBlock
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.errors import FlightlogError, HeadMismatch, SessionBusy, StoreError, UsageError
from flightlog_hookspecs.events import SessionCreated
from support.files import photograph
from support.kernels import events_of, kinds_of, opened, session_of


async def test_a_closed_session_refuses_everything_by_name(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        await session.followup("hi")
    before = kinds_of(tmp_path / "a.db")
    with pytest.raises(UsageError, match="session 's' is closed"):
        await session.followup("late")
    with pytest.raises(UsageError, match="session 's' is closed"):
        await session.run()
    with pytest.raises(UsageError, match="session 's' is closed"):
        await session.serve()
    assert session.cancel() is False
    assert kinds_of(tmp_path / "a.db") == before


async def test_a_closed_kernel_opens_no_session_and_reads_none(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
        pass
    with pytest.raises(UsageError, match="closed"):
        async with kernel.session("s", model="fake:m"):
            pass
    with pytest.raises(UsageError, match="closed"):
        kernel.read("s").messages()


async def test_a_kernel_closed_under_its_session_leaves_a_log_that_resumes(tmp_path: Path) -> None:
    """Contexts left in the wrong order: whatever is raised is ours, and nothing accepted is lost."""
    path = tmp_path / "a.db"
    outer = opened(path, FakeModel([words("one")]))
    kernel = await outer.__aenter__()
    inner = kernel.session("s", model="fake:m")
    session = await inner.__aenter__()
    await session.followup("hi")
    await outer.__aexit__(None, None, None)
    with pytest.raises(FlightlogError):
        await session.followup("late")
    with pytest.raises(FlightlogError):
        await session.run()
    with pytest.raises(FlightlogError):
        await inner.__aexit__(None, None, None)
    async with session_of(path, FakeModel([words("one")])) as session:
        assert session.pending == 1
        assert (await session.run()).text == "one"


@pytest.mark.parametrize("name", ["", " " * 3 + "\n", "a\0b", "tab\there", "x" * 201, "line\nbreak", 7, None, b"s"])
async def test_a_session_name_that_cannot_be_shown_is_refused(tmp_path: Path, name: object) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError, match="session name"):
            async with kernel.session(name, model="fake:m"):
                pass
    with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
        assert log.names() == []


@pytest.mark.parametrize(
    "name", ["s", "x" * 200, "größe 東京 🚀", "../../etc/passwd", "a/b", "'; DROP TABLE events; --", "%s"]
)
async def test_any_printable_session_name_works(tmp_path: Path, name: str) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("one")]), name=name) as session:
        assert session.id == name
        await session.followup("hi")
        assert (await session.run()).text == "one"
    with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
        assert log.names() == [name]
        assert log.session(name).verify()


@pytest.mark.parametrize("model", ["", "fake", "fake:", ":m", "other:m", "Fake:m", " fake:m", 5, None])
async def test_a_model_without_an_adapter_is_refused_before_anything_is_written(tmp_path: Path, model: object) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError):
            async with kernel.session("s", model=model):
                pass
    with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
        assert log.names() == []


async def test_an_unknown_adapter_is_named_together_with_those_that_exist(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", [FakeModel([]), FakeModel([], name="second")]) as kernel:
        with pytest.raises(UsageError, match=r"no adapter named 'third' \(known: fake, second\)"):
            async with kernel.session("s", model="third:m"):
                pass


async def test_a_model_name_may_hold_colons_of_its_own(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "a.db", FakeModel([words("one")])) as kernel,
        kernel.session("s", model="fake:ft:gpt:2024") as session,
    ):
        await session.followup("hi")
        assert (await session.run()).text == "one"
        assert kernel.read("s").request(1, 1).head.model == "ft:gpt:2024"


async def test_a_session_is_driven_once_per_kernel_and_per_file(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "a.db", FakeModel([])) as kernel,
        opened(tmp_path / "a.db", FakeModel([])) as other,
        kernel.session("s", model="fake:m") as session,
    ):
        for second in (kernel, other):
            with pytest.raises(SessionBusy, match="'s'"):
                async with second.session("s", model="fake:m"):
                    pass
        await session.followup("still works")
        assert len(list(other.read("s").records())) == session.token.seq
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        assert session.pending == 1


@pytest.mark.parametrize("content", [None, 5, b"bytes", ["text"], (TextBlock(text="ok"), "text"), {"text": "x"}])
async def test_a_message_that_is_not_text_or_blocks_is_refused(tmp_path: Path, content: object) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        with pytest.raises(UsageError):
            await session.followup(content)
        assert session.pending == 0


async def test_a_message_with_a_field_of_the_wrong_type_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """It would be a row that no load accepts, and would cost the whole session."""
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        for text in (5, None, b"x", ["x"]):
            with pytest.raises(UsageError):
                await session.followup((TextBlock(text=text),))
        assert session.pending == 0
        await session.followup("still works")
    assert kinds_of(tmp_path / "a.db")[-2:] == ["inbox/splice", "session/closed"]


EMPTY = ["", " \n\t", (), (TextBlock(text=""),), (TextBlock(text=" "), TextBlock(text="\n"))]
WRITES: dict[str, Callable[[Kernel, Session, Any], Awaitable[object]]] = {
    "followup": lambda kernel, session, content: session.followup(content),
    "steer": lambda kernel, session, content: session.steer(content),
    "inject": lambda kernel, session, content: session.inject(content),
    "wake_at": lambda kernel, session, content: session.wake_at(datetime.now(UTC), content),
    "wake_after": lambda kernel, session, content: session.wake_after(1, content),
    "wake_every": lambda kernel, session, content: session.wake_every(1, content),
    "mailbox.followup": lambda kernel, session, content: kernel.mailbox("s").followup(content),
    "mailbox.steer": lambda kernel, session, content: kernel.mailbox("s").steer(content),
    "mailbox.inject": lambda kernel, session, content: kernel.mailbox("s").inject(content),
    "mailbox.wake_at": lambda kernel, session, content: kernel.mailbox("s").wake_at(datetime.now(UTC), content),
    "mailbox.wake_after": lambda kernel, session, content: kernel.mailbox("s").wake_after(1, content),
    "mailbox.wake_every": lambda kernel, session, content: kernel.mailbox("s").wake_every(1, content),
    "tasks.steer": lambda kernel, session, content: kernel.tasks.steer("t", content),
    "tasks.submit": lambda kernel, session, content: kernel.tasks.submit(content, model="fake:m"),
    "tasks.amend": lambda kernel, session, content: kernel.tasks.amend("t", goal=content),
}


@pytest.mark.parametrize("content", EMPTY, ids=map(str, range(len(EMPTY))))
@pytest.mark.parametrize("way", WRITES)
async def test_a_message_without_words_and_files_is_refused_wherever_one_is_written(
    tmp_path: Path, way: str, content: Any
) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        await kernel.tasks.submit("sweep", id="t", model="fake:m")
        before = kinds_of(path)
        with pytest.raises(UsageError):
            await WRITES[way](kernel, session, content)
        assert kinds_of(path) == before
        assert kernel._store.read("last_letter") == [(0,)]
        assert [task.id for task in await kernel.tasks.list()] == ["t"]


async def test_a_message_is_not_emptied_and_one_of_files_alone_is_none_that_is_empty(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        message = await session.followup((FileBlock.of(b"%PDF-1.7", name="a.pdf"), TextBlock(text="")))
        for empty in EMPTY:
            with pytest.raises(UsageError, match="needs words or a file"):
                await session.edit(message.message_id, empty)
        assert session.pending == 1


async def test_an_empty_letter_of_an_earlier_version_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    with monkeypatch.context() as earlier:
        earlier.setattr("flightlog.runtime.mailbox.checked_content", text_blocks)
        async with opened(path, FakeModel([])) as kernel:
            await kernel.mailbox("s").followup("")
    async with session_of(path, FakeModel([words("one")])) as session:
        assert (await session.run()).text == "one"
    async with opened(path, FakeModel([])) as kernel:
        assert kernel.read("s").messages()[0].text == ""
        assert kernel.read("s").verify()


@pytest.mark.parametrize("text", [".", " x ", "nul\0nul", "lone \ud800 surrogate", "é" * 3, "x" * 200_000])
async def test_any_string_is_a_message_and_arrives_unaltered(tmp_path: Path, text: str) -> None:
    model = FakeModel([words("one")])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup(text)
        assert (await session.run()).text == "one"
    async with opened(tmp_path / "a.db", model) as kernel:
        assert kernel.read("s").messages()[0].text == text
        assert kernel.read("s").verify()


async def test_a_title_is_kept_from_the_creation_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m", title="first"):
            pass
        async with kernel.session("s", model="fake:m", title="second"):
            pass
    assert [event.title for event in events_of(tmp_path / "a.db", SessionCreated)] == ["first"]


async def test_reading_or_asking_for_what_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([words("one")])) as kernel:
        with pytest.raises(UsageError, match="no session 'nobody'"):
            kernel.read("nobody")
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            await session.run()
        for place in ((1, 2), (2, 1), (0, 0), (1, 1, 2)):
            with pytest.raises(UsageError, match="made no request"):
                kernel.read("s").request(*place)


async def test_a_head_token_that_the_log_does_not_hold_is_refused(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        accepted = await session.followup("hi")
    async with session_of(tmp_path / "b.db", FakeModel([])) as other:
        foreign = (await other.followup("hello")).token
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m", expect=accepted.token):
            pass
        with pytest.raises(HeadMismatch):
            async with kernel.session("s", model="fake:m", expect=foreign):
                pass
        async with kernel.session("s", model="fake:m") as session:
            assert session.pending == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps_per_turn": 0},
        {"attempts_per_step": -1},
        {"parallel_tools": 0},
        {"delta_flush_ms": 0},
        {"model_idle_s": 0},
        {"cancel_grace_s": -1},
    ],
)
def test_limits_out_of_range_are_refused_when_they_are_made(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Limits(**wrong)


async def test_a_workspace_that_is_no_folder_is_refused_and_creates_no_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        async with opened(tmp_path / "a.db", FakeModel([]), workspace=tmp_path / "nowhere"):
            pass
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize(
    "path", [None, 7, "a\0b", ["a"], io.StringIO()], ids=["None", "a number", "a NUL", "a list", "a text file"]
)
async def test_what_is_no_path_is_refused_wherever_one_is_given(tmp_path: Path, path: Any) -> None:
    source = tmp_path / "a.db"
    async with session_of(source, FakeModel([])):
        pass
    before = photograph(tmp_path)
    async with opened(source, FakeModel([])) as kernel:
        for wrong in (
            lambda: kernel.backup(path),
            lambda: kernel.import_session(path),
            lambda: trio.to_thread.run_sync(kernel.read("s").export, path),
        ):
            with pytest.raises(UsageError, match="path"):
                await wrong()
        with pytest.raises(UsageError, match="path"):
            async with flightlog.open_kernel(path, discover=False):
                pass
        with flightlog.open_log(source, discover=False) as log, pytest.raises(UsageError, match="path"):
            log.backup(path)
    for refuses in (flightlog.open_log, lambda path: flightlog.purge(path, "s"), flightlog.repair):
        with pytest.raises(UsageError, match="path"):
            refuses(path)
    assert photograph(tmp_path).keys() == before.keys()


async def test_the_error_of_the_host_leaves_the_session_as_it_was_raised(tmp_path: Path) -> None:
    async def host() -> None:
        async with session_of(tmp_path / "a.db", FakeModel([])) as session:
            await session.followup("hi")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await host()
    assert kinds_of(tmp_path / "a.db")[-1] == "session/closed"


async def test_a_session_that_fails_to_open_can_be_opened_again_in_the_same_kernel(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            token = session.token
        bad = flightlog.HeadToken(session="s", seq=token.seq, digest="0" * 64)
        with pytest.raises(StoreError):
            async with kernel.session("s", model="fake:m", expect=bad):
                pass
        async with kernel.session("s", model="fake:m", expect=token):
            pass


async def test_plugins_are_listed_with_the_owner_that_opened(tmp_path: Path) -> None:
    @asynccontextmanager
    async def once(plugin: object) -> AsyncIterator[None]:
        async with (
            flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[plugin]) as kernel,
            kernel.session("s", model="fake:m"),
        ):
            yield

    async with once(Bundle(adapters=[FakeModel([])])):
        await trio.lowlevel.checkpoint()
    (opened_event,) = events_of(tmp_path / "a.db", flightlog.events.SessionOpened)
    assert [plugin.name for plugin in opened_event.plugins] == ["Bundle"]
    assert opened_event.kernel_version == flightlog.__version__
