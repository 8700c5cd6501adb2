"""A session as JSONL: out, in again, and out again with the same bytes; anything else is refused by line."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.errors import ImportRefused, LogCorrupt, SchemaTooNew, UsageError
from flightlog.store.codec import chained, encode
from flightlog.store.importing import imported
from flightlog.store.jsonl import Closing, Header, RowLine, parsed, written
from flightlog.store.rows import Encoded
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import tool
from flightlog_hookspecs.events import Record, ToolResult, UnknownEvent
from support import files, kernels
from support.legal_logs import LegalLog, legal_logs, write

Lines = list[bytes]


@tool
def flood() -> str:
    """More than fits: spilled."""
    return "é" * 90_000


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with streams, payloads that stand twice, a spilled result, an open inbox, two sessions."""
    path = tmp_path_factory.mktemp("rich") / "a.db"
    files.rich(path)
    return path


@pytest.fixture(scope="module")
def lines(rich: Path) -> Lines:
    return exported(rich)


def exported(path: Path, name: str = "s") -> Lines:
    with flightlog.open_log(path, discover=False) as log:
        target = io.BytesIO()
        log.session(name).export(target)
    return target.getvalue().splitlines(keepends=True)


async def taken_in(path: Path, lines: Lines) -> str:
    async with flightlog.open_kernel(path, discover=False) as kernel:
        return await kernel.import_session(io.BytesIO(b"".join(lines)))


