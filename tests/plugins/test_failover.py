"""Failover: to the next model when one fails, never in a circle, and back once the first has rested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Kernel, Limits, tool
from flightlog.cli.timeline import described
from flightlog.errors import PluginError, UsageError
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, FailedRequest, Failure, Hook, Request, StepView, Switch, hooks
from flightlog_hookspecs.errors import FailureKind, ProviderError
from flightlog_hookspecs.events import PluginFault, RequestHeader, RequestRetry, StepStart
from flightlog_plugins.failover import PASSING, Failover
from support.kernels import RETRY, events_of, verified

LIST = ("a:x", "b:y", "c:z")
ASSORTED = st.sampled_from(LIST)


@define
class Flaky(FakeModel):
    """A model that fails as it is told to, then answers. `asked` counts the requests."""

    failing: list[ProviderError] = field(factory=list, kw_only=True)
    asked: int = field(default=0, init=False)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        self.asked += 1
        if self.failing:
            raise self.failing.pop(0)
        async with FakeModel.stream(self, request, attempt) as events:
            yield events


def busy(times: int, kind: FailureKind = "overloaded", wish: float | None = None) -> list[ProviderError]:
    return [ProviderError(kind, "planted", retry_after_s=wish) for _ in range(times)]


@tool(mode="parallel", effect="read")
async def look() -> str:
    """Look."""
    return "seen"


TALK = [calls(("look", {})), words("Done.")]


@define
class Stage:
    """Three models on which everything may fail, and a failover between them, in virtual time."""

    kernel: Kernel
    path: Path
    models: dict[str, Flaky]

    def served(self) -> list[str]:
        """Which model each request of the session went to, in order of the log."""
        with flightlog.open_log(self.path, discover=False) as log:
            rows = log.query("SELECT h.name FROM events e JOIN events h ON h.session = e.session AND h.seq = e.ref_seq "
                             "WHERE e.kind = 'request/sent' ORDER BY e.id")  # fmt: skip
        return [name[0] for (name,) in rows.rows]

    def verified(self) -> int:
        return verified(self.path, *self.models.values())


@asynccontextmanager
async def stage(tmp_path: Path, *plugins: object, replies: Sequence[Any] = TALK * 9) -> AsyncIterator[Stage]:
    path = tmp_path / "a.db"
    models = {name: Flaky(replies, name) for name in "abc"}
    bundle = Bundle(adapters=models.values(), tools=[look])
    async with flightlog.open_kernel(path, discover=False, plugins=[bundle, *plugins]) as kernel:
        yield Stage(kernel, path, models)


def failover(models: Iterable[str] = LIST, **options: Any) -> Failover:
    """One that goes by trio's clock and leaves nothing to chance."""
    return Failover(list(models), **{"retry": RETRY, "now": trio.current_time, **options})


async def turn(stage: Stage, model: str = "a:x", limits: Limits | None = None) -> Any:
    async with stage.kernel.session("s", model=model, limits=limits) as session:
        await session.followup("go")
        return await session.run()


async def test_the_next_model_takes_over_in_mid_turn_and_serves_the_rest_of_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with stage(tmp_path, failover()) as it:
        it.models["a"].failing = [*busy(2)]
        assert (await turn(it, limits=Limits(attempts_per_step=9))).text == "Done."
    assert it.served() == ["a", "a", "b", "b"]
    retries = events_of(it.path, RequestRetry)
    assert [(retry.attempt, retry.model) for retry in retries] == [(2, ""), (3, "b:y")]
    assert [described(retry) for retry in retries] == [
        "attempt 2 follows in 500 ms",
        "attempt 3 follows at once with b:y",
    ]
    assert [header.reason for header in events_of(it.path, RequestHeader)] == ["first", "adapter, model"]
    assert len(events_of(it.path, StepStart)) == 2
    assert it.verified()


async def test_nothing_wraps_and_the_last_failure_ends_the_turn(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover()) as it:
        for model in it.models.values():
            model.failing = busy(9)
        assert (await turn(it, limits=Limits(attempts_per_step=99))).code == "overloaded"
    assert it.served() == ["a", "a", "b", "b", "c", "c"]
    assert it.verified()


async def test_when_the_limits_are_near_each_model_gets_one_attempt(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover()) as it:
        for model in it.models.values():
            model.failing = busy(9)
        assert (await turn(it)).code == "overloaded"
    assert it.served() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "failure",
    [
        ProviderError("rate_limit", "no credit", retryable=False),
        ProviderError("rate_limit", "later", retry_after_s=61.0),
    ],
    ids=str,
)
async def test_a_failure_that_is_not_worth_repeating_moves_on_at_once(tmp_path: Path, failure: ProviderError) -> None:
    async with stage(tmp_path, RETRY, failover()) as it:
        it.models["a"].failing = [failure]
        assert (await turn(it)).text == "Done."
    assert it.served() == ["a", "b", "b"]
    assert [retry.delay_ms for retry in events_of(it.path, RequestRetry)] == [0]


