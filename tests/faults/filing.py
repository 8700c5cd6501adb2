"""Workloads of the plugins in the box that write files: the file tools, and the memory with its index."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import ModuleType

from attrs import frozen

import flightlog
from flightlog.core.tool_schema import prepare
from flightlog.testing import Bundle, FakeModel
from flightlog.testing.faults import Order, Script, World
from flightlog.testing.faults.of_tool import stand_in
from flightlog.testing.faults.workloads import Diligent
from flightlog_hookspecs import Hook, Tool, ToolContext
from flightlog_hookspecs.events import Message, Record, ToolCall, ToolResult
from flightlog_plugins.files import append_line, confinement, edit_file, reading, replacing, write_file, writing
from flightlog_plugins.memory import Kind, Memory
from flightlog_plugins.memory.keeping import matters
from flightlog_plugins.memory.remembered import Follower


def order(text: str, *steps: Sequence[tuple[str, Mapping[str, object]]]) -> Order:
    """One message, and calls with these arguments."""
    return Order(text, tuple(tuple((name, json.dumps(arguments)) for name, arguments in step) for step in steps))


def stand_ins(tools: Iterable[Tool], world: World) -> list[Tool]:
    """As the laboratory can run them. What is said of a repeated call is another thing than of a first one."""
    return [stand_in(prepare(tool, "laboratory", ""), world, said=lambda _: "done") for tool in tools]


LONG = "".join(f"{number:07}\n" for number in range(400))
"""Of more than one sector."""


@frozen
class Files(Script):
    """A model writes a file, edits it, writes it anew, and appends lines to another."""

    @property
    def watched(self) -> Sequence[ModuleType]:
        """All that open files."""
        return (confinement, reading, replacing, writing)

    def plugins(self, world: World) -> Sequence[object]:
        """The tools."""
        return [Bundle(tools=stand_ins((write_file, edit_file, append_line), world), adapters=[self.adapter()])]

    def look(self, files: Mapping[str, bytes], records: Sequence[Record] | None) -> Iterator[str]:
        """A file is one of those that were written; a line is there at most once, and once it was said to be."""
        wanted: list[str] = [LONG, LONG.replace("0000007\n", "seven\n"), "short\n"]
        found = files.get("report.txt")
        if found is not None and found.decode(errors="replace") not in wanted:
            yield f"report.txt is torn: {found[:40]!r}..."
        lines = Counter(files.get("lines.txt", b"").decode(errors="replace").splitlines())
        yield from (f"the line {line!r} is there {times} times" for line, times in lines.items() if times > 1)
        if records is not None:
            if found is None or found.decode() != wanted[-1]:
                yield "report.txt is not what was written last"
            for call in _done(records, "append_line"):
                line = json.loads(json.loads(call.arguments)["task"])["line"]
                if lines[line] != 1:
                    yield f"the line {line!r}, which was appended, is there {lines[line]} times"


class Mindful(Diligent):
    """Gives a tool the arguments that its task consists of, as the memory reads them in the log."""

    def _arguments(self, name: str, task: str, messages: Sequence[Message]) -> dict[str, str]:
        return {"task": task, **json.loads(task)}


@frozen
class Remembering(Script):
    """A model remembers things in two sessions. Its index is a file that may fall behind the log, or be lost."""

    @property
    def watched(self) -> Sequence[ModuleType]:
        """None: SQLite writes the index, and it is taken as a whole."""
        return ()

    def adapter(self) -> FakeModel:
        """Its calls are those of the tool itself."""
        return Mindful(self.orders)

    def plugins(self, world: World) -> Sequence[object]:
        """The tool, and what follows the log without a thread."""
        index = os.path.join(world.workspace or tempfile.gettempdir(), "index")
        log = os.path.join(os.path.dirname(world.workspace), "a.db")
        memory = Memory(index, log=partial(flightlog.open_log, log, discover=False))

        async def follow(record: Record) -> None:
            if matters(record):
                try:
                    memory._keeper.follow(record)
                finally:
                    if os.path.exists(index):
                        world.keep(index)

        async def remember(context: ToolContext, task: str, text: str, kind: Kind) -> str:
            """Remember something.

            Args:
                context: the call
                task: the arguments that follow
                text: what to remember
                kind: of which kind it is

            """
            said = memory.remember(text, kind)
            world.done(context, "remember", "idempotent", {"task": task})
            return said

        tools = [Tool(body=remember, mode="parallel", effect="idempotent")]
        hooks = [Hook(point="event_committed", body=follow, name="memory")]
        return [Bundle(tools=tools, adapters=[self.adapter()], hooks=hooks)]

    def look(self, files: Mapping[str, bytes], records: Sequence[Record] | None) -> Iterator[str]:
        """In the end the index holds what the log says, and nothing else."""
        if records is None:
            return
        followers: dict[str, Follower] = {}
        meant = {
            found.text
            for record in records
            if (found := followers.setdefault(record.session, Follower()).feed(record)) is not None
        }
        with closing(sqlite3.connect(":memory:")) as index:
            index.deserialize(files.get("index", b""))
            held = {text for (text,) in index.execute("SELECT text FROM memories")}
        if held != meant:
            yield f"the index lacks {sorted(meant - held)}, and holds {sorted(held - meant)} besides"
        if len(meant) < len(_done(records, "remember")):
            yield "something that was remembered is not in the log"


def _done(records: Sequence[Record], name: str) -> list[ToolCall]:
    """The calls of a tool that ended well."""
    calls = {(record.session, record.seq): record.event for record in records if isinstance(record.event, ToolCall)}
    ended = [record for record in records if isinstance(record.event, ToolResult) and record.event.outcome == "ok"]
    return [call for record in ended if (call := calls[record.session, record.event.call_seq or 0]).name == name]


FILES = Files(
    "filing:FILES",
    (
        (
            "s",
            (
                order(
                    "write",
                    [
                        ("write_file", {"path": "report.txt", "text": LONG}),
                        ("append_line", {"path": "lines.txt", "line": "a"}),
                    ],
                    [("edit_file", {"path": "report.txt", "old": "0000007\n", "new": "seven\n"})],
                    [
                        ("append_line", {"path": "lines.txt", "line": "b" * 600}),
                        ("write_file", {"path": "report.txt", "text": "short\n"}),
                    ],
                ),
            ),
        ),
    ),
)
MEMORIES = Remembering(
    "filing:MEMORIES",
    tuple(
        (
            name,
            (
                order(
                    f"remember {name}",
                    [("remember", {"text": f"{name} likes tea", "kind": "preference"})],
                    [
                        ("remember", {"text": f"{name} is tall", "kind": "knowledge"}),
                        ("remember", {"text": f"{name} was right", "kind": "conclusion"}),
                    ],
                ),
            ),
        )
        for name in ("one", "two")
    ),
)
