"""What the model is to be told before an attempt: a new head, news of prompt sections, what hooks add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from attrs import evolve

from flightlog.core import canonical
from flightlog.core.context import given, joined, news, not_last
from flightlog.core.fingerprint import Basis
from flightlog.core.request import changes
from flightlog.core.state import State
from flightlog.core.task import Task
from flightlog.runtime.journal import Journal
from flightlog.runtime.prompting import Prompt
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.events import (
    Event,
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    PluginVersion,
    RequestHeader,
    UserMessage,
)
from flightlog_hookspecs.hooks import StepView, TaskView


class Briefing:
    """Prepares the requests of one session. `model` is "adapter:model", `system` the host's own text."""

    def __init__(self, journal: Journal, around: Surroundings, *, model: str, system: str) -> None:
        self._journal = journal
        self._around = around
        self._model = model
        self._failing: list[PluginFault] = []
        self._prompt = Prompt(system, around.registry, around.threads, around.redacting)

    async def prepare(self) -> str:
        """Log what the model is to be told before an attempt; returns why a guard forbids the step, if one does.

        Before the first attempt of a step: news of sections, what hooks add and, in the first step of a
        turn, a changed head, which starts a new generation. Before a later one: the head of another model.
        """
        journal = self._journal
        state = journal.state
        assert state.step is not None, "requests are made inside a step"
        if state.header is not None and state.step.attempt:
            retry = state.step.retry
            await journal.append(*self._switched(state, retry.model if retry else ""))
            if not self._around.registry.serves(journal.state.model):
                await self.serve()
            return ""
        anew = state.header is None or state.step.number == 1
        if anew:
            await self._around.registry.ready()
        static, runtime, faults = await self._prompt.rendered(given(state), self._view(), anew=anew)
        due: list[Event] = [*faults, *self._failing_services()]
        if anew:
            system, spans = joined(static)
            serving = self._serving(state)
            head = self._around.registry.head(serving, system)
            instead_of = self._model if serving != self._model else ""
            took_over = state.header is not None and state.header.instead_of != instead_of
            rebased = state.task.rebased if state.task else ""
            if reason := changes(state.header, head) or ("model" if took_over else "resync" if rebased else ""):
                due.append(RequestHeader(head=head, reason=reason, sections=spans, instead_of=instead_of))
        due += _changed_plugins(state.plugins, self._around.registry.versions)
        begins = any(isinstance(event, RequestHeader) for event in due)
        await self._tell(static | runtime, *due, again=self._prompt.last() if begins else ())
        await self.serve()
        if not self._around.hooks.any_at("before_step"):
            return ""
        opinion = await self._around.hooks.before_step(self._view())
        told = () if state.step.briefed else opinion.added  # a crash does not make the model hear it twice
        added = [UserMessage(message_id=journal.clock.new_id(), content=content, source="plugin") for content in told]
        switched = () if opinion.veto else self._switched(journal.state, opinion.model)
        await journal.append(*opinion.faults, *added, *switched)
        return opinion.veto

    async def serve(self) -> None:
        """Log the head of the model that a budget which runs out wants to serve, or of the session's own again."""
        state = self._journal.state
        smaller = state.task.submitted.smaller_model if state.task else ""
        serving = self._serving(state)
        if serving != self._model or (smaller and state.model == smaller):
            await self._journal.append(*self._switched(state, serving))

    def _serving(self, state: State) -> str:
        """The model that is to serve: a smaller one for steps that risk little, where a budget wants that.

        Its adapter may be missing here, though it was there when the task was submitted.
        """
        smaller = state.account.smaller if state.account else ""
        if not smaller:
            return self._model
        calls = state.last_step.calls if state.last_step else ()
        tools = self._around.registry.tools
        risky = any(call.name in tools and tools[call.name].item.tool.risk == "high" for call in calls)
        return smaller if not risky and self._around.registry.serves(smaller) else self._model

    async def remind(self) -> None:
        """Tell the model again what it can no longer see of the prompt sections."""
        given_now, view = given(self._journal.state), self._view()
        static, runtime, faults = await self._prompt.rendered(given_now, view, anew=False)
        await self._tell(static | runtime, *faults)

    async def _tell(self, texts: Mapping[str, str], *due: Event, again: Collection[str] = ()) -> None:
        """Log `due`, and then what the model is to be told of the prompt sections, whose texts are these.

        Those in `again` are said whether or not it knows what they say.
        """

        def messages(state: State) -> list[UserMessage]:
            known = {name: text for name, text in given(state).items() if not (name in again and texts.get(name))}
            return self._messages(known, texts)

        if due or messages(self._journal.state):
            await self._journal.append(*due, messages)

    def _messages(self, known: Mapping[str, str], texts: Mapping[str, str]) -> list[UserMessage]:
        """What a model that knows of the sections what they said in `known` has to be told of their `texts`."""
        return [
            UserMessage(message_id=self._journal.clock.new_id(), content=content, source="context", section=section)
            for section, content in news(known, texts)
        ]

    async def basis(self) -> Basis:
        """The head that a request would have now, and the goal: what a task's work would be based on."""
        journal = self._journal
        task = journal.state.task
        assert task is not None, "only a task's work is looked at so"
        await self._around.registry.ready()
        texts, faults = await self._prompt.static(given(journal.state), self._view())
        await journal.append(*faults)
        head = self._around.registry.head(self._model, joined(texts)[0])
        return Basis(
            goal=task.goal,
            parameters=task.parameters,
            system=head.system,
            tools=head.tools,
            model=f"{head.adapter}:{head.model}",
        )

    def _view(self) -> StepView:
        """The step as it stands in the log, or between steps the next one."""
        state = self._journal.state
        turn, step = state.turn + (not state.turn_open), state.step.number if state.step else state.steps + 1
        if not state.turn_open:
            step = 1
        return StepView(
            session=self._journal.session,
            turn=turn,
            step=step,
            model=self._model if step == 1 else state.model,
            session_model=self._model,
            messages=self._journal.history.messages(),
            facts=state.facts,
            task=_task_view(self._journal.session, state.task) if state.task else None,
        )

    def _failing_services(self) -> list[PluginFault]:
        """What is wrong with services, as far as this session's log does not say so."""
        told = self._failing
        self._failing = [
            PluginFault(
                plugin=offer.plugin.name,
                hook=f"service {running.service.name}",
                error=self._around.redacting.text(running.error),
            )
            for offer in self._around.registry.offers
            for running in offer.running
            if running.error
        ]
        return [fault for fault in self._failing if fault not in told]

    def _switched(self, state: State, model: str) -> Sequence[Event]:
        """The head of `model`, when that is named and not the one in force, and what is to stand last there."""
        if state.header is None or model in ("", state.model):
            return ()
        adapter, name = self._around.registry.adapter_of(model)
        head = evolve(state.header.head, adapter=adapter.item.name, model=name)
        header = RequestHeader(
            head=head,
            reason=changes(state.header, head),
            sections=state.header.sections,
            instead_of=self._model if model != self._model else "",
        )
        newest = self._journal.history.place(len(self._journal.history) - 1)
        return (header, *self._messages({}, not_last(state, self._prompt.last(), newest)))


def _task_view(session: str, task: Task) -> TaskView:
    return TaskView(
        id=session,
        goal=task.goal,
        parameters=canonical.loads(task.parameters),
        done=task.done,
        steps_left=max(0, task.submitted.max_steps - task.run_steps),
    )


def _changed_plugins(logged: Sequence[PluginVersion], registered: Sequence[PluginVersion]) -> list[Event]:
    """What was taken back and registered since the log last said which plugins there are."""
    if logged == registered:  # so it is before nearly every step
        return []
    gone, new = Counter(logged) - Counter(registered), Counter(registered) - Counter(logged)
    return [
        *(PluginUnloaded(plugin=plugin.name, version=plugin.version) for plugin in gone.elements()),
        *(PluginLoaded(plugin=plugin.name, version=plugin.version) for plugin in new.elements()),
    ]
