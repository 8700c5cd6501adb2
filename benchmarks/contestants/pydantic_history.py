"""pydantic-ai: its message history, which a host writes as a whole after each message, as its documentation shows."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from contestants.step import NAME, Contestant, Pace, arguments, question, result


def messages(number: int) -> list[ModelMessage]:
    """The three messages of a step."""
    return [
        ModelRequest([UserPromptPart(question(number))]),
        ModelResponse([ToolCallPart(NAME, arguments(number), tool_call_id=f"call-{number}")]),
        ModelRequest([ToolReturnPart(NAME, result(number), tool_call_id=f"call-{number}")]),
    ]


def save(folder: Path, history: list[ModelMessage]) -> None:
    """Put the history in the place of the one before, durably."""
    with (folder / "new.json").open("wb") as file:
        file.write(ModelMessagesTypeAdapter.dump_json(history))
        file.flush()
        os.fsync(file.fileno())
    (folder / "new.json").replace(folder / "history.json")
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def run(folder: Path, pace: Pace) -> None:
    """Rewrite the history with each message, so that it can be resumed at every point."""
    history: list[ModelMessage] = []
    number = 0
    while pace.more():
        for message in messages(number):
            history.append(message)
            save(folder, history)
        number += 1


def resume(folder: Path) -> int:
    """Read the history."""
    found = ModelMessagesTypeAdapter.validate_json((folder / "history.json").read_bytes())
    steps = len(found) // 3
    parts = [message.parts[0] for message in found]
    assert [part.content for part in parts[::3]] == [question(number) for number in range(steps)]
    assert [part.args for part in parts[1::3]] == [arguments(number) for number in range(steps)]
    assert [part.content for part in parts[2::3]] == [result(number) for number in range(steps)]
    return steps


CONTESTANTS = {"pydantic-ai, history rewritten": Contestant(run, resume)}
