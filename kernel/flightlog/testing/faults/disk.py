"""A disk that remembers what was not synced, and what it may hold once the power is gone.

Fed with the operations of one run it computes the files after a crash at any of them; nothing is run
again. It promises as little as POSIX does: written data is durable after a sync of its file, a name
after a sync of its folder, the size of a file with its data. Until then each sector written is on the
disk or not, torn or not, in any order; names alone keep their order, as every journaling file system
keeps it. A sector that is overwritten changes in the bytes written only (SQLite assumes as much).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import Final, Literal

from attrs import define, field, frozen

SECTOR_BYTES: Final = 512

Kind = Literal["create", "write", "truncate", "sync", "delete", "link", "rename", "sync-folder", "read", "begin"]
Mode = Literal["lost", "all", "prefix", "file", "subset"]
"""What of the unsynced is on the disk: nothing; all (a SIGKILL: the system lives on); as much as was written
until some moment, the last sector torn; all of one file; any choice of sectors, some torn, one garbage."""
MODES: Final[tuple[Mode, ...]] = ("lost", "all", "prefix", "file", "subset")
CERTAIN: Final[frozenset[Mode]] = frozenset({"lost", "all"})
"""Those that leave nothing to chance."""
_SHARES: Final = (0.1, 0.5, 0.9)
"""How much of the unsynced a subset keeps."""
_GARBAGE_SHARE: Final = 0.3
_TORN_SHARE: Final = 0.05

Files = dict[str, bytes]
"""Contents by name: "db", "wal", "journal", "head", and "files/..." for what tools wrote."""

WORKSPACE: Final = "files/"


def digest_of(files: Files) -> bytes:
    """The same for the same names and contents, and for no others."""
    return sha256(b"".join(name.encode() + sha256(files[name]).digest() for name in sorted(files))).digest()


@frozen
class Op:
    """One operation on a file: `data` is written at `offset`, `offset` is the new size, or `to` its other name.

    `known` is how much the world knew just before it: a length of the ledger.
    """

    kind: Kind
    file: str
    offset: int = 0
    data: bytes = b""
    known: int = 0
    to: str = ""


@frozen
class _Change:
    """Something unsynced. `data` is None for a new size; `node` is the file, whatever its name."""

    node: int
    offset: int
    data: bytes | None


@define
class Disk:
    """Files as they are surely on the disk, and all that may be.

    `version` grows with everything that reaches the disk for sure: same version, same `lost` image.
    """

    version: int = field(default=0, init=False)
    _names: dict[str, int] = field(factory=dict, init=False)
    _contents: dict[int, bytes] = field(factory=dict, init=False)
    _pending: list[_Change] = field(factory=list, init=False)
    _renames: list[Mapping[str, int | None]] = field(factory=list, init=False)
    _nodes: int = field(default=0, init=False)

    @classmethod
    def holding(cls, files: Mapping[str, bytes]) -> Disk:
        """A disk on which `files` are durable."""
        disk = cls()
        for name, content in files.items():
            disk._names[name] = disk._new_node(content)
        return disk

    def copy(self) -> Disk:
        """Another one in the same state."""
        other = Disk()
        other.version, other._nodes = self.version, self._nodes
        other._names, other._contents = dict(self._names), dict(self._contents)
        other._pending, other._renames = list(self._pending), list(self._renames)
        return other

    @property
    def pending(self) -> int:
        """How many changes are not durable."""
        return len(self._pending) + len(self._renames)

    def feed(self, op: Op) -> None:
        """Let `op` happen."""
        match op.kind:
            case "create":
                self._renames.append({op.file: self._new_node(b"")})
            case "delete":
                self._renames.append({op.file: None})
            case "link":
                self._renames.append({op.to: self._node(op.file)})
            case "rename":
                self._renames.append({op.file: None, op.to: self._node(op.file)})
            case "write":
                node = self._node(op.file)
                for start, end in _sectors(op.offset, len(op.data)):
                    self._pending.append(_Change(node, op.offset + start, op.data[start:end]))
            case "truncate":
                self._pending.append(_Change(self._node(op.file), op.offset, None))
            case "sync":
                self._sync(self._node(op.file))
            case "sync-folder":
                self._names = self._named(len(self._renames))
                self.version += bool(self._renames)
                self._renames = []

    def image(self, mode: Mode, random: Random) -> Files:
        """The files after a crash now; `random` decides what `mode` leaves open."""
        contents: dict[int, bytearray] = {}
        names = self._names
        if mode != "lost":
            contents = {node: bytearray(self._contents[node]) for node in {change.node for change in self._pending}}
            named = len(self._renames) if mode == "all" else random.randint(0, len(self._renames))
            names = self._named(named)
            for change, data in _kept(self._pending, mode, random):
                _apply(contents[change.node], change, data)
        return {name: bytes(contents.get(node, self._contents[node])) for name, node in names.items()}

    def _new_node(self, content: bytes) -> int:
        self._nodes += 1
        self._contents[self._nodes] = content
        return self._nodes

    def _named(self, count: int) -> dict[str, int]:
        names = dict(self._names)
        for change in self._renames[:count]:
            for name, node in change.items():
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        return names

    def _node(self, name: str) -> int:
        return self._named(len(self._renames))[name]

    def _sync(self, node: int) -> None:
        mine = [change for change in self._pending if change.node == node]
        if mine:
            content = bytearray(self._contents[node])
            for change in mine:
                _apply(content, change, change.data)
            self._contents[node] = bytes(content)
            self._pending = [change for change in self._pending if change.node != node]
            self.version += 1


def _sectors(offset: int, length: int) -> list[tuple[int, int]]:
    """Start and end, within the data, of each sector that a write touches."""
    cuts = [0, *range(SECTOR_BYTES - offset % SECTOR_BYTES, length, SECTOR_BYTES), length]
    return [(start, end) for start, end in pairwise(cuts) if start < end]


def _apply(content: bytearray, change: _Change, data: bytes | None) -> None:
    if data is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(data)] = data


def _kept(pending: list[_Change], mode: Mode, random: Random) -> list[tuple[_Change, bytes | None]]:
    """The changes that are on the disk, each with the bytes that are."""
    match mode:
        case "prefix":
            count = random.randint(0, len(pending))
            kept = [(change, change.data) for change in pending[:count]]
            if count < len(pending):
                kept += _torn(pending[count], random)
            return kept
        case "file":
            node = random.choice([change.node for change in pending]) if pending else 0
            return [(change, change.data) for change in pending if change.node == node]
        case "subset":
            kept, share = [], random.choice(_SHARES)
            garbage = random.randrange(len(pending)) if pending and random.random() < _GARBAGE_SHARE else -1
            for number, change in enumerate(pending):
                if number == garbage and change.data is not None:
                    kept.append((change, random.randbytes(len(change.data))))
                elif random.random() < share:
                    kept += _torn(change, random) if random.random() < _TORN_SHARE else [(change, change.data)]
            return kept
        case _:
            return [(change, change.data) for change in pending]


def _torn(change: _Change, random: Random) -> list[tuple[_Change, bytes | None]]:
    """The beginning of what was being written; nothing of a new size."""
    return [] if change.data is None else [(change, change.data[: random.randrange(len(change.data))])]
