"""Making the context shorter where the next request would be too long, by replacements in the log."""

from __future__ import annotations

from typing import Final

import trio
from attrs import define, evolve

from flightlog.core.budget import answer_room, charge, is_lasting, paused, short_for_summary, step_room, step_wish
from flightlog.core.fitting import Measure, Prune, Summarise, Wish, cost, judged, least, room, shorter, summary_text
from flightlog.core.state import State
from flightlog.runtime.gate import alert_of, patience_s
from flightlog.runtime.journal import Journal
from flightlog.runtime.metering import Meter
from flightlog.runtime.model_call import call_model
from flightlog.runtime.plugins import bound_thinking, window_of
from flightlog.runtime.proving import Proof
from flightlog.runtime.request_hooks import RequestHooks
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.compaction import Compactor
from flightlog_hookspecs.content import BlockType, text_blocks
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetAlert,
    CompactionEnd,
    CompactionStart,
    Head,
    UserMessage,
)
from flightlog_hookspecs.hooks import Failure, Retry

OVERFLOW: Final = "context_overflow"
"""The code of a turn that ends since its next request is too long."""

SQUEEZE_RATIO: Final = 1.5
"""A budget's wish for a shorter context is looked at again once it has grown so much: summaries cost tokens, too."""

REFUSED_RATIO: Final = 0.75
"""A request that its provider found too long is made so much shorter."""


def to_be_shortened(state: State) -> bool:
    """Whether the last attempt of the open step was too long for its provider, and the first of them."""
    step = state.step
    refused = [failure.kind == OVERFLOW for failure in step.failures] if step else []
    return sum(refused) == 1 and refused[-1]


