"""Golden files: what a crash left behind, small enough to keep, and judged again at any time.

One that broke a promise is kept until the bug is fixed, and stays as the proof that it is.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio
import trio.testing
from attrs import frozen

from flightlog.testing.faults import oracles
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import Disk, Files
from flightlog.testing.faults.judge import Judge, refused
from flightlog.testing.faults.life import Bench, bench, look, new_log, read_log, watched_life
from flightlog.testing.faults.oracles import Broken
from flightlog.testing.faults.recorder import disk_of
from flightlog.testing.faults.workloads import named
from flightlog.testing.faults.world import Done, Fact
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import RequestSent

SUFFIX: Final = ".crash"
_NAME_MAX_CHARS: Final = 60
"""As much of a workload's name stands in that of a file, which disks bound."""
_DIGEST_CHARS: Final = 16


@frozen(kw_only=True)
class Golden:
    """The files after a crash, and what the world knew.

    `workload` is what `named` knows it as; `number` counts the crashes so far. `digests` are those of all rows
    that were written, shortened: what opens is a prefix of them. It must have at least `rows` rows and
    `letters` letters. `done` has what took effect.
    """

    workload: str
    seed: int
    number: int
    files: Files
    digests: Sequence[str]
    rows: int
    letters: int
    done: Sequence[Done]

    @classmethod
    def of(
        cls,
        workload: str,
        seed: int,
        number: int,
        files: Files,
        facts: Sequence[Fact],
        *,
        written: Sequence[oracles.Row] = (),
        least: tuple[int, int] = (0, 0),
    ) -> Golden:
        """What to keep of a crash that left `files`, where `least` rows and letters are claimed by `facts`."""
        return cls(
            workload=workload,
            seed=seed,
            number=number,
            files=files,
            digests=_digests(written),
            rows=least[0],
            letters=least[1],
            done=[fact for fact in facts if isinstance(fact, Done)],
        )

    def broken(self) -> list[Broken]:
        """What is wrong with it, judged by the kernel as it is today."""
        with bench() as place, deterministic(), disk_of(self.seed):
            return trio.run(self._judged, place, clock=trio.testing.MockClock(autojump_threshold=0))

    async def _judged(self, place: Bench) -> list[Broken]:
        workload = named(self.workload)
        empty = await new_log(place)
        unbroken = await watched_life(place, Disk.holding(empty), empty, [], workload, seed=self.seed, number=0)
        judge = Judge.by(place, workload, self.seed, unbroken.log)
        place.lay_out(self.files)
        try:
            found = look(place.path)
            place.lay_out(self.files)
            log = read_log(place.path, judge.registry, verify=False)
        except BaseException as error:
            return [refused(error)]
        opened = _digests(found.rows)
        if self.digests and opened != list(self.digests[: len(opened)]):
            return [Broken("P1", "the rows are not those that were written")]
        claimed = oracles.Claims([self.rows], [self.letters], [None])
        broken = list(oracles.durable(len(found.rows), found.letters, claimed, 0))
        # It may have been written by another release, whose requests had other bytes.
        sent = {
            name: frozenset(record.event.sha256 for record in records if isinstance(record.event, RequestSent))
            for name, records in log.records.items()
        }
        judge.requests = {name: hashes | sent.get(name, frozenset()) for name, hashes in judge.requests.items()}
        ending = await judge.ending(self.files, found, self.number, self.done)
        return broken + ending.with_earlier(self.done)

    def save(self, path: str) -> None:
        """Write it to a new file."""
        content = {
            "workload": self.workload,
            "seed": self.seed,
            "number": self.number,
            "files": {name: base64.b64encode(zlib.compress(data, 9)).decode() for name, data in self.files.items()},
            "digests": list(self.digests),
            "rows": self.rows,
            "letters": self.letters,
            "done": [[fact.invocation_id, fact.tool, fact.effect, fact.arguments] for fact in self.done],
        }
        with open(path, "x", encoding="utf-8") as file:
            json.dump(content, file, indent=1)

    @classmethod
    def load(cls, path: str) -> Golden:
        """Read one. Raises `UsageError` when the file is none."""
        try:
            with open(path, encoding="utf-8") as file:
                content: Mapping[str, Any] = json.load(file)
            files = {name: zlib.decompress(base64.b64decode(text)) for name, text in content["files"].items()}
            return cls(**{**content, "files": files, "done": [Done(*fact) for fact in content["done"]]})
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            raise UsageError(f"{path}: is not what `flightlog fuzz --save` writes ({error})") from error


def _digests(rows: Sequence[oracles.Row]) -> list[str]:
    return [row[-1].hex()[:_DIGEST_CHARS] for row in rows]


def keep(golden: Golden, promise: str, folder: str) -> str:
    """Save `golden` in `folder` under a name of its own; returns where."""
    os.makedirs(folder, exist_ok=True)
    stem = "".join(char if char.isalnum() else "-" for char in f"{golden.workload[:_NAME_MAX_CHARS]}-{promise}").strip(
        "-"
    )
    number = 1
    while os.path.exists(path := os.path.join(folder, f"{stem}-{number}{SUFFIX}")):
        number += 1
    golden.save(path)
    return path
