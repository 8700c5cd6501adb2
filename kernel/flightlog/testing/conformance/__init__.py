"""The rules that plugins are held to, as tests of yours: for adapters, tools, prompt sections, hooks and subagents.

    CASE = ToolCase(tool=roll, arguments=[{"sides": 6}], refused=[{"sides": 1000}])

    @pytest.mark.parametrize("check", checks(CASE), ids=str)
    def test_my_tool_keeps_the_rules(check):
        check()

`checks` takes a case of any kind and returns a list of functions. Each raises `Broken` with the rule and what broke
it. Nothing measures time: only what hangs is waited for.
"""

from flightlog.testing.conformance.case import AdapterCase, Frame, Recording
from flightlog.testing.conformance.check import Broken, Check
from flightlog.testing.conformance.checks import Case, checks
from flightlog.testing.conformance.hooks import HookCase
from flightlog.testing.conformance.sections import SectionCase
from flightlog.testing.conformance.subagents import SubagentCase
from flightlog.testing.conformance.tools import ToolCase

__all__ = [
    "AdapterCase",
    "Broken",
    "Case",
    "Check",
    "Frame",
    "HookCase",
    "Recording",
    "SectionCase",
    "SubagentCase",
    "ToolCase",
    "checks",
]
