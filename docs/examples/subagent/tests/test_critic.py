from __future__ import annotations

from flightlog.pytest_plugin import KernelWith

from flightlog_critic import CRITIC


def test_it_is_offered_once_it_is_installed(kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["critic"])
    assert kernel.registry.problems == []
    offered = [subagent for offer in kernel.registry.offers for subagent in offer.subagents]
    assert offered == [CRITIC.name]
