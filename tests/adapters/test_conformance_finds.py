"""The suite finds what it is there to find: each adapter with one fault breaks the rule of that fault."""

from __future__ import annotations

import pytest

from flightlog.testing.conformance import Broken, Check, Recording, checks, encoding, refusals, streams
from flightlog.testing.conformance.bench import BLOCK_PROTOCOL, EVERY_FAILURE, LEAVES_NOTHING, ONE_REQUEST, RIGHT_ANSWER
from flightlog_hookspecs import TextBlock
from support import plain_adapter as plain

PATIENCE_S = 0.2
"""Only what hangs waits for it."""


@pytest.mark.parametrize("check", checks(plain.case(plain.Lines)), ids=str)
def test_an_adapter_without_a_fault_keeps_all_rules(check: Check) -> None:
    check()


@pytest.mark.parametrize(
    ("adapter", "check", "rule", "frame"),
    [
        (plain.YieldsAllAtTheEnd, "streaming", streams.STREAMING, 0),
        (plain.TakesACutForTheEnd, "broken-off", streams.NEVER_WRONG, 1),
        (plain.TakesACutForTheEnd, "cut-anywhere", streams.NEVER_WRONG, 1),
        (plain.EncodesByACount, "encode", encoding.PURE, None),
        (plain.EncodesWhatItSawFirst, "encode", encoding.PURE, None),
        (plain.RaisesItsOwnErrors, "broken-off", EVERY_FAILURE, 0),
        (plain.NeverHangsUp, "left", streams.HANGS_UP, None),
        (plain.NeverHangsUp, "stalled", streams.CANCEL, 0),
        (plain.FinishesBeforeTheLastBlock, "answer", BLOCK_PROTOCOL, None),
        (plain.ForgetsWords, "answer", BLOCK_PROTOCOL, None),
        (plain.CountsBelowZero, "answer", BLOCK_PROTOCOL, None),
        (plain.CountsTwice, "answer", RIGHT_ANSWER, None),
        (plain.SendsMoreThanItsFragments, "sent", encoding.FRAGMENTS, None),
        (plain.RewritesWhatItSent, "sent", encoding.APPEND_ONLY, None),
        (plain.GivesUpWhenTheConnectionBreaks, "broken-off", streams.RETRYABLE, 0),
        (plain.HasOneKindForAll, "refused", refusals.STATUS, None),
        (plain.NeverWaits, "refused", refusals.RETRY_AFTER, None),
        (plain.RetriesByItself, "refused", ONE_REQUEST, None),
        (plain.LeavesATask, "answer", LEAVES_NOTHING, None),
        (plain.HasAnotherName, "name", encoding.NAME, None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_adapter_with_a_fault_breaks_the_rule_of_that_fault(
    adapter: type[plain.Lines], check: str, rule: str, frame: int | None
) -> None:
    (of_rule,) = [each for each in checks(plain.case(adapter, PATIENCE_S)) if each.rule == check]
    with pytest.raises(Broken) as caught:
        of_rule()
    assert (caught.value.rule, caught.value.frame) == (rule, frame)
    assert str(caught.value).startswith(f"{rule}: ")


def test_what_never_streamed_is_shown_with_its_frame_and_its_words() -> None:
    (streaming,) = [
        each for each in checks(plain.case(plain.YieldsAllAtTheEnd, PATIENCE_S)) if each.rule == "streaming"
    ]
    with pytest.raises(Broken, match=r"recording 'two-words', frame 0, it brings 'Good'; .*, '' had come of 'Good'"):
        streaming()


def test_a_recording_that_could_prove_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'x': no frame brings words"):
        Recording(name="x", frames=[b"end\n"], content=(TextBlock(text="Hi."),))
    with pytest.raises(ValueError, match="'x': give the content of the answer, or the kind of the failure"):
        Recording(name="x", frames=[b"end\n"])
