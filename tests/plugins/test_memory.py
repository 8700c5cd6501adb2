"""Memory across sessions: found again in others, held by the log alone, gone with it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flightlog
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Hook, Tool
from flightlog_hookspecs.errors import StoreError, ToolError, UsageError
from flightlog_hookspecs.events import PluginFault, Record, SessionOpened, ToolCall, ToolResult, UserMessage
from flightlog_plugins import memory
from flightlog_plugins.memory import Memory
from flightlog_plugins.memory.index import WordIndex
from flightlog_plugins.memory.keeping import Keeper
from flightlog_plugins.memory.remembered import Remembered
from support.kernels import events_of, records_of, verified
from support.memory_folder import subfolder
from support.workspaces import call_in

LOG, INDEX = "a.db", "memory.db"


def memory_of(folder: Path, **options: Any) -> Memory:
    """The plugin for the log in `folder`."""
    return Memory(folder / INDEX, log=lambda: flightlog.open_log(folder / LOG, discover=False), **options)


def noted(text: str) -> Remembered:
    """A piece of knowledge."""
    return Remembered(kind="knowledge", text=text, session="s", at_us=0)


def remembering(*texts: str, kind: str = "knowledge") -> FakeModel:
    """A model that remembers `texts`, all in one answer."""
    return FakeModel([calls(*(("remember", {"text": text, "kind": kind}) for text in texts))])


async def run(
    folder: Path, name: str, model: FakeModel, *plugins: object, said: Sequence[str] = ("hi",), until: str = ""
) -> None:
    """Run a turn of session `name` for each of `said`; wait for a fault of the hook `until`, if any."""
    async with (
        flightlog.open_kernel(
            folder / LOG, discover=False, plugins=[Bundle(adapters=[model]), *(plugins or [memory_of(folder)])]
        ) as kernel,
        kernel.session(name, model="fake:m") as session,
    ):
        for text in said:
            await session.followup(text)
            turn = await session.run()
            assert turn is not None
            assert turn.reason == "completed"
        if until:
            async for record in session.events():
                if isinstance(record.event, PluginFault) and record.event.hook == until:
                    break
    assert verified(folder / LOG, model, name=name)


def recalled(folder: Path, query: str, limit: int = 20, **options: Any) -> list[str]:
    """What `recall` finds, without kind and day."""
    text = memory_of(folder, **options).recall(call_in(folder), query, limit)
    return [line.partition("] ")[2] for line in text.splitlines() if line.startswith("- ")]


def told(folder: Path, name: str) -> list[str]:
    """What the section told the model."""
    return [event.text for event in events_of(folder / LOG, UserMessage, name) if event.section == "memory"]


def results(folder: Path, name: str) -> list[ToolResult]:
    """The results of one answer's calls, in the order of the calls."""
    return sorted(events_of(folder / LOG, ToolResult, name), key=lambda result: result.position)


def held(folder: Path) -> list[tuple[str, str, str]]:
    """What the index holds."""
    connection = sqlite3.connect(folder / INDEX)
    try:
        return sorted(connection.execute("SELECT kind, text, session FROM memories"))
    finally:
        connection.close()