class Compacting:
    """Keeps the requests of one session as short as they must be."""

    def __init__(self, journal: Journal, around: Surroundings, proof: Proof, hooks: RequestHooks) -> None:
        self._journal = journal
        self._around = around
        self._proof = proof
        self._hooks = hooks
        self._measure = Measure()

    async def fit(self, adapter: Adapter, head: Head) -> str | BudgetAlert:
        """Make the context short enough for a request with `head`; returns why it is not, "" when it is.

        An alert says what keeps it from that only until there is more.
        """
        state, window = self._journal.state, window_of(adapter, head.model)
        assert state.step is not None, "requests are made inside a step"
        await self._squeeze(adapter, head, window)
        allowed, most = self._allowed(adapter, head), self.most(adapter, head)
        refused = to_be_shortened(state) and self._journal.history.rewritten_at < state.step.attempt_seq
        if most is None and not refused:
            return ""  # nobody knows how much is too much, so nothing is measured
        before = self.measured(adapter, head)
        if refused:
            most = min(before if most is None else most, int(before * REFUSED_RATIO))
            window = most  # it could not be read as it is
        if most is None or before <= most:
            return ""
        compactor, fixed = self._around.registry.compactor, least(self._journal.history, self._measure, state.step.seq)
        why: str | BudgetAlert
        if compactor is None:
            why = "nothing can shorten it"
        elif fixed > most and not refused:
            why = f"its head and the open step alone have {fixed}"  # so nothing is replaced in vain
        else:
            why = await self._shorten(adapter, head, compactor, most, window)
        after = self.measured(adapter, head)
        if after <= most or (refused and after < before):
            return ""
        if not refused and (allowed is None or after <= allowed):
            return ""  # only its step's card has no room for it: that can be granted
        if isinstance(why, BudgetAlert):
            return why
        return f"the next request would have about {after} tokens, and {most} fit: {why}"

    def most(self, adapter: Adapter, head: Head) -> int | None:
        """How many tokens a request with `head` may have, that of its step's card too; None when nobody knows."""
        bounds = (self._allowed(adapter, head), step_room(self._journal.state.account))
        return min((bound for bound in bounds if bound is not None), default=None)

    def _allowed(self, adapter: Adapter, head: Head) -> int | None:
        """The same, but whatever its budget says."""
        task = self._journal.state.task
        return room(window_of(adapter, head.model), self._around.limits, task.submitted if task else None)

    @property
    def head_tokens(self) -> int:
        """How many of those measured last are the head's."""
        return self._measure.head

    async def _squeeze(self, adapter: Adapter, head: Head, window: int | None) -> None:
        """Make the context as short as a budget that runs out wants it, or a step's card, as far as that can be."""
        state, compactor = self._journal.state, self._around.registry.compactor
        account, step = state.account, state.step
        if account is None or compactor is None or step is None:
            return
        # The steps that the compactor keeps stay: a model that does not see what it has just read reads it again.
        keep, tokens = compactor.keep_steps, self.measured(adapter, head)
        wishes = [account.context_tokens]
        aim = step_wish(account) if compactor.instruction else None
        if aim is not None and least(self._journal.history, self._measure, step.seq, keep) <= aim * SQUEEZE_RATIO:
            wishes.append(aim)  # else it would be asked for in each step, in vain
        wish = min((each for each in wishes if each is not None), default=None)
        if wish is not None and tokens > wish * SQUEEZE_RATIO:
            await self._shorten(adapter, head, compactor, wish, window, keep_min=keep)

    def measured(self, adapter: Adapter, head: Head) -> int:
        """About how many tokens a request with `head` has now."""
        return self._measure.take(head, self._journal.history, bound_thinking=bound_thinking(adapter))

    async def _shorten(
        self, adapter: Adapter, head: Head, compactor: Compactor, most: int, window: int | None, *, keep_min: int = 0
    ) -> str | BudgetAlert:
        """Make the context shorter until `most` tokens are enough; returns what stood in the way, or "".

        The last `keep_min` finished steps are not touched, nor are those that the compactor keeps where a summary would
        do and only a budget has no room for it: that can be granted, and what the model has just read be missed.
        """
        step, keep, why = self._journal.state.step, compactor.keep_steps, "nothing is left to shorten"
        asks, short = compactor.instruction != "", None
        assert step is not None, "requests are made inside a step"
        while (tokens := self.measured(adapter, head)) > most:
            if asks and (card := self._lacking(head, tokens)):
                asks, short = False, self._used_up(card)
            wish = Wish(keep_steps=keep, summarises=asks, note=compactor.note, window=window)
            match shorter(self._journal.history, self._measure, step.seq, most, wish):
                case Prune() as prune:
                    await self._prune(compactor, prune)
                    continue
                case Summarise() as cut:
                    end = await self._summarise(adapter, head, compactor, cut)
                    if isinstance(end, BudgetAlert):
                        asks, short = False, end
                        continue
                    if end.outcome == "done":
                        continue
                    why = f"the summary was not taken: {end.outcome} {end.message}".strip()
                    if end.outcome == "failed":
                        asks = False
                        continue
                case None:
                    pass
            if short is not None:
                keep_min = compactor.keep_steps
            if keep <= keep_min and not asks:
                return short or why
            # Without a summary, fewer words for results may still be enough.
            keep, asks = (max(keep // 2, keep_min), asks) if keep > keep_min else (compactor.keep_steps, False)
        return ""

    async def _prune(self, compactor: Compactor, prune: Prune) -> None:
        """Say results in fewer words. Nobody is asked, so that it happens at once."""
        first, last = prune.rows
        before = self._measure.total
        results = [result for _, result in prune.results]
        start = CompactionStart(
            level="prune", from_seq=first, to_seq=last, tokens_before=before, compactor=compactor.name
        )
        old = [self._journal.history.at((result.message_seq, result.position + 1)) for result in results]
        saved = sum(cost(was) - cost(now) for was, now in zip(old, results, strict=True) if was is not None)
        end = CompactionEnd(outcome="done", tokens_after=before - self._measure.corrected(saved))
        await self._journal.append(start, *results, end)

    async def _summarise(
        self, adapter: Adapter, head: Head, compactor: Compactor, cut: Summarise
    ) -> CompactionEnd | BudgetAlert:
        """Let a summary stand for what it covers, if there is a good one; returns the end, or what keeps it from it."""
        before = self._measure.total
        encoded = await self._proof.encoded(adapter, head)
        request, sha256 = encoded.asking(compactor.instruction, cut.count)
        assert self._journal.state.step is not None, "requests are made inside a step"
        attempt = self._journal.state.step.attempt + 1
        # Messages stand in it that no request had before.
        if veto := await self._hooks.veto(attempt, head, request.messages):
            return CompactionEnd(outcome="failed", message=f"a guard forbids to ask for it: {veto}")
        start = CompactionStart(
            level="summarise",
            from_seq=cut.rows[0],
            to_seq=cut.rows[1],
            tokens_before=before,
            compactor=compactor.name,
            model=f"{head.adapter}:{head.model}",
            instruction=compactor.instruction,
            sha256=sha256,
        )
        failures: list[Failure] = []
        while True:
            price = self._around.registry.price_of(start.model)
            account = self._journal.state.account
            meter = Meter(answer_room(account, before, summary=True))
            answer = await self._ask(adapter, request, start, meter)
            if isinstance(answer, BudgetAlert):
                return answer
            if isinstance(answer, AssistantMessage):
                summary, end = self._summed_up(answer, cut, compactor, before)
                if account is not None:
                    end = evolve(end, charge=charge(before, cost(answer), answer.counted))
                await self._journal.append(*summary, evolve(end, price=price), barrier=True)
                return end
            failed = CompactionEnd(outcome="failed", message=self._around.redacting.text(str(answer)))
            end = evolve(failed, charge=meter.charge(before) if account else 0)
            await self._journal.append(end)
            failures.append(Failure(model=start.model, kind=answer.kind))
            after_s = await self._again_after(answer, failures)
            if after_s is None:
                return end
            if card := self._lacking(head, before):
                return self._used_up(card) or end
            await trio.sleep(after_s)

    def _lacking(self, head: Head, tokens: int) -> str:
        """The card that has no room for a request of so many tokens for a summary, "" for none."""
        return short_for_summary(self._journal.state.account, tokens, f"{head.adapter}:{head.model}")

    def _used_up(self, card: str) -> BudgetAlert | None:
        """That the session has to wait until more of `card` is granted, if it has."""
        account = self._journal.state.account
        assert account is not None, "only a budget has cards"
        return paused(account, card, self._journal.clock.now_us()) if is_lasting(card) else None

    async def _ask(
        self, adapter: Adapter, request: Request, start: CompactionStart, meter: Meter
    ) -> AssistantMessage | ProviderError | BudgetAlert:
        """Log that a summary is asked for, and ask for it, unless quotas keep it from that."""
        journal, gate = self._journal, self._around.gate
        demands = gate.for_request(journal.key, start.model.partition(":")[0], start.tokens_before)
        async with gate.through(journal.key, demands, patience_s=patience_s(journal.state)) as full:
            if full is not None:
                return alert_of(full, then="pauses")
            await journal.append(start, barrier=True)
        journal.store.check_alive(in_place=False)  # another session's fault may have stopped it since
        journal.on_boundary("request", journal.session, journal.seq)
        return await call_model(journal, adapter, request, _Unrecorded(), self._around.limits, meter)

    def _summed_up(
        self, answer: AssistantMessage, cut: Summarise, compactor: Compactor, before: int
    ) -> tuple[list[UserMessage], CompactionEnd]:
        """What the model's answer comes to: a summary, if it is any good, and the end."""
        summary = UserMessage(
            message_id=self._journal.clock.new_id(),
            content=text_blocks(summary_text(cut.said, answer.text, compactor.note)),
            source="summary",
            replaces_from=cut.rows[0],
            replaces_to=cut.rows[1],
        )
        saved = self._measure.of(0, cut.count) - self._measure.corrected(cost(summary))
        outcome, message = judged(answer, saved)
        end = CompactionEnd(
            outcome=outcome,
            message=message,
            tokens_after=before - (saved if outcome == "done" else 0),
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            cache_write_tokens=answer.cache_write_tokens,
        )
        return [summary] if outcome == "done" else [], end

    async def _again_after(self, error: ProviderError, failures: list[Failure]) -> float | None:
        """In how many seconds to ask again for a summary; None when no hook wants that, or it was too often."""
        tries = len(failures)
        left = max(0, self._around.limits.attempts_per_step - tries)
        advice = await self._hooks.advice(tries, error, tuple(failures), left)
        await self._journal.append(*advice.faults)
        return advice.answer.after_s if isinstance(advice.answer, Retry) and left else None


@define
class _Unrecorded:
    """Takes the deltas of an answer that is no part of the conversation."""

    attempt: int = 1

    def take(self, block: int, block_type: BlockType, text: str) -> None:
        """Drop it."""

    async def flush_late(self) -> None:
        """Never."""

    def finish(self) -> None:
        """There is nothing to leave."""

    async def flush(self) -> None:
        """Nothing is kept."""
