from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import flightlog
import pytest
from flightlog.pytest_plugin import CrashEverywhere
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance import Check, ToolCase, checks
from flightlog.testing.faults import script_of
from flightlog_hookspecs import ToolResult

from flightlog_payments import payments

BOOKS = Path(tempfile.mkdtemp(prefix="payments-")) / "payments.db"
CRASHES = int(os.environ.get("CRASHES", "50"))


def paid(path: Path = BOOKS) -> list[tuple[object, ...]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as books:
        return books.execute("SELECT payee, cents FROM payments").fetchall()


CASE = ToolCase(
    tool=payments(str(BOOKS)),
    arguments=[{"order": "A1", "cents": 500}, {"order": "A2", "cents": 1}],
    refused=[{"order": "A1", "cents": 0}, {"order": "A1", "cents": "much"}],
    world=paid,
)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_tools(check: Check) -> None:
    check()


def test_it_survives_every_crash(crash_everywhere: CrashEverywhere, tmp_path: Path) -> None:
    tool = payments(str(tmp_path / "payments.db"))
    orders = [{"order": f"A{number}", "cents": number} for number in range(1, max(4, CRASHES // 300))]
    crash_everywhere(script_of(tool, *orders), points=CRASHES, nested=CRASHES // 50, faults=CRASHES // 50)


def test_a_model_can_use_it_once_it_is_installed(log_on_disk: Path, tmp_path: Path) -> None:
    model = FakeModel([calls(("pay", {"order": "A1", "cents": 500})), words("Paid.")])
    with (
        flightlog.sync.open_kernel(
            log_on_disk, discover=["payments"], plugins=[Bundle(adapters=[model])], workspace=tmp_path
        ) as kernel,
        kernel.session("s", model="fake:model") as session,
    ):
        session.followup("Pay 5 euros for A1.")
        turn = session.run()
        (result,) = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert turn is not None and turn.text == "Paid."
    assert (result.outcome, result.text) == ("ok", "paid 500 cents for A1")
    assert paid(tmp_path / "payments.db") == [("A1", 500)]
    model.assert_all_played()
