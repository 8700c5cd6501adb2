"""The test of the tests: which planted bug dies in which layer, and after how many examples.

Run as a script (`make mutants`) it hunts each bug in its own layer and writes docs/planted-bugs.md; with --all,
in every other layer too, which takes an hour.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from inspect import getdoc
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import layers
from attrs import frozen
from layers import Finding, Layer, cancel, damage, io_errors, nested, owners, power_loss, rule
from planted import acting, deciding, owning, reading, saving, saying, shortening, working

PAGE = Path(__file__).parents[2] / "docs" / "planted-bugs.md"
SLACK = 3
"""A bug may take so many times its recorded examples: more, and the tests have become worse at finding it."""

Plant = Callable[[], AbstractContextManager[None]]


@frozen
class Bug:
    """A bug, the layer that is there to find it, on what, by which promises, and after how many examples it did."""

    plant: Plant
    layer: Layer
    where: str
    promises: str
    examples: int
    seed: int = 1

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def budget(self) -> int:
        """The most examples it may take."""
        return SLACK * self.examples + 10

    def hunt(self, seed: int, layer: Layer | None = None) -> Finding:
        """Plant it and look for it, in its own layer or another."""
        with self.plant():
            return (layer or self.layer)(self.where, seed)


BUGS = (
    Bug(saving.normal_everywhere, power_loss, "words", "P2 P3", 6),
    Bug(saving.normal_for_intents, power_loss, "tools", "P6", 21, seed=2),
    Bug(saving.normal_for_requests, power_loss, "words", "P6", 17),
    Bug(saving.normal_for_results, power_loss, "siblings", "P2", 167),
    Bug(saving.normal_for_letters, power_loss, "mailbox", "P2", 147),
    Bug(saving.acknowledged_before_the_commit, power_loss, "words", "P2", 9),
    Bug(saving.two_transactions_instead_of_one, power_loss, "words", "P3", 46),
    Bug(saving.witness_before_the_commit, power_loss, "words", "P3", 5),
    Bug(saving.slow_disk_not_waited_for, power_loss, "words", "P2 P3", 72),
    Bug(saving.believed_before_its_sync, power_loss, "words", "P2 P3", 104),
    Bug(saving.wal_cleaned_away_on_opening, power_loss, "words", "P2 P3", 9),
    Bug(acting.tool_before_its_intent, power_loss, "tools", "P6", 16),
    Bug(acting.repeated_after_a_crash, power_loss, "tools", "P5", 21),
    Bug(acting.run_again_unreconciled, power_loss, "continued", "P5", 18),
    Bug(acting.cut_off_call_told_to_be_safe, power_loss, "continued", "P5", 18),
    Bug(acting.invocation_ids_of_a_process, power_loss, "tools", "P5", 21),
    Bug(acting.result_held_behind_a_slow_sibling, power_loss, "siblings", "P2", 38),
    Bug(saying.claim_apart_from_its_message, power_loss, "words", "P3", 10),
    Bug(saying.letter_taken_before_what_it_brings, power_loss, "mailbox", "P2 P7", 28),
    Bug(saying.keys_known_from_memory_only, power_loss, "words", "P3 P7", 10),
    Bug(saying.half_a_stream_taken_for_an_answer, power_loss, "tools", "P4", 13),
    Bug(saying.last_piece_of_a_flush_lost, power_loss, "words", "P4", 1),
    Bug(saying.recovery_that_says_it_anew_each_time, power_loss, "words", "P4", 11),
    Bug(saying.settlement_apart_from_its_message, power_loss, "beside", "P7", 50),
    Bug(saying.child_given_its_task_when_it_was_said_to_have_started, power_loss, "beside", "P7", 10),
    Bug(working.submission_not_synced, power_loss, "orders", "P2 P3", 127),
    Bug(working.recovery_that_nobody_mentions, power_loss, "orders", "P4", 6),
    Bug(working.completed_turn_taken_for_an_interrupted_one, power_loss, "orders", "P4 P7", 57),
    Bug(working.precheck_skipped_on_resume, power_loss, "orders in a changing world", "P5", 20),
    Bug(shortening.replacements_one_by_one, power_loss, "a long book", "P4", 30),
    Bug(shortening.normal_for_summaries, power_loss, "a long book", "P6", 30),
    Bug(shortening.compaction_of_a_dead_owner_still_open, power_loss, "a long book as a task", "P3 P4 P7", 53),
    Bug(reading.snapshot_that_forgets, power_loss, "words", "P4", 121),
    Bug(saving.witness_of_what_a_killed_process_cached, nested, "cancelled", "P3", 67, seed=3),
    Bug(saying.words_under_the_last_owner_only, nested, "cancelled", "P4", 41, seed=4),
    Bug(saving.storage_error_swallowed, io_errors, "words", "P2 P3", 2),
    Bug(saving.failed_group_taken_for_durable, io_errors, "words", "P2 P3 P9", 2),
    Bug(saving.store_that_opens_itself_again, io_errors, "interleaved", "P9", 6),
    Bug(acting.tool_repeated_when_its_result_could_not_be_saved, io_errors, "tools", "P5 P9", 29),
    Bug(acting.result_let_go_when_it_could_not_be_saved, io_errors, "siblings", "P3 P9", 22, seed=3),
    Bug(acting.result_saved_a_moment_later, io_errors, "interleaved", "P2", 21),
    Bug(reading.bad_row_skipped, damage, "tools", "P1 P2", 23),
    Bug(reading.chain_not_compared, damage, "tools", "P1", 2),
    Bug(reading.witness_not_asked, damage, "tools", "P2", 1),
    Bug(owning.fenced_writer_goes_on, owners, "tools", "P1 P3", 1),
    Bug(owning.refused_append_acknowledged, owners, "tools", "P1 P3", 1),
    Bug(owning.session_opened_without_its_lock, owners, "tools", "P1", 1),
    Bug(acting.cancelled_write_told_to_be_safe, cancel, "siblings", "P5", 9),
    Bug(acting.cancelled_turn_left_open, cancel, "tools", "P4 P7", 1),
    Bug(shortening.cancelled_compaction_left_open, cancel, "a long book", "P3", 19),
    Bug(
        deciding.cut_stream_taken_for_success,
        rule,
        "core/test_assembler.py::test_an_attempt_that_is_no_full_answer_fails",
        "rule",
        1,
    ),
    Bug(
        deciding.only_the_first_open_call_answered,
        rule,
        "core/test_repair.py::test_every_legal_log_cut_anywhere_is_closed_legally",
        "rule",
        20,
    ),
    Bug(
        deciding.keys_of_json_sorted,
        rule,
        "core/test_canonical_json.py::test_every_json_value_comes_back_as_it_was",
        "rule",
        24,
    ),
    Bug(
        deciding.exclusive_call_beside_others,
        rule,
        "core/test_schedule.py::test_any_batch_runs_to_its_end_in_bounds_and_without_overtaking",
        "rule",
        8,
    ),
    Bug(
        deciding.whole_queue_in_one_turn,
        rule,
        "core/test_plan.py::test_a_turn_opens_with_all_that_was_injected_and_one_followup",
        "rule",
        1,
    ),
    Bug(
        shortening.steps_to_keep_replaced_too,
        rule,
        "core/test_fitting.py::test_what_is_replaced_is_whole_steps_outside_of_the_open_one_and_of_those_to_keep",
        "rule",
        6,
    ),
    Bug(
        shortening.preamble_of_calls_taken_for_a_summary,
        rule,
        "core/test_fitting.py::test_only_a_whole_answer_that_says_something_calls_nothing_and_saves_tokens_is_a_summary",
        "rule",
        15,
    ),
)

CROSSED = (power_loss, nested, io_errors, damage, owners, cancel)
"""The layers that every bug can be tried in: a rule has a test of its own."""

REAL_KILLS = (
    "| real kills | kills processes at boundaries and at random times, in recoveries too | "
    "no bug needs them: they prove that the laboratory's disk is the real one, byte for byte |"
)

HEAD = """# Planted bugs

