"""Facts: kept by name, bounded, and the same however the log they stand in is read again."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.facts import NO_FACTS, fitting, noted, unfit
from flightlog.core.forking import forked
from flightlog.core.limits import FACTS_MAX, FACTS_MAX_CHARS
from flightlog_hookspecs import Fact, ToolOutput
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import Record, SessionCreated, SessionOpened, ToolResult, TurnEnd
from support.legal_logs import LegalLog, folded, legal_logs

RESULT = ToolResult(position=0, call_id="c", name="n", message_seq=1, outcome="ok", content=text_blocks("fine"))
CREATED = SessionCreated(uid="f", origin_session="s", origin_uid="s", origin_turn=1)
OPENED = SessionOpened(pid=1, host="here", kernel_version="0")

names = st.sampled_from(["a", "b", "c", "d e", " ", "", "n" * 100, "n" * 101])
texts = st.text(max_size=3) | st.integers(0, FACTS_MAX_CHARS).map(lambda many: "x" * many)
facts = st.lists(st.builds(Fact, names, texts), max_size=4).map(tuple)
many = st.integers(0, FACTS_MAX + 2).map(lambda most: tuple(Fact(f"f{number}", "x") for number in range(most)))


@given(notes=st.lists(facts | many, max_size=6))
def test_whatever_is_noted_there_is_never_more_than_fits_and_what_does_not_fit_changes_nothing(
    notes: list[tuple[Fact, ...]],
) -> None:
    kept: dict[str, str] = {}
    state = NO_FACTS
    for new in notes:
        result = fitting(evolve(RESULT, facts=new), state)
        assert not unfit(state, result.facts)
        if result.facts != new:
            assert (result.outcome, result.facts) == ("error", ())
            assert "not noted" in result.text
        else:
            for fact in new:
                if fact.text:
                    kept[fact.name] = fact.text
                else:
                    kept.pop(fact.name, None)
        state = noted(state, result.facts)
        assert dict(state) == kept
        assert len(state) <= FACTS_MAX
        assert sum(len(name) + len(text) for name, text in state.items()) <= FACTS_MAX_CHARS


def test_what_is_full_takes_what_makes_room() -> None:
    full = noted(NO_FACTS, (Fact("a", "x" * (FACTS_MAX_CHARS - 1)),))
    assert "8001 characters" in unfit(full, (Fact("a", "x" * FACTS_MAX_CHARS),))
    assert unfit(full, (Fact("a", ""), Fact("b", "x" * (FACTS_MAX_CHARS - 1)))) == ""


def test_a_name_keeps_its_place_when_its_text_changes() -> None:
    state = noted(NO_FACTS, (Fact("a", "1"), Fact("b", "2")))
    assert list(noted(state, (Fact("a", "3"), Fact("c", "4"))).items()) == [("a", "3"), ("b", "2"), ("c", "4")]


def test_an_output_takes_facts_as_a_mapping_too() -> None:
    assert ToolOutput(content="x", facts={"a": "1"}).facts == (Fact("a", "1"),)


def said(records: tuple[Record, ...]) -> dict[str, str]:
    """What results note, one behind the other."""
    every: dict[str, str] = {}
    for record in records:
        if isinstance(record.event, ToolResult) and record.event.replaces is None:
            for fact in record.event.facts:
                every[fact.name] = fact.text
    return {name: text for name, text in every.items() if text}


@given(log=legal_logs())
def test_at_every_row_of_every_log_the_facts_are_those_that_results_have_noted(log: LegalLog) -> None:
    for cut in log.cuts:
        assert dict(folded(log.records[:cut]).facts) == said(log.records[:cut])


@given(log=legal_logs())
def test_a_fork_has_the_facts_of_the_turns_that_it_took_over(log: LegalLog) -> None:
    for end in [record for record in log.records if isinstance(record.event, TurnEnd)]:
        fork = forked(log.records, end.turn or 0, "f", CREATED, OPENED, 7)
        assert dict(folded(fork).facts) == said(log.records[: end.seq])
