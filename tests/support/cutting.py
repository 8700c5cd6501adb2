"""A log as a death would have left it: the first rows of another, copied through the store's own codec."""

from __future__ import annotations

import os
from collections.abc import Mapping

from flightlog.store.codec import payloads_of
from flightlog.store.replay import lone_record
from flightlog.store.rows import Encoded
from flightlog.store.store import NewSession, Store

Path = str | os.PathLike[str]


def cut_log(source: Path, target: Path, rows: int, name: str = "s") -> None:
    """Write the first `rows` rows of session `name` in `source` into the new file `target`."""
    old, new = Store.open_to_read(os.fspath(source)), Store.open(os.fspath(target))
    try:
        key = old.key_of(name)
        assert key is not None
        taken = [row for row, _ in zip(old.rows(key.key), range(rows), strict=False)]
        assert len(taken) == rows
        new.create_session(NewSession(name, key.uid), Encoded(taken[0], (), ()))
        made = new.key_of(name)
        assert made is not None
        rest = [
            Encoded(row._replace(session=made.key), (), tuple(old.pieces(row.session, row.seq))) for row in taken[1:]
        ]
        if rest:
            payloads = {
                digest: old.blob(digest)
                for row in taken
                for digest in payloads_of(row, lone_record(old, name, row).event)
            }
            new.commit(rest, list(payloads.items()), barrier=True)
    finally:
        new.close()
        old.close()


def cut_file(source: Path, target: Path, rows: Mapping[str, int]) -> None:
    """Write the first rows of each session, so many as `rows` says, into the new file `target`."""
    for name, count in rows.items():
        cut_log(source, target, count, name)
