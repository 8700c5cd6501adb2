"""One event of each of a few kinds, the same for tests that only want to have one."""

from __future__ import annotations

from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import AssistantMessage, ContextBuilt, RequestSent, SessionOpened, ToolCall

OPENED = SessionOpened(pid=1, host="h", kernel_version="0")
BUILT = ContextBuilt(attempt=1, model="a:m", tokens=90, head_tokens=10, messages=1)
SENT = RequestSent(attempt=1, header_seq=8, messages=1, sha256="")
SAID = AssistantMessage(attempt=1, content=text_blocks("hello"), finish="stop")
CALL = ToolCall(
    position=0,
    call_id="c1",
    name="look",
    arguments="{}",
    invocation_id="u.1.1.0",
    message_seq=10,
    mode="parallel",
    effect="read",
    plugin="p",
    plugin_version="1",
)
