"""The suite finds what it is there to find: each tool with one fault breaks the rule of that fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog.testing.conformance import Broken, ToolCase, checks, tools
from flightlog_hookspecs import Tool, ToolContext, tool
from flightlog_hookspecs.errors import ToolError
from support.stock import left, new_shop

SHELF: dict[str, str] = {}
"""What the tools change."""
BLOCKED = threading.Event()
"""What a thread waits for that nobody ends; set when the tests are over."""


@pytest.fixture(autouse=True)
def empty_shelf() -> None:
    SHELF.clear()


@pytest.fixture(scope="module", autouse=True)
def release() -> Any:
    yield
    BLOCKED.set()


def shelf() -> dict[str, str]:
    return dict(SHELF)


def put_well(context: ToolContext, book: str) -> str:
    """Put a book on the shelf.

    Args:
        context: the call
        book: its title
    """
    if not book:
        raise ToolError("a book has a title")
    SHELF.setdefault(context.invocation_id, book)
    return f"{book} is on the shelf"


@tool(effect="idempotent")
async def put(context: ToolContext, book: str) -> str:
    """Put a book on the shelf.

    Args:
        context: the call
        book: its title, or "slow" for one that never gets there
    """
    if book == "slow":
        await trio.sleep_forever()
    return put_well(context, book)


def in_process(sides: int) -> int:
    """Roll a die.

    Args:
        sides: how many it has
    """
    return sides


def case(put: Tool, **changes: Any) -> ToolCase:
    given: dict[str, Any] = {
        "arguments": [{"book": "Emma"}, {"book": "Ulysses"}],
        "refused": [{"book": ""}, {"book": 7}],
        "slow": {"book": "slow"},
        "world": shelf,
        "patience_s": 0.3,
    }
    return ToolCase(tool=put, **given | changes)


@pytest.mark.parametrize("check", checks(case(put, patience_s=30.0)), ids=str)
def test_a_tool_without_a_fault_keeps_all_rules(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
def test_it_may_run_anywhere(isolation: Any) -> None:
    rolled = Tool(body=in_process, effect="read", isolation=isolation)
    for check in checks(ToolCase(tool=rolled, arguments=[{"sides": 6}], world=shelf)):
        check()


def test_only_what_a_case_says_something_about_is_checked() -> None:
    rules = [check.rule for check in checks(ToolCase(tool=put, arguments=[{"book": "Emma"}]))]
    assert rules == ["schema", "output", "refused"]
    assert [str(check) for check in checks(case(put))][-1] == "put-cut-off"


def book(**about: object) -> Mapping[str, object]:
    return {
        "type": "object",
        "properties": {"book": {"type": "string", "description": "its title", **about}},
        "required": ["book"],
        "additionalProperties": False,
    }


def undescribed(book: str) -> None:
    """Put a book on the shelf."""


def never(book: str) -> str:
    raise ValueError("no")


def counts_twice(context: ToolContext, book: str) -> None:
    SHELF[f"{context.invocation_id} {len(SHELF)}"] = book


def changes(book: str) -> None:
    SHELF["read"] = book


def checks_late(book: str) -> None:
    SHELF["last"] = book
    if not book:
        raise ToolError("a book has a title")


def falls_over(book: str) -> None:
    if not book:
        raise IndexError("string index out of range")


def waits(book: str) -> None:
    if book == "slow":
        BLOCKED.wait()


async def holds_on(book: str) -> None:
    if book == "slow":
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(BLOCKED.wait)


async def quick(book: str) -> None:
    pass


def of(body: Callable[..., object], **about: Any) -> Tool:
    return Tool(
        body=body, **{"name": "odd", "description": "Put a book.", "parameters": book(), "effect": "idempotent"} | about
    )


def empty(**anything: object) -> int:
    return 0


async def sleeps(book: str) -> None:
    await trio.sleep_forever()


def rebound() -> Tool:
    def roll() -> int:
        return 6

    roll.__module__, roll.__qualname__ = __name__, "empty"
    return of(roll, parameters={"type": "object"}, isolation="process")


@pytest.mark.parametrize(
    ("bad", "check", "rule"),
    [
        (of(never, parameters={"type": "array"}), "schema", tools.SCHEMA),
        (of(never, parameters={**book(), "anyOf": [{}]}), "schema", tools.SCHEMA),
        (of(never, parameters={"type": "object", "properties": {"a b": {}}}), "schema", tools.SCHEMA),
        (Tool(body=undescribed), "schema", tools.DESCRIBED),
        (of(never), "output", tools.WELL),
        (of(sleeps), "output", tools.WELL),
        (of(sleeps), "effect", tools.WELL),
        (of(lambda book: "x" * 40_000), "output", tools.BOUNDED),
        (of(put_well, parameters={**book(), "additionalProperties": True}), "refused", tools.REFUSED),
        (of(put_well, parameters={**book(), "required": []}), "refused", tools.REFUSED),
        (of(lambda book: "taken"), "refused", tools.REFUSED),
        (of(falls_over), "refused", tools.REFUSED),
        (of(checks_late), "refused", tools.REFUSED),
        (of(changes, effect="read"), "effect", tools.READ),
        (of(counts_twice), "effect", tools.IDEMPOTENT),
        (of(waits), "cut-off", tools.CUT_OFF),
        (of(holds_on), "cut-off", tools.CUT_OFF),
        (of(quick), "cut-off", tools.CUT_OFF),
        (rebound(), "by-name", tools.BY_NAME),
        (of(lambda book: "x", isolation="process"), "by-name", tools.BY_NAME),
    ],
    ids=lambda value: value.body.__name__ if isinstance(value, Tool) else None,
)
def test_a_tool_with_a_fault_breaks_the_rule_of_that_fault(bad: Tool, check: str, rule: str) -> None:
    patience_s = 30.0 if check == "by-name" else 0.3  # a process takes its time to start
    (of_rule,) = [each for each in checks(case(bad, patience_s=patience_s)) if each.rule == check]
    with pytest.raises(Broken) as caught:
        of_rule()
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"{rule}: ")


def test_an_output_is_bounded_by_what_its_author_says() -> None:
    (output,) = [each for each in checks(case(put, output_max_chars=10)) if each.rule == "output"]
    with pytest.raises(Broken, match="brings 20 characters, and 10 characters are shown"):
        output()


def test_a_case_without_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="tool 'put': give the arguments of a call that goes well"):
        ToolCase(tool=put, arguments=[])


def test_a_transactional_tool_keeps_the_rules_and_is_cut_off_by_the_kernel(tmp_path: Path) -> None:
    shop = new_shop(tmp_path / "shop.db")

    def sell(context: ToolContext, item: str) -> str:
        """Sell one.

        Args:
            context: the call
            item: what to sell
        """
        if not context.database.execute("UPDATE stock SET count = count - 1 WHERE item = ? RETURNING 1", (item,)):
            raise ToolError("there are apples and pears")
        return f"{item} sold"

    case = ToolCase(
        tool=Tool(body=sell, effect="transactional", database=shop),
        arguments=[{"item": "apple"}, {"item": "pear"}],
        refused=[{"item": "plum"}],
        world=lambda: left(shop),
        slow={"item": "apple"},
    )
    found = checks(case)
    for check in found:
        check()
    assert "cut-off" not in map(str, found)
    assert left(shop) == 99