<!-- Written by `make mutants`; do not edit. -->

Each of these bugs is planted in the real kernel, one at a time, and must die in the layer that is there for it
(bold) by the promise that it breaks: `tests/faults/test_planted_bugs.py`. A number is how many examples that
took; a dash says that the layer did not find it. A bug that takes three times as many as written here fails the
tests: they have become worse. Where nothing stands it was not tried.
What the promises say stands in [faults.md](faults.md).

"""


def rows_of(findings: Mapping[tuple[str, str], Finding]) -> list[str]:
    """One row per bug, given what was found by bug and layer."""
    rows = []
    for bug in BUGS:
        cells = []
        for layer in layers.LAYERS:
            found = findings.get((bug.name, layer.__name__))
            cell = "" if found is None else str(found.examples) if found.promise else "-"
            cells.append(f"**{cell}**" if layer is bug.layer else cell)
        own = findings.get((bug.name, bug.layer.__name__), Finding(0))
        named = bug.layer.__name__.replace("_", " ")
        rows.append(f"| {bug.title} | {named} | {own.promise} | {' | '.join(cells)} |")
    return rows


def page(findings: Mapping[tuple[str, str], Finding]) -> str:
    """docs/planted-bugs.md."""
    names = [layer.__name__.replace("_", " ") for layer in layers.LAYERS]
    lines = [f"| bug | dies in | breaks | {' | '.join(names)} |", "|---|---|---" + "|---:" * len(names) + "|"]
    lines += rows_of(findings)
    lines += ["", "What each does:", ""]
    lines += [f"- **{bug.title}**: {getdoc(bug.plant)}" for bug in BUGS]
    lines += ["", "## Layers", "", *(line for line in (layers.__doc__ or "").splitlines() if line.startswith("|"))]
    lines.append(REAL_KILLS)
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    findings = {}
    for bug in BUGS:
        for layer in CROSSED if "--all" in sys.argv and bug.layer is not rule else (bug.layer,):
            crossed = layer is not bug.layer
            where = "tools" if crossed and layer is owners else bug.where
            with bug.plant():
                try:
                    found = layer(where, bug.seed)
                except Exception as error:  # the unbroken run is broken already: any test of a turn finds it
                    found = Finding(1, "run", repr(error))
            findings[bug.name, layer.__name__] = found
            print(f"{bug.name:55} {layer.__name__:12} {found.promise or '-':4} {found.examples}", flush=True)  # noqa: T201
    PAGE.write_text(page(findings))


if __name__ == "__main__":
    main()