def changed(line: bytes, **changes: object) -> bytes:
    value = json.loads(line) | changes
    kept = {name: part for name, part in value.items() if part is not None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def number_of(lines: Lines, part: bytes) -> int:
    """The index of the first line that holds `part`."""
    return next(index for index, line in enumerate(lines) if part in line)


async def test_an_export_that_is_imported_and_exported_again_has_the_same_bytes(
    rich: Path, lines: Lines, tmp_path: Path
) -> None:
    assert any(b'"blob"' in line for line in lines)
    assert any(b'"deltas"' in line for line in lines)
    assert await taken_in(tmp_path / "b.db", lines) == "s"
    assert exported(tmp_path / "b.db") == lines
    assert files.content(tmp_path / "b.db")["s"] == files.content(rich)["s"]


async def test_an_import_beside_other_sessions_leaves_a_file_that_verifies(rich: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    files.written(path, "was here before", name="old")
    for name in ("t", "s"):
        await taken_in(path, exported(rich, name))
    with flightlog.open_log(path, discover=False) as log:
        log.check_file()
        assert log.names() == ["old", "t", "s"]
        for name in log.names():
            log.session(name).verify()
    with files.plain(path) as shell:
        (count, last), *_ = shell.execute("SELECT count(*), max(id) FROM events").fetchall()
    assert count == last
    assert exported(path, "s") == exported(rich, "s")


async def test_an_imported_session_goes_on_where_it_was(tmp_path: Path) -> None:
    model = FakeModel([words("one"), words("two")])
    async with kernels.opened(tmp_path / "a.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("first")
        await session.run()
    await taken_in(tmp_path / "b.db", exported(tmp_path / "a.db"))
    asked = {}
    for name in ("a.db", "b.db"):
        model.requests.clear()
        async with kernels.session_of(tmp_path / name, model) as session:
            await session.followup("second")
            assert (await session.run()).text == "two"
        asked[name] = list(model.requests)
    assert asked["a.db"] == asked["b.db"]


async def test_the_whole_of_a_spilled_result_travels_along(tmp_path: Path) -> None:
    model = FakeModel([calls(("flood", {}))])
    async with kernels.session_of(tmp_path / "a.db", model, flood) as session:
        await session.followup("go")
        await session.run()
    (result,) = kernels.events_of(tmp_path / "a.db", ToolResult)
    assert result.spill
    await taken_in(tmp_path / "b.db", lines := exported(tmp_path / "a.db"))
    with files.opened(tmp_path / "b.db") as store:
        assert store.blob(bytes.fromhex(result.spill.sha256)).decode() == flood.body()
    without = [line for line in lines if result.spill.sha256.encode() not in line[:100]]
    assert len(without) == len(lines) - 1
    with pytest.raises(ImportRefused, match="blob-hash"):
        await taken_in(tmp_path / "c.db", without)


def test_an_export_to_a_path_is_private_and_never_overwrites(rich: Path, lines: Lines, tmp_path: Path) -> None:
    target = tmp_path / "s.jsonl"
    with flightlog.open_log(rich, discover=False) as log:
        head = log.session("s").export(target)
        with pytest.raises(UsageError, match="exists already"):
            log.session("s").export(target)
    assert target.read_bytes() == b"".join(lines)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert json.loads(lines[-1]) == {"rows": head.seq, "head": head.digest}
    assert list(tmp_path.iterdir()) == [target]


def test_a_damaged_log_is_not_exported_and_leaves_no_file(tmp_path: Path) -> None:
    path, target = tmp_path / "a.db", tmp_path / "s.jsonl"
    files.written(path, "one", "two")
    with files.plain(path) as shell:
        shell.execute("DROP TRIGGER events_update")
        shell.execute("UPDATE events SET at = at + 1 WHERE seq = 3")
    with flightlog.open_log(path, discover=False) as log, pytest.raises(LogCorrupt, match="hash-chain"):
        log.session("s").export(target)
    assert [entry for entry in tmp_path.iterdir() if "jsonl" in entry.name] == []


Change = Callable[[Lines], object]
REFUSALS: dict[str, tuple[Change, str]] = {
    "the closing line is missing": (lambda lines: lines.pop(), "complete"),
    "the last line is cut in half": (lambda lines: lines.append(lines.pop()[:20]), "complete"),
    "the last line has lost its end": (lambda lines: lines.append(lines.pop()[:-1]), "complete"),
    "nothing is left": (lambda lines: lines.clear(), "complete"),
    "only the header is left": (lambda lines: lines.__delitem__(slice(1, None)), "complete"),
    "the header is missing": (lambda lines: lines.pop(0), "header"),
    "the header comes twice": (lambda lines: lines.insert(1, lines[0]), "header"),
    "a row is missing": (lambda lines: lines.pop(4), "seq-dense"),
    "a row comes twice": (lambda lines: lines.insert(4, lines[4]), "seq-dense"),
    "the first row is missing": (lambda lines: lines.pop(1), "seq-dense"),
    "all rows are missing": (lambda lines: lines.__delitem__(slice(1, -1)), "created-first"),
    "two rows are exchanged": (lambda lines: lines.insert(4, lines.pop(5)), "seq-dense"),
    "bad JSON": (lambda lines: lines.__setitem__(4, b'{"seq":4,\n'), "line-shape"),
    "an empty line": (lambda lines: lines.insert(4, b"\n"), "line-shape"),
    "not an object": (lambda lines: lines.insert(4, b"[1]\n"), "line-shape"),
    "not UTF-8": (lambda lines: lines.insert(4, b'{"seq":"\xff"}\n'), "line-shape"),
    "a duplicate key": (lambda lines: lines.__setitem__(4, b'{"seq":4,' + lines[4][1:]), "line-shape"),
    "an unknown key": (lambda lines: lines.__setitem__(4, changed(lines[4], more=1)), "line-shape"),
    "a changed time": (lambda lines: lines.__setitem__(4, changed(lines[4], at=5)), "hash-chain"),
    "a number for a text": (lambda lines: lines.__setitem__(4, changed(lines[4], kind=5)), "line-shape"),
    "another order of keys": (
        lambda lines: lines.__setitem__(4, json.dumps(json.loads(lines[4]), sort_keys=True).encode() + b"\n"),
        "line-shape",
    ),
    "a changed delta": (
        lambda lines: lines.__setitem__(
            number := number_of(lines, b'"deltas"'), lines[number].replace(b"I w", b"I W", 1)
        ),
        "delta-hash",
    ),
    "deltas that are not one's own": (
        lambda lines: lines.__setitem__(4, changed(lines[4], deltas=[[0, "x"]], digest=None)),
        "line-shape",
    ),
    "a payload is missing": (lambda lines: lines.pop(number_of(lines, b'{"blob"')), "blob-hash"),
    "a payload comes twice": (
        lambda lines: lines.insert(number_of(lines, b'{"blob"'), lines[number_of(lines, b'{"blob"')]),
        "blob-once",
    ),
    "a payload too early": (
        lambda lines: lines.insert(2, lines.pop(number_of(lines, b'{"blob"'))),
        "blob-used",
    ),
    "a payload that is another": (
        lambda lines: lines.__setitem__(number := number_of(lines, b'{"blob"'), changed(lines[number], base64="AAAA")),
        "blob-hash",
    ),
    "another uid": (lambda lines: lines.__setitem__(0, changed(lines[0], uid="other")), "hash-chain"),
    "a wrong count": (lambda lines: lines.__setitem__(-1, changed(lines[-1], rows=7)), "closing"),
    "a wrong head": (lambda lines: lines.__setitem__(-1, changed(lines[-1], head="00")), "closing"),
    "a line behind the end": (lambda lines: lines.append(lines[4]), "closing"),
    "a format of the future": (lambda lines: lines.__setitem__(0, changed(lines[0], flightlog_export=2)), "line-shape"),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_a_faulty_export_is_refused_by_line_and_changes_nothing(what: str, lines: Lines, tmp_path: Path) -> None:
    change, rule = REFUSALS[what]
    path = tmp_path / "b.db"
    files.written(path, "was here before", name="old")
    before = files.photograph(tmp_path)
    faulty = list(lines)
    change(faulty)
    with pytest.raises(ImportRefused) as caught:
        await taken_in(path, faulty)
    assert caught.value.rule == rule, caught.value
    assert 1 <= caught.value.line <= len(faulty) + 1
    assert f"line {caught.value.line}: " in str(caught.value)
    if len(faulty) == len(lines) and rule != "closing":
        first = next(index for index, (a, b) in enumerate(zip(lines, faulty, strict=True)) if a != b)
        assert caught.value.line in (first + 1, first + 2)
    assert files.photograph(tmp_path) == before


async def test_a_chain_that_is_whole_does_not_excuse_an_illegal_event(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    files.written(path, "one", "two")
    records = files.content(path)["s"]
    illegal = [*records[:3], evolve(records[3], event=records[2].event)]
    rows, digest = [], b""
    for record in illegal:
        rows.append(encode(record, 1, "uid of s", digest))
        digest = rows[-1].row.digest
    forged = forged_lines(rows)
    with pytest.raises(ImportRefused) as caught:
        await taken_in(tmp_path / "b.db", forged)
    assert (caught.value.line, caught.value.rule) == (5, "splice-pending")


def forged_lines(rows: list[Encoded]) -> Lines:
    body = [written(RowLine(encoded.row, list(encoded.pieces))) for encoded in rows]
    return [written(Header("s", "uid of s")), *body, written(Closing(len(rows), rows[-1].row.digest))]


@pytest.mark.parametrize("same", ["name", "uid"])
async def test_a_session_that_is_here_already_is_refused(same: str, lines: Lines, tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    await taken_in(path, lines)
    before = files.photograph(tmp_path)
    again = list(lines)
    if same == "uid":
        again[0] = changed(lines[0], session="another name")
    with pytest.raises(UsageError, match="already"):
        await taken_in(path, again)
    assert files.photograph(tmp_path) == before
    assert files.content(path).keys() == {"s"}


async def test_the_kernel_goes_on_after_a_refused_import(lines: Lines, tmp_path: Path) -> None:
    async with kernels.opened(tmp_path / "b.db", FakeModel([words("fine")])) as kernel:
        with pytest.raises(ImportRefused):
            await kernel.import_session(io.BytesIO(b"".join(lines[:-1])))
        await kernel.import_session(io.BytesIO(b"".join(lines)))
        with pytest.raises(UsageError):
            await kernel.import_session(io.BytesIO(b"".join(lines)))
        async with kernel.session("other", model="fake:m") as session:
            await session.followup("go")
            assert (await session.run()).text == "fine"


async def test_a_name_that_no_session_may_have_is_refused(lines: Lines, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="printable"):
        await taken_in(tmp_path / "b.db", [changed(lines[0], session="a\nb"), *lines[1:]])


async def test_a_file_that_is_not_there_is_the_callers_fault(tmp_path: Path) -> None:
    async with flightlog.open_kernel(tmp_path / "b.db", discover=False) as kernel:
        with pytest.raises(UsageError, match="No such file"):
            await kernel.import_session(tmp_path / "missing.jsonl")


def of(log: LegalLog, folder: Path) -> Lines:
    (folder / "a.db").unlink(missing_ok=True)
    write(str(folder / "a.db"), log.appends())
    return exported(folder / "a.db", log.session)


@given(log=legal_logs(moves_max=30))
def test_every_legal_log_comes_back_as_it_was(log: LegalLog) -> None:
    with files.in_memory() as folder:
        lines = of(log, folder)
        found = imported(lines)
        with files.opened(folder / "b.db") as store:
            assert store.create_session(found.session, *found.rows, blobs=found.blobs)
            assert tuple(files.replayed(store)["s"]) == log.records
        assert exported(folder / "b.db") == lines


@given(log=legal_logs(moves_max=8), data=st.data())
def test_a_changed_byte_is_refused_or_is_what_was_meant(log: LegalLog, data: st.DataObject) -> None:
    """Only the name of the session stands outside of the chain: it may differ from file to file."""
    with files.in_memory() as folder:
        whole = b"".join(of(log, folder))
        at = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.binary(max_size=2))
        faulty = whole[:at] + byte + whole[at + 1 :]
        try:
            found = imported(faulty.splitlines(keepends=True))
        except (ImportRefused, SchemaTooNew):
            return
        assert faulty == whole or at < whole.index(b"\n")
        with files.opened(folder / "b.db") as store:
            store.create_session(found.session, *found.rows, blobs=found.blobs)
        assert b"".join(exported(folder / "b.db", found.session.name)) == faulty


@given(log=legal_logs(moves_max=20), data=st.data())
def test_a_cut_export_is_refused(log: LegalLog, data: st.DataObject) -> None:
    with files.in_memory() as folder:
        whole = b"".join(of(log, folder))
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        with pytest.raises(ImportRefused) as caught:
            imported(cut.splitlines(keepends=True))
        assert caught.value.rule == "complete"
        assert caught.value.line == cut.count(b"\n") + 1


def newer(path: Path) -> None:
    """A log that holds an event of a newer version, whose columns only that version can derive."""
    with files.opened(path) as store:
        pen = files.Pen(store)
        pen.say("one")
        record = Record(
            session="s",
            seq=4,
            at_us=7,
            turn=None,
            step=None,
            epoch=1,
            event=UnknownEvent(kind="newer/kind", data='{"a":1}'),
            ignorable=True,
        )
        encoded = encode(record, pen.key, pen.uid, pen._digest)
        store.commit([encoded._replace(row=encoded.row._replace(name="derived", status="x", attempt=3))], barrier=True)


async def test_the_columns_of_an_event_of_a_newer_version_are_kept_for_it(tmp_path: Path) -> None:
    newer(tmp_path / "a.db")
    lines = exported(tmp_path / "a.db")
    await taken_in(tmp_path / "b.db", lines)
    assert exported(tmp_path / "b.db") == lines
    with files.plain(tmp_path / "b.db") as shell:
        row = shell.execute("SELECT name, status, attempt FROM events WHERE kind = 'newer/kind'").fetchone()
    assert row == ("derived", "x", 3)


async def test_an_event_of_a_newer_version_that_matters_is_refused_as_newer(tmp_path: Path) -> None:
    newer(tmp_path / "a.db")
    lines = [line.replace(b',"ignorable":true', b"") for line in exported(tmp_path / "a.db")]
    rows = [parsed(line) for line in lines]
    row = rows[4].row
    digest = chained(rows[3].row.digest, "uid of s", row)
    lines[4] = written(rows[4]._replace(row=row._replace(digest=digest)))
    lines[5] = written(rows[5]._replace(head=digest))
    with pytest.raises(SchemaTooNew, match=r"line 5: .*newer"):
        await taken_in(tmp_path / "b.db", lines)