async def test_a_failure_of_the_request_itself_moves_nothing_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        for on, reason in ((PASSING, "error"), (PASSING | {"auth"}, "completed")):
            it.models["a"].failing = busy(1, "auth")
            async with it.kernel.register(failover(on=on)):
                assert (await turn(it)).reason == reason


async def test_a_dead_first_model_is_kept_off_until_it_has_rested_and_then_asked_first_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with stage(tmp_path, failover(attempts=1, rest_s=300)) as it:
        it.models["a"].failing = busy(1)
        await turn(it)
        assert it.models["a"].asked == 1
        await turn(it)
        assert it.models["a"].asked == 1, "no attempt of the second turn was wasted on it"
        await trio.sleep(300)
        await turn(it)
    assert it.served() == ["a", "b", "b", "b", "b", "a", "a"]
    assert it.verified()


async def test_it_goes_back_at_a_step_and_not_in_mid_message(tmp_path: Path, autojump_clock: object) -> None:
    async def for_long() -> None:
        await trio.sleep(400)

    first, last = TALK
    async with stage(tmp_path, failover(attempts=1), replies=[[*first[:1], for_long, *first[1:]], last]) as it:
        it.models["a"].failing = busy(1)
        assert (await turn(it)).text == "Done."
    assert it.served() == ["a", "b", "a"]
    assert it.verified()


async def test_a_model_rests_as_long_as_its_provider_asks(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover(rest_s=10)) as it:
        it.models["a"].failing = busy(1, "rate_limit", 120.0)
        await turn(it)
        for slept, model in ((100, "b"), (20, "a")):
            await trio.sleep(slept)
            await turn(it)
            assert it.served()[-1] == model


