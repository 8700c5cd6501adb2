"""LangGraph with its SQLite saver: a list with a reducer, and its DeltaChannel, an invocation per step and one in all.

`durability="sync"`: a step's checkpoint is written before the next one begins.
"""

from __future__ import annotations

import json
import operator
import sqlite3
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from contestants.step import NAME, Contestant, Pace, arguments, question, result

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "s"}, "recursion_limit": 1_000_000}


def joined(messages: list[Any], added: list[list[Any]]) -> list[Any]:
    """All messages: the reducer of the DeltaChannel, which is given all writes at once."""
    return [*messages, *(message for one in added for message in one)]


class Listed(TypedDict):
    """The usual state: each checkpoint holds all messages."""

    messages: Annotated[list[Any], operator.add]


class Delta(TypedDict):
    """The state of which checkpoints hold what is new, and now and then all."""

    messages: Annotated[list[Any], DeltaChannel(joined)]


def user(state: Any) -> dict[str, Any]:
    """Ask."""
    return {"messages": [HumanMessage(question(len(state["messages"]) // 3))]}


def model(state: Any) -> dict[str, Any]:
    """Answer with a call."""
    number = len(state["messages"]) // 3
    call = {"id": f"call-{number}", "name": NAME, "args": json.loads(arguments(number))}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def tools(state: Any) -> dict[str, Any]:
    """Carry out the call."""
    number = len(state["messages"]) // 3
    return {"messages": [ToolMessage(result(number), tool_call_id=f"call-{number}")]}


def saver(folder: Path) -> SqliteSaver:
    """The saver of a file in `folder`."""
    return SqliteSaver(sqlite3.connect(folder / "graph.db", check_same_thread=False))


def graph(state: type, folder: Path) -> Any:
    """The rest of a step whose question is given: answer, result."""
    builder = StateGraph(state)
    for node in (model, tools):
        builder.add_node(node.__name__, node)
    for start, end in ((START, "model"), ("model", "tools"), ("tools", END)):
        builder.add_edge(start, end)
    return builder.compile(checkpointer=saver(folder))


def run(folder: Path, pace: Pace, *, state: type) -> None:
    """An invocation per step."""
    app = graph(state, folder)
    number = 0
    while pace.more():
        app.invoke({"messages": [HumanMessage(question(number))]}, CONFIG, durability="sync")
        number += 1


def endless(folder: Path, pace: Pace) -> Any:
    """A graph that goes round until it is killed."""

    def asked(state: Any) -> dict[str, Any]:
        assert pace.more()  # not on an edge: there the result before it is not durable yet
        return user(state)

    builder = StateGraph(Delta)
    for name, node in (("user", asked), ("model", model), ("tools", tools)):
        builder.add_node(name, node)
    for start, end in ((START, "user"), ("user", "model"), ("model", "tools"), ("tools", "user")):
        builder.add_edge(start, end)
    return builder.compile(checkpointer=saver(folder))


def run_in_one(folder: Path, pace: Pace) -> None:
    """One invocation, in which the graph goes round."""
    endless(folder, pace).invoke({"messages": []}, CONFIG, durability="sync")


def resume(folder: Path, *, state: type) -> int:
    """Read the state."""
    return whole_steps(graph(state, folder))


def resume_in_one(folder: Path) -> int:
    """Read the state."""
    return whole_steps(endless(folder, Pace()))


def whole_steps(app: Any) -> int:
    """How many steps the messages are. Fails unless they are those that were written."""
    found = app.get_state(CONFIG).values["messages"]
    numbers = range(len(found) // 3)
    assert [message.content for message in found[::3]] == [question(number) for number in numbers]
    assert [message.tool_calls[0]["args"] for message in found[1::3]] == [
        json.loads(arguments(number)) for number in numbers
    ]
    assert [message.content for message in found[2::3]] == [result(number) for number in numbers]
    return len(found) // 3


CONTESTANTS = {
    "LangGraph, list reducer": Contestant(partial(run, state=Listed), partial(resume, state=Listed)),
    "LangGraph, DeltaChannel": Contestant(partial(run, state=Delta), partial(resume, state=Delta)),
    "LangGraph, DeltaChannel in one run": Contestant(run_in_one, resume_in_one),
}
