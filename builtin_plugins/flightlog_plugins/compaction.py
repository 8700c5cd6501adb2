"""Long conversations stay within the model's window: old results become one line each, then a summary takes over.

The compactor `compaction`, and the tool `look_back`, by which the model reads again what was left out. Nothing is lost:
what was replaced stays in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import (
    AssistantMessage,
    Compactor,
    FileBlock,
    Message,
    Tool,
    ToolCallBlock,
    ToolContext,
    ToolResult,
    hookimpl,
)
from flightlog_hookspecs.errors import ToolError

__all__ = ["INSTRUCTION", "look_back", "register_compactors", "register_tools"]

SHOWN_MAX_CHARS: Final = 8000
"""As much of a message is shown at a time."""

INSTRUCTION: Final = """\
This conversation has become too long, so what was said so far will be replaced by the summary that you write now. \
Do not go on with the work and call no tools: only write the summary, for yourself, so that you can go on from it alone.

Say, as briefly as you can and without leaving out what is still needed:
1. the goal, in the user's own words, and everything the user asked for or ruled out;
2. what was done, and what came of it: facts, files changed, names, paths, numbers and errors exactly as they were;
3. what was decided and why, and what was tried in vain;
4. what is under way right now, and what comes next."""

NOTE: Final = "look_back(message) shows what stood there."


async def look_back(context: ToolContext, message: int, start: int = 0) -> str:
    """Read again what was left out of this conversation, message by message.

    Args:
        context: the call
        message: its number; the first message of the conversation is 1
        start: the character to begin at, for long messages

    """
    assert context.past is not None, "the body is async and runs on the kernel's thread"
    found = context.past.message(message)
    if found is None:
        raise ToolError(f"There is no message {message}.")
    text = _text(found)
    start = max(start, 0)
    end = start + SHOWN_MAX_CHARS
    more = f"\n[{len(text) - end} more characters: look_back({message}, start={end})]" if len(text) > end else ""
    return f"[message {message}, {_who(found)}]\n{text[start:end]}{more}"


def _who(message: Message) -> str:
    match message:
        case AssistantMessage():
            return "you"
        case ToolResult():
            return f"result of {message.name}: {message.outcome}"
        case _:
            return message.source


def _text(message: Message) -> str:
    calls = [
        f"[called {block.name} with {block.arguments}]" for block in message.content if isinstance(block, ToolCallBlock)
    ]
    files = [f"[the {block.label}]" for block in message.content if isinstance(block, FileBlock)]
    return "\n".join([*([message.text] if message.text else []), *files, *calls])


@hookimpl
def register_compactors(register: Callable[[Compactor], None]) -> None:
    """Offer it."""
    register(Compactor(name="compaction", instruction=INSTRUCTION, note=NOTE))


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the way back."""
    register(Tool(body=look_back, mode="parallel", effect="read"))
