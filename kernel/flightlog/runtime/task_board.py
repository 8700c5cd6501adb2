"""The tasks of a file that have not ended, as far as the file has come: read once, then only what is new."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import evolve

from flightlog.core.claims import Candidate, Queue, Shares
from flightlog.core.task import ENDED
from flightlog.runtime.ownership import is_driven
from flightlog.store.store import Store
from flightlog_hookspecs.events import TaskClass, TaskStateName


class TaskBoard:
    """What a worker may take up. A look at a file in which nothing is new costs two reads of one row."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue = Queue()
        self._event, self._letter = -1, 0

    def first(
        self, now_us: int, count: int, shares: Shares, full: Collection[TaskClass], crowded: Collection[TaskClass]
    ) -> list[Candidate]:
        """The `count` tasks that are to be taken up first at `now_us`. See `Queue.first`."""
        return self._queue.first(now_us, count, shares, full, crowded)

    def under_way(self) -> Mapping[TaskClass, frozenset[int]]:
        """The numbers of the tasks of each class that somebody works on, in any process."""
        running = self._queue.running()
        return {each: frozenset(n for n in numbers if is_driven(self._store, n)) for each, numbers in running.items()}

    def look(self) -> bool:
        """Read what is new. True when there was anything."""
        event, letter = self._store.read("last_id")[0][0], self._store.read("last_letter")[0][0]
        if (event, letter) == (self._event, self._letter):
            return False
        if self._event < 0:
            for row in self._store.read("tasks_open"):
                self._add(*row)  # all letters are read below
        elif event != self._event:
            self._read_on(event)
        if letter != self._letter:
            self._read_letters(letter)
        self._event, self._letter = event, letter
        return True

    def look_at_letters(self, candidate: Candidate) -> Candidate:
        """`candidate`, and whether letters to it still wait. What has woken it, whoever takes it up now looks at."""
        if candidate.letters or candidate.woken:
            letters = candidate.letters and self._has_letters(candidate.number, candidate.name)
            self._queue.put(evolve(candidate, letters=letters, woken=False))
            candidate = evolve(candidate, letters=letters)
        return candidate

    def _read_on(self, event: int) -> None:
        for row in self._store.read("tasks_since", self._event, event):
            key, name, kind, state, task_class, model, max_steps, due_us = row
            if kind == "task/submitted":
                waits = self._has_letters(key, name)  # it may have been written to before it was there
                self._add(key, name, "pending", task_class, model, max_steps, due_us, letters=waits)
            elif kind == "task/state" and state in ENDED:
                self._queue.drop(key)
            elif (there := self._queue.get(key)) is None:
                pass
            elif kind == "task/state":
                self._queue.put(evolve(there, state=state, due_us=due_us, woken=False))
            elif there.state == "paused":
                self._queue.put(evolve(there, woken=True))

    def _add(
        self,
        key: int,
        name: str,
        state: TaskStateName,
        task_class: TaskClass,
        model: str,
        max_steps: int,
        due_us: int | None,
        woken: int | None = 0,
        *,
        letters: bool = False,
    ) -> None:
        task = Candidate(
            number=key,
            name=name,
            task_class=task_class,
            model=model,
            max_steps=max_steps,
            state=state,
            due_us=due_us,
            letters=letters,
            woken=bool(woken),
        )
        self._queue.put(task)

    def _has_letters(self, key: int, name: str) -> bool:
        return bool(self._store.read("has_letters", key, name)[0][0])

    def _read_letters(self, letter: int) -> None:
        written_to = {name for (name,) in self._store.read("letters_since", self._letter, letter)}
        for task in [task for task in self._queue.all() if task.name in written_to] if written_to else ():
            self._queue.put(evolve(task, letters=True))