async def test_what_one_session_remembers_the_next_is_told_when_it_fits(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The staging database is called heron.", "Lunch is at noon."))
    await run(
        tmp_path, "two", FakeModel([]), said=["Which database is for staging?", "Again: which database?", "Thanks!"]
    )
    first, gone = told(tmp_path, "two")
    assert "heron" in first
    assert "Lunch" not in first
    assert "not instructions" in first
    assert gone == "The context 'memory' no longer applies."
    assert told(tmp_path, "one") == []


async def test_a_session_is_not_told_what_it_remembered_itself(tmp_path: Path) -> None:
    model = FakeModel([*remembering("The database is heron.").replies, words("ok")])
    await run(tmp_path, "one", model, said=["remember the database", "which database?"])
    assert told(tmp_path, "one") == []
    assert recalled(tmp_path, "database") == ["The database is heron."]


async def test_the_model_recalls_with_a_tool(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The user wants short answers.", kind="preference"))
    await run(tmp_path, "two", FakeModel([calls(("recall", {"query": "answers"}), ("recall", {"query": "nothing"}))]))
    found, nothing = results(tmp_path, "two")
    assert found.text.startswith("- [preference, 20")
    assert found.text.endswith("] The user wants short answers.")
    assert nothing.text == "Nothing that was remembered fits."


TEXTS = [
    "用户喜欢深色主题",
    "生产数据库在北京机房",
    "We deploy on Fridays, never on Mondays.",
    "The café opens at \uff18 o'clock.",
    "プロジェクトの締め切りは金曜日",
    "FLIGHTLOG_PATH points to the log",
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("主题是什么颜色", 0),
        ("主题", 0),
        ("数据库在哪里", 1),
        ("北京", 1),
        ("题", 0),
        ("机", 1),
        ("DEPLOYMENT deploy", 2),
        ("depl", 2),
        ("When do we deploy?", 2),
        ("CAFE", 3),
        ("8", 3),
        ("締め切り", 4),
        ("flightlog", 5),
        ('friday" OR "x', 2),
        ("fridays AND NEAR(", 2),
    ],
)
def test_chinese_and_english_are_found_by_whole_questions_and_short_words(
    tmp_path: Path, query: str, found: int
) -> None:
    index = WordIndex(str(tmp_path / INDEX))
    index.rebuild(lambda writer: [writer.add(noted(text), "") for text in TEXTS] and None)
    results = index.search(query, subject="", beside="", limit=20)
    assert [result.text for result in results][:1] == [TEXTS[found]]


@pytest.mark.parametrize("query", ["", "?!", "\0", '"', "*", "🦜", "x" * 100_000, "的" * 10_000, "a " * 50_000])
def test_no_query_is_an_error(tmp_path: Path, query: str) -> None:
    index = WordIndex(str(tmp_path / INDEX))
    index.rebuild(lambda writer: None)
    assert index.search(query, subject="", beside="", limit=20) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(min_size=1, max_size=40), around=st.text(max_size=20))
def test_every_text_is_found_by_itself_and_no_query_breaks(tmp_path: Path, text: str, around: str) -> None:
    text, around = (each.encode(errors="replace").decode() for each in (text, around))
    index = WordIndex(str(subfolder(tmp_path) / INDEX))
    index.rebuild(lambda writer: writer.add(noted(f"zebra {text}"), ""))
    index.search(text + around, subject="", beside="", limit=5)
    assert [found.text for found in index.search(f"zebra {text}", subject="", beside="", limit=5)] == [f"zebra {text}"]


async def test_half_a_character_does_not_keep_the_rest_from_being_remembered(tmp_path: Path) -> None:
    model = FakeModel([calls(("remember", {"text": "The heron \ud83d flies.", "kind": "knowledge"}))])
    await run(tmp_path, "one", model)
    assert held(tmp_path) == [("knowledge", "The heron ? flies.", "one")]


