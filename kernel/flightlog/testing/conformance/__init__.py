"""The rules of an adapter as tests of yours: what is sent, what is received, and that streaming is real.

    CASE = AdapterCase(
        name="mine",
        adapter=MyAdapter,
        model="m",
        recordings=[Recording(name="short", frames=[Frame(b"...", "Hi"), b"..."], content=(TextBlock(text="Hi"),))],
    )

    @pytest.mark.parametrize("check", checks(CASE), ids=str)
    def test_my_adapter_keeps_the_rules(check):
        check()

Each check serves the recordings on the loopback, frame by frame, and raises `Broken` with the rule and the
frame. Nothing measures time: a frame is sent when the words of those before it have been yielded.
"""

from flightlog.testing.conformance.case import AdapterCase, Broken, Frame, Recording
from flightlog.testing.conformance.checks import Check, checks

__all__ = ["AdapterCase", "Broken", "Check", "Frame", "Recording", "checks"]