async def test_when_all_rest_the_turn_begins_with_the_sessions_own_model(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with stage(tmp_path, failover(attempts=1)) as it:
        for model in it.models.values():
            model.failing = busy(1)
        assert (await turn(it)).reason == "error"
        assert (await turn(it)).reason == "completed"
    assert it.served() == ["a", "b", "c", "a", "a"]


async def test_a_model_that_rests_is_passed_over_when_another_is_well(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover(attempts=1)) as it:
        it.models["b"].failing = busy(1)
        await turn(it, "b:y")
        it.models["a"].failing = busy(1)
        await turn(it)
    assert it.served() == ["b", "c", "c", "a", "c", "c"]


async def test_a_sessions_own_model_is_where_the_list_begins(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover(attempts=1)) as it:
        it.models["b"].failing = busy(1)
        assert (await turn(it, "b:y")).text == "Done."
    assert it.served() == ["b", "c", "c"], "never the one before it"


async def test_a_session_with_another_model_is_left_alone(tmp_path: Path, autojump_clock: object) -> None:
    async with stage(tmp_path, failover()) as it:
        it.models["a"].failing = busy(1)
        assert (await turn(it, "a:other")).code == "overloaded"
    assert it.served() == ["a"]
    assert events_of(it.path, PluginFault) == []


async def test_a_step_that_somebody_gave_to_a_model_outside_the_list_stays_with_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def elsewhere(view: StepView) -> Switch | None:
        return Switch("c:else") if view.step == 1 else None

    async with stage(
        tmp_path, Bundle(hooks=[Hook(point="before_step", body=elsewhere, name="elsewhere")]), failover()
    ) as it:
        assert (await turn(it)).text == "Done."
    assert it.served() == ["c", "c"]


async def test_registered_for_one_session_it_serves_that_one_only(tmp_path: Path, autojump_clock: object) -> None:
    async with (
        stage(tmp_path, RETRY) as it,
        it.kernel.session("s", model="a:x") as one,
        it.kernel.session("t", model="a:x") as other,
        one.register(failover(attempts=1)),
    ):
        for session, served in ((one, ["b:y"]), (other, [""])):
            it.models["a"].failing = busy(1)
            await session.followup("go")
            assert (await session.run()).text == "Done."
            assert [retry.model for retry in events_of(it.path, RequestRetry, session.id)] == served


@pytest.mark.parametrize("scope", ["opening", "kernel", "session"])
async def test_a_model_that_nobody_offers_is_refused_as_it_is_registered(tmp_path: Path, scope: str) -> None:
    unknown = failover(["a:x", "nowhere:y"])
    says = "Failover.*no adapter named 'nowhere'"
    if scope == "opening":
        with pytest.raises(PluginError, match=says):
            async with stage(tmp_path, unknown):
                pass
        return
    async with stage(tmp_path) as it, it.kernel.session("s", model="a:x") as session:
        place: Any = it.kernel if scope == "kernel" else session
        with pytest.raises(PluginError, match=says):
            place.register(unknown)
        it.models["a"].failing = busy(1)
        await session.followup("go")
        assert (await session.run()).reason == "error", "nothing of it stays registered"


async def test_models_may_come_with_a_plugin_that_is_passed_behind_it(tmp_path: Path) -> None:
    adapters = Bundle(adapters=[FakeModel([], name) for name in "ab"])
    async with flightlog.open_kernel(
        tmp_path / "a.db", discover=False, plugins=[Failover(["a:x", "b:y"]), adapters]
    ) as kernel:
        assert len(kernel.registry.versions) == 2


async def test_a_model_whose_adapter_was_taken_back_is_a_fault_of_the_plugin(tmp_path: Path) -> None:
    async with (
        stage(tmp_path) as it,
        it.kernel.register(Bundle(adapters=[FakeModel([], "d")])) as late,
        it.kernel.register(failover(["a:x", "d:y"], attempts=1)),
    ):
        await late.aclose()
        it.models["a"].failing = busy(1)
        assert (await turn(it)).code == "overloaded"
    (fault,) = events_of(it.path, PluginFault)
    assert (fault.plugin, fault.hook) == ("Failover", "on_request_error failover")
    assert "no adapter named 'd'" in fault.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": []},
        {"models": ["a:x"]},
        {"models": ["a:x", "b:y", "a:x"]},
        {"models": LIST, "on": ["flood"]},
        {"models": LIST, "attempts": 0},
        {"models": LIST, "attempts": 1.5},
        {"models": LIST, "rest_s": -1},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Failover(**wrong)


@given(
    attempts=st.integers(1, 4),
    limit=st.integers(1, 12),
    rest=st.sampled_from([0.0, 5.0, 1000.0]),
    own=ASSORTED,
    broken=st.lists(st.sampled_from(["overloaded", "auth", "lasting", "well"]), min_size=1, max_size=30),
    pauses=st.lists(st.floats(0, 10), max_size=5),
)
async def test_within_a_step_models_are_tried_in_order_each_at_most_so_often_and_no_more_in_all(
    attempts: int, limit: int, rest: float, own: str, broken: list[str], pauses: list[float]
) -> None:
    now = 0.0
    plugin = Failover(LIST, attempts=attempts, rest_s=rest, retry=RETRY, now=lambda: now)
    for number, pause in enumerate([0.0, *pauses], 1):
        now += pause
        view = StepView(session="s", turn=number, step=1, model=own, session_model=own, messages=())
        chosen = await plugin.choose(view)
        model = chosen.model if chosen else own
        assert LIST.index(model) >= LIST.index(own)
        failures: list[Failure] = []
        for attempt in range(1, limit + 1):
            how = broken[(number + attempt) % len(broken)]
            if how == "well":
                break
            kind: FailureKind = "auth" if how == "auth" else "overloaded"
            failures.append(Failure(model=model, kind=kind))
            answer = await plugin.advise(
                FailedRequest(
                    session="s",
                    turn=number,
                    step=1,
                    attempt=attempt,
                    model=model,
                    failure=kind,
                    message="",
                    retryable=how == "overloaded",
                    retry_after_s=None,
                    attempts_left=limit - attempt,
                    failures=tuple(failures),
                )
            )
            if not isinstance(answer, (hooks.Retry, Switch)):
                assert kind == "auth" or model == LIST[-1]
                break
            assert kind != "auth"
            assert isinstance(answer, Switch) or how == "overloaded"
            if isinstance(answer, Switch):
                assert LIST.index(answer.model) > LIST.index(model), "onwards only"
                model = answer.model
        tried = [failure.model for failure in failures]
        assert tried == sorted(tried), "in the order of the list"
        assert all(tried.count(one) <= attempts for one in LIST)


async def test_a_session_that_is_reopened_while_another_model_serves_goes_back_to_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for failing, expected in ((busy(2), "b:y"), ([], "a:x")):
        models = [Flaky([words("one"), words("two")], "a", failing=failing), Flaky([words("one"), words("two")], "b")]
        plugins = [Bundle(adapters=models), Failover(["a:x", "b:y"], retry=RETRY)]
        async with (
            flightlog.open_kernel(path, discover=False, plugins=plugins) as kernel,
            kernel.session("s", model=None if expected == "a:x" else "a:x") as session,
        ):
            await session.followup("go")
            await session.run()
        last = events_of(path, RequestHeader)[-1]
        assert f"{last.head.adapter}:{last.head.model}" == expected
        assert last.instead_of == ("" if expected == "a:x" else "a:x")


async def test_a_model_that_served_in_place_of_another_may_become_the_sessions_own(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for named, expected in (("a:x", "b:y"), ("b:y", "b:y"), (None, "b:y")):
        models = [Flaky([], "a", failing=busy(9)), Flaky([words("one"), words("two"), words("three")], "b")]
        plugins = [Bundle(adapters=models), Failover(["a:x", "b:y"], retry=RETRY)]
        async with (
            flightlog.open_kernel(path, discover=False, plugins=plugins) as kernel,
            kernel.session("s", model=named) as session,
        ):
            await session.followup("go")
            await session.run()
        last = events_of(path, RequestHeader)[-1]
        assert f"{last.head.adapter}:{last.head.model}" == expected
        assert last.instead_of == ("a:x" if named == "a:x" else "")