async def test_the_same_is_remembered_once_whoever_remembers_it(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The database is heron.", " The database is heron.\n"))
    await run(tmp_path, "two", remembering("The database is heron."))
    assert held(tmp_path) == [("knowledge", "The database is heron.", "one")]


@pytest.mark.parametrize("text", ["", "  \n", "x" * 2001])
def test_nothing_and_too_much_cannot_be_remembered(tmp_path: Path, text: str) -> None:
    with pytest.raises(ToolError, match="1 to 2000 characters"):
        memory_of(tmp_path).remember(text, "knowledge")


@pytest.mark.parametrize("limit", [0, 21, -1])
def test_recall_is_bounded(tmp_path: Path, limit: int) -> None:
    with pytest.raises(ToolError, match="1 to 20"):
        memory_of(tmp_path).recall(call_in(tmp_path), "x", limit)


async def test_what_the_section_tells_is_bounded(tmp_path: Path) -> None:
    long = [f"database {number} {'x' * 1900}" for number in range(8)]
    await run(tmp_path, "one", remembering(*long, *(f"a database {number}" for number in range(8))))
    await run(tmp_path, "two", FakeModel([]), said=["which database?"])
    (text,) = told(tmp_path, "two")
    assert len(text) < memory.SECTION_MAX_CHARS + 200
    assert 1 < len(text.splitlines()) <= memory.SECTION_MEMORIES_MAX + 2


async def test_only_calls_that_ended_well_are_remembered(tmp_path: Path) -> None:
    bad = {"text": "The database is a stork.", "kind": "rumour"}
    model = FakeModel([calls(("remember", bad), ("remember", {"text": "  ", "kind": "knowledge"}))])
    await run(tmp_path, "one", model)
    assert held(tmp_path) == []


async def test_another_tool_of_that_name_remembers_nothing(tmp_path: Path) -> None:
    def remember(anything: str) -> str:
        """Remember it elsewhere."""
        return anything

    await run(tmp_path, "one", FakeModel([calls(("remember", {"anything": "x"}))]), Bundle(tools=[Tool(body=remember)]))
    await run(tmp_path, "two", FakeModel([]))
    assert held(tmp_path) == []


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def scribbled(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4096:] = os.urandom(len(raw) - 4096)
    path.write_bytes(raw)


def outdated(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()


@pytest.mark.parametrize("harm", [gone, empty, cut, scribbled, outdated], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("way", ["told", "recalled", "remembered"])
async def test_an_index_that_cannot_be_used_comes_back_from_the_log(
    tmp_path: Path, harm: Callable[[Path], None], way: str
) -> None:
    await run(tmp_path, "one", remembering("The database is heron."))
    harm(tmp_path / INDEX)
    match way:
        case "told":
            await run(tmp_path, "two", FakeModel([]), said=["database"])
            assert "heron" in told(tmp_path, "two")[0]
        case "recalled":
            assert recalled(tmp_path, "database") == ["The database is heron."]
        case "remembered":
            await run(tmp_path, "two", remembering("The cache is a stork."))
            assert [text for _, text, _ in held(tmp_path)] == ["The cache is a stork.", "The database is heron."]


async def test_an_index_that_is_damaged_while_it_is_used_comes_back(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The database is heron."))
    plugin = memory_of(tmp_path)
    assert "heron" in plugin.recall(call_in(tmp_path), "database")
    scribbled(tmp_path / INDEX)
    assert "heron" in plugin.recall(call_in(tmp_path), "database")


async def test_without_a_usable_index_the_turn_goes_on_and_says_what_is_wrong(tmp_path: Path) -> None:
    plugin = memory_of(tmp_path)
    (tmp_path / INDEX).write_bytes(b"somebody's notes")
    model = FakeModel([calls(("remember", {"text": "x", "kind": "knowledge"}), ("recall", {"query": "database"}))])
    await run(tmp_path, "one", model, plugin, until="event_committed memory")
    assert [result.outcome for result in results(tmp_path, "one")] == ["ok", "error"]
    faults = {fault.hook: fault.error for fault in events_of(tmp_path / LOG, PluginFault, "one")}
    assert set(faults) == {"render memory", "event_committed memory"}
    assert all("is not an index of memories" in error for error in faults.values())
    assert (tmp_path / INDEX).read_bytes() == b"somebody's notes"
    (tmp_path / INDEX).unlink()
    assert recalled(tmp_path, "x") == ["x"]


async def test_what_is_no_index_is_refused_at_once_and_stays_as_it_is(tmp_path: Path) -> None:
    await run(tmp_path, "one", FakeModel([]))
    before = (tmp_path / LOG).read_bytes()
    for path in (tmp_path / LOG, tmp_path):
        with pytest.raises(UsageError, match="index of memories"):
            Memory(path, log=lambda: flightlog.open_log(tmp_path / LOG))
    assert (tmp_path / LOG).read_bytes() == before
    with pytest.raises(UsageError):
        Memory("", log=lambda: flightlog.open_log(tmp_path / LOG))


@pytest.mark.parametrize("again", [True, False], ids=["rebuilt", "deleted"])
async def test_nothing_of_a_purged_session_is_found_or_in_any_file(tmp_path: Path, again: bool) -> None:
    await run(tmp_path, "one", remembering("The flamingo is pink."))
    await run(tmp_path, "two", remembering("The heron is grey."))
    assert any(b"flamingo" in path.read_bytes() for path in tmp_path.iterdir())
    flightlog.purge(tmp_path / LOG, "one")
    if again:
        memory_of(tmp_path).rebuild()
    else:
        (tmp_path / INDEX).unlink()
    assert recalled(tmp_path, "flamingo pink heron") == ["The heron is grey."]
    assert [path.name for path in tmp_path.iterdir() if b"flamingo" in path.read_bytes()] == []


async def test_a_journal_that_a_kill_left_is_not_played_into_the_new_index(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The flamingo is pink."))
    journal = tmp_path / f"{INDEX}-journal"
    journal.write_bytes(b"flamingo")
    flightlog.purge(tmp_path / LOG, "one")
    memory_of(tmp_path).rebuild()
    assert not journal.exists()
    assert held(tmp_path) == []


async def test_an_index_that_missed_what_was_committed_catches_up_when_the_session_is_opened_again(
    tmp_path: Path,
) -> None:
    """As after a kill between the commit and the index."""
    await run(tmp_path, "one", FakeModel([]))
    unheard = memory_of(tmp_path)
    tools_only = Bundle(tools=[Tool(body=unheard.remember, effect="idempotent")])
    await run(tmp_path, "one", FakeModel([words("."), *remembering("The database is heron.").replies]), tools_only)
    assert held(tmp_path) == []
    await run(tmp_path, "one", FakeModel([]))
    assert held(tmp_path) == [("knowledge", "The database is heron.", "one")]


async def test_a_record_that_could_not_be_taken_in_is_made_up_for_at_the_end_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, broken = memory.index.Writer.add, [True]

    def failing(self: Any, found: Remembered, subject: str) -> None:
        if broken:
            broken.clear()
            raise OSError("planted: the disk is full")
        add(self, found, subject)

    monkeypatch.setattr(memory.index.Writer, "add", failing)
    await run(tmp_path, "one", remembering("The database is heron."))
    assert broken == []
    assert held(tmp_path) == [("knowledge", "The database is heron.", "one")]


async def test_sessions_that_are_closed_cleanly_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    records = flightlog.SessionReader.records

    def counted(self: flightlog.SessionReader) -> Iterator[Record]:
        read.append(self.session)
        return records(self)

    monkeypatch.setattr(flightlog.SessionReader, "records", counted)
    await run(tmp_path, "one", remembering("The database is heron."))
    assert read == ["one"], "for the index that was not there"
    for _ in range(3):
        read.clear()
        await run(tmp_path, "one", FakeModel([]))
        assert read == []


async def test_memories_of_another_subject_are_out_of_reach(tmp_path: Path) -> None:
    def owner(session: str) -> str:
        return session.partition("/")[0]

    plugin = memory_of(tmp_path, subject=owner)
    await run(tmp_path, "ann/1", remembering("The database is heron."), plugin)
    await run(tmp_path, "bob/1", remembering("The database is stork."), plugin)
    await run(tmp_path, "ann/2", FakeModel([calls(("recall", {"query": "database"}))]), plugin, said=["database"])
    assert "stork" not in str([told(tmp_path, "ann/2"), events_of(tmp_path / LOG, ToolResult, "ann/2")])
    assert "heron" in told(tmp_path, "ann/2")[0]


async def test_only_the_user_of_the_process_may_read_the_index(tmp_path: Path) -> None:
    await run(tmp_path, "one", remembering("The database is heron."))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{INDEX}*")} == {0o600}


def test_nobody_adds_to_an_index_that_is_about_to_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be lost."""
    monkeypatch.setattr(memory.index, "BUSY_MAX_S", 0.0)
    ours, theirs = (WordIndex(str(tmp_path / INDEX)) for _ in range(2))
    ours.rebuild(lambda writer: None)

    def fill(writer: Any) -> None:
        with pytest.raises(TimeoutError, match="somebody else"), theirs.writing():
            pass

    ours.rebuild(fill)
    with theirs.writing() as writer:
        writer.add(noted("heron"), "")
    assert len(held(tmp_path)) == 1


PROCESS = """
import sys
from flightlog_plugins.memory.index import WordIndex
from flightlog_plugins.memory.remembered import Remembered
index = WordIndex(sys.argv[1])
for number in range(30):
    with index.writing() as writer:
        writer.add(Remembered(kind="knowledge", text=f"{sys.argv[2]} {number}", session="s", at_us=0), "")
"""


@pytest.mark.kill
def test_several_processes_add_to_one_index(tmp_path: Path) -> None:
    WordIndex(str(tmp_path / INDEX)).rebuild(lambda writer: None)
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path / INDEX), name])
        for name in ("one", "two", "three")
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(held(tmp_path)) == 90


async def test_a_plugin_that_comes_in_the_middle_of_a_session_has_what_was_remembered_before_and_after(
    tmp_path: Path,
) -> None:
    tools_only = Bundle(tools=[Tool(body=memory_of(tmp_path).remember, effect="idempotent")])
    model = FakeModel([*remembering("before").replies, words("."), *remembering("after").replies])
    following = Bundle(hooks=[Hook(point="event_committed", body=memory_of(tmp_path).follow, name="memory")])
    plugins = [Bundle(adapters=[model]), tools_only]
    async with (
        flightlog.open_kernel(tmp_path / LOG, discover=False, plugins=plugins) as kernel,
        kernel.session("one", model="fake:m") as session,
    ):
        await session.followup("hi")
        await session.run()
        with_memory = kernel.register(following)
        await session.followup("hi")
        await session.run()
    assert with_memory.closed
    assert [text for _, text, _ in held(tmp_path)] == ["after", "before"]


def test_a_result_whose_call_was_missed_makes_the_session_be_read_again(tmp_path: Path) -> None:
    """As when a hook ran out of time, its thread went on, and the call came in between."""
    text = json.dumps({"text": "heron", "kind": "knowledge"})
    call = ToolCall(
        position=0, call_id="c", name="remember", arguments=text, invocation_id="i", message_seq=7, mode="parallel",
        effect="idempotent", plugin="p", plugin_version="",
    )  # fmt: skip
    result = ToolResult(position=0, call_id="c", name="remember", message_seq=7, outcome="ok", content=(), call_seq=8)
    events = {7: SessionOpened(pid=1, host="h", kernel_version=""), 8: call, 9: result}
    rows = [
        Record(session="s", seq=seq, at_us=0, turn=None, step=None, epoch=1, event=event)
        for seq, event in events.items()
    ]

    class Canned:
        def length(self) -> int:
            return len(rows)

        def records(self) -> list[Record]:
            return rows

        def names(self) -> list[str]:
            return ["s"]

        def session(self, name: str) -> Canned:
            return self

    keeper = Keeper(WordIndex(str(tmp_path / INDEX)), lambda: nullcontext(Canned()), lambda session: "")
    keeper.index.rebuild(lambda writer: writer.follow("s", 6))
    keeper.follow(rows[0])
    keeper.follow(rows[2])
    assert held(tmp_path) == [("knowledge", "heron", "s")]


def test_every_statement_is_used() -> None:
    source = Path(memory.index.__file__).read_text()
    assert set(memory.index._statements()) == set(re.findall(r'_sql\("(\w+)"\)', source))


KILLED = """
import sys, flightlog, trio
from pathlib import Path
from flightlog.testing import Bundle, FakeModel, calls
from flightlog_plugins.memory import Memory

async def main(folder):
    memory = Memory(folder / "memory.db", log=lambda: flightlog.open_log(folder / "a.db", discover=False))
    notes = [calls(("remember", {"text": f"note {n}", "kind": "knowledge"})) for n in range(10_000)]
    plugins = [memory, Bundle(adapters=[FakeModel(notes)])]
    limits = flightlog.Limits(steps_per_turn=10_000)
    async with flightlog.open_kernel(folder / "a.db", discover=False, plugins=plugins) as kernel:
        async with kernel.session("one", model="fake:m", limits=limits) as session:
            await session.followup("hi")
            await session.run()

trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.kill
def test_after_a_kill_the_index_holds_what_the_log_does(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    try:
        while process.poll() is None:
            with suppress(StoreError, UsageError):
                if len(events_of(tmp_path / LOG, ToolResult, "one")) > 5:
                    break
    finally:
        process.kill()
        process.wait()
    everything = [Bundle(adapters=[FakeModel([])]), memory_of(tmp_path)]
    with (
        flightlog.sync.open_kernel(tmp_path / LOG, discover=False, plugins=everything) as kernel,
        kernel.session("one", model="fake:m"),
    ):
        pass
    records = records_of(tmp_path / LOG, "one")
    said = {record.seq: record.event.arguments for record in records if isinstance(record.event, ToolCall)}
    fine = [one.call_seq for one in events_of(tmp_path / LOG, ToolResult, "one") if one.outcome == "ok"]
    assert len(fine) > 5
    assert {text for _, text, _ in held(tmp_path)} == {json.loads(said[seq])["text"] for seq in fine if seq}
