from __future__ import annotations

from flightlog.pytest_plugin import KernelWith

from flightlog_my_plugin import MY_PLUGIN


def test_it_is_offered_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["my-plugin"])
    assert kernel.registry.problems == []
    offered = [subagent for offer in kernel.registry.offers for subagent in offer.subagents]
    assert offered == [MY_PLUGIN.name]
