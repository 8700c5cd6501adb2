"""The contract between flightlog and its plugins: vocabulary and hooks. Imports attrs and pluggy only."""

from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.content import Block, BlockType, TextBlock, ThinkingBlock, ToolCallBlock, text_blocks, text_of
from flightlog_hookspecs.events import AssistantMessage, Head, Message, ToolResult, ToolSpec, UserMessage
from flightlog_hookspecs.hooks import Allow, Ask, Deny, Hook, ProposedCall, Verdict
from flightlog_hookspecs.markers import CONTRACT_VERSION, PROJECT, hookimpl, hookspec
from flightlog_hookspecs.prompt import PromptSection
from flightlog_hookspecs.stream import (
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from flightlog_hookspecs.tools import Effect, Isolation, Mode, Outcome, Tool, ToolContext, ToolOutput, tool

__all__ = [
    "CONTRACT_VERSION",
    "PROJECT",
    "Adapter",
    "Allow",
    "Ask",
    "AssistantMessage",
    "Block",
    "BlockEnd",
    "BlockEvent",
    "BlockStart",
    "BlockType",
    "Deny",
    "Effect",
    "Finish",
    "FinishReason",
    "Head",
    "Hook",
    "Isolation",
    "Message",
    "Mode",
    "Outcome",
    "PromptSection",
    "ProposedCall",
    "Request",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingDelta",
    "Tool",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolContext",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "Verdict",
    "hookimpl",
    "hookspec",
    "text_blocks",
    "text_of",
    "tool",
]
