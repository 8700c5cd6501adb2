"""From a case to its checks, by the kind of plugin that it is about."""

from __future__ import annotations

from flightlog.testing.conformance.adapters import adapter_checks
from flightlog.testing.conformance.case import AdapterCase
from flightlog.testing.conformance.check import Check
from flightlog.testing.conformance.hooks import HookCase, hook_checks
from flightlog.testing.conformance.sections import SectionCase, section_checks
from flightlog.testing.conformance.subagents import SubagentCase, subagent_checks
from flightlog.testing.conformance.tools import ToolCase, tool_checks

Case = AdapterCase | ToolCase | SectionCase | HookCase | SubagentCase


def checks(case: Case) -> list[Check]:
    """Every check of `case`, one for each test that a runner should show."""
    match case:
        case AdapterCase():
            return list(adapter_checks(case))
        case ToolCase():
            return list(tool_checks(case))
        case SectionCase():
            return list(section_checks(case))
        case HookCase():
            return list(hook_checks(case))
        case SubagentCase():
            return list(subagent_checks(case))
