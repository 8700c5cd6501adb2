"""Logs that are to be replaced: one to purge, and damaged ones to repair."""

from __future__ import annotations

from pathlib import Path

from flightlog_hookspecs.events import Record, SessionRepaired
from support.damage import unguarded
from support.files import Pen, copied, look, opened, plain, written

Content = dict[str, list[Record]]


def three_sessions(path: Path) -> None:
    """A log in which what is purged or damaged stands between what stays."""
    for name in ("a", "b", "c"):
        written(path, "one", "two", name=name)
    written(path, "three", name="b")


def killed(path: Path) -> None:
    """The same, left behind with rows that stand in the -wal alone."""
    source = path.with_suffix(".source")
    three_sessions(source)
    with opened(source) as store:
        for name in ("a", "b", "c"):
            Pen(store, name).say("only in the -wal")
        copied(source, path, "", "-wal", "-head")


def older_copy(path: Path) -> None:
    """An older copy of the file in its place, closed cleanly: only the witness knows of the rows since."""
    old = path.with_suffix(".old")
    three_sessions(path)
    copied(path, old, "", "-wal")
    written(path, "gone", name="a")
    copied(old, path, "", "-wal")


def damaged_row(path: Path) -> None:
    """A changed row in session "b"."""
    three_sessions(path)
    with plain(path) as database:
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE session = 2 AND seq = 3")
    look(path)


def lost_wal(path: Path) -> None:
    """The -wal of a killed owner is gone, and with it rows that were durable; the witness knows."""
    source = path.with_suffix(".source")
    three_sessions(source)
    with opened(source) as store:
        Pen(store, "a").say("gone with the -wal")
        Pen(store, "c").say("this too")
        copied(source, path, "", "-head")


def lost_wal_and_row(path: Path) -> None:
    """Both, so that the repaired log is shorter than what is left of the damaged one."""
    lost_wal(path)
    with plain(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE session = 2 AND seq = 1")
    look(path)


def without_news(found: Content) -> Content:
    """What the sessions hold besides the mark of a repair, whose time and id differ from run to run."""
    return {name: [r for r in rows if not isinstance(r.event, SessionRepaired)] for name, rows in found.items()}
