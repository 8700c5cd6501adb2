"""What hooks are asked about a request, whatever it is made for: may it be sent, and what to do when it has failed."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from flightlog.runtime.hooks import Advice
from flightlog.runtime.journal import Journal
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import Head, Message
from flightlog_hookspecs.hooks import FailedRequest, Failure, RequestView


@frozen
class RequestHooks:
    """Asks the hooks of one session about its requests."""

    _journal: Journal
    _around: Surroundings

    async def veto(self, attempt: int, head: Head, messages: Sequence[Message]) -> str:
        """Why a guard forbids to send it, "" when none does. What guards did wrong is in the log then."""
        hooks, state = self._around.hooks, self._journal.state
        if not hooks.any_at("before_request"):
            return ""
        opinion = await hooks.before_request(
            RequestView(
                session=self._journal.session,
                turn=state.turn,
                step=state.steps,
                attempt=attempt,
                head=head,
                messages=messages,
            )
        )
        await self._journal.append(*opinion.faults)
        return opinion.veto

    async def advice(self, attempt: int, error: ProviderError, failures: tuple[Failure, ...], left: int) -> Advice:
        """What is to be done about `error`, the last of `failures`, when `left` attempts are still allowed."""
        state = self._journal.state
        return await self._around.hooks.on_request_error(
            FailedRequest(
                session=self._journal.session,
                turn=state.turn,
                step=state.steps,
                attempt=attempt,
                model=failures[-1].model,
                failure=error.kind,
                message=self._around.redacting.text(error.message),
                retryable=error.retryable,
                retry_after_s=error.retry_after_s,
                attempts_left=left,
                failures=failures,
            )
        )
