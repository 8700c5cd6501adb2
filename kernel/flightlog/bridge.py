"""One trio thread per kernel, for hosts that do not run trio.

A call is started on that thread from any other one, and waited for there: blocking, or under asyncio.
Whatever interrupts the waiting cancels the call and waits for its end before it goes on. A context is
entered, held and left by one task, as trio demands; the kernel, entered first, is left last.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Generic, Self, TypeVar, cast

import trio

from flightlog.core.saying import described
from flightlog.runtime.error_groups import unwrapped
from flightlog.runtime.subscription import Subscription
from flightlog_hookspecs.errors import ForkedProcess, InvariantViolation, UsageError
from flightlog_hookspecs.events import Record

T = TypeVar("T")
_EXIT_WAIT_S: Final = 5.0
"""As long does a dying interpreter wait for its kernels to close."""
_LOOK_S: Final = 0.2


class _Closed(UsageError):
    """The kernel is closed, and with it all that it held."""

    def __init__(self, what: str = "the kernel is closed") -> None:
        super().__init__(what)


class _CallCancelled(BaseException):
    """The call ended because its waiter asked it to; never seen by anyone else."""


class _Call(Generic[T]):
    """A call: its result, and how to cancel it. Started and cancelled on the trio thread only.

    It runs in a copy of its caller's context, so that context variables reach it.
    """

    def __init__(self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()  # nobody but the trio thread decides how it ends
        self._function = function
        self._args = args
        self._context = contextvars.copy_context()
        self._scope = trio.CancelScope()
        self._started = False

    def start(self, nursery: trio.Nursery | None) -> None:
        if nursery is None:
            self.future.set_exception(_Closed())
        elif not self.future.done():
            self._started = True
            self._context.run(nursery.start_soon, self._perform)

    def cancel(self) -> None:
        self._scope.cancel()
        if not self._started and not self.future.done():
            self.future.set_exception(_CallCancelled())

    async def _perform(self) -> None:
        """Run it; whatever it raises is the waiter's, not this thread's."""
        try:
            with self._scope:
                result = await self._function(*self._args)
        except trio.Cancelled:
            self.future.set_exception(_Closed("the kernel was closed before the call had ended"))
            raise
        except BaseException as error:  # also SystemExit: it must not end the thread that others use
            self.future.set_exception(unwrapped(error))
        else:
            if self._scope.cancelled_caught:
                self.future.set_exception(_CallCancelled())
            else:
                self.future.set_result(result)


class _Held(Generic[T]):
    """A context that a task of the trio thread keeps open until `leave` is set."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self.scope = trio.CancelScope()
        self.entered = trio.Event()
        self.leave = trio.Event()
        self.left = trio.Event()
        self.value: T | None = None
        self.error: BaseException | None = None
        self.started = False
        self._context = context

    async def hold(self) -> None:
        try:
            with self.scope:
                async with self._context as self.value:
                    self.entered.set()
                    await self.leave.wait()
        except trio.Cancelled:
            raise
        except BaseException as error:
            self.error = unwrapped(error)
        finally:
            self.left.set()
            self.entered.set()


class TrioThread:
    """Runs trio in a daemon thread until closed. Usable from every thread of this process."""

    def __init__(self, name: str = "flightlog") -> None:
        self._pid = os.getpid()
        self._nursery: trio.Nursery | None = None
        self._held: list[_Held[Any]] = []
        self._waited_for: set[Future[Any]] = set()
        self._waiting = threading.Lock()
        self._died_of: BaseException | None = None
        ready: Future[trio.lowlevel.TrioToken] = Future()
        self._stop = trio.Event()
        self._thread = threading.Thread(target=self._live, args=(ready,), name=name, daemon=True)
        self._thread.start()
        self._token = ready.result()
        atexit.register(self.close, wait_s=_EXIT_WAIT_S)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run `function(*args)` on the trio thread and wait for its result.

        What is raised in the waiting thread (Ctrl-C, a signal handler's exception) cancels the call and
        is raised once it has ended; a second one does not wait. Raises `ForkedProcess` in a forked child
        and `UsageError` once the kernel is closed.
        """
        call: _Call[T] = _Call(function, args)
        try:
            self._begin(call)
            _wait(call.future)
        except (ForkedProcess, InvariantViolation, UsageError):
            raise
        except BaseException:
            self._cancel(call)
            _wait(call.future)
            raise
        return call.future.result()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run the synchronous `function(*args)` on the trio thread and wait for its result."""
        result: T = self.run(_inline, function, args)
        return result

    async def arun(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run `function(*args)` on the trio thread and wait under asyncio, without blocking its loop.

        Cancelling cancels the call and goes on once it has ended; an error it ended with is raised instead.
        """
        call: _Call[T] = _Call(function, args)
        self._begin(call)
        ended = asyncio.wrap_future(call.future)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._cancel(call)
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            error = ended.exception()
            if error is not None and not isinstance(error, _CallCancelled):
                raise error from None
            raise
        except GeneratorExit:  # the loop was closed with this still waiting
            self._cancel(call)
            raise

    async def acall(self, function: Callable[..., T], *args: Any) -> T:
        """Run the synchronous `function(*args)` on the trio thread and wait under asyncio."""
        return await self.arun(_inline, function, args)

    @contextmanager
    def holding(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Hold `context` open on the trio thread meanwhile."""
        held = _Held(context)
        try:
            yield self.run(self._enter, held)
        finally:
            if not self._has_left(held):
                with suppress(_Closed):
                    self.run(self._leave, held)

    @asynccontextmanager
    async def aholding(self, context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """The same under asyncio."""
        held = _Held(context)
        try:
            yield await self.arun(self._enter, held)
        finally:
            if not self._has_left(held):
                with suppress(_Closed):
                    await self.arun(self._leave, held)

    def close(self, *, wait_s: float | None = None) -> None:
        """Leave what is held, cancel what still runs, end the thread; wait for it at most `wait_s`."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        with suppress(trio.RunFinishedError, OSError):
            self._token.run_sync_soon(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    async def aclose(self) -> None:
        """The same under asyncio."""
        if os.getpid() == self._pid:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.close))

    def _begin(self, call: _Call[Any]) -> None:
        if threading.current_thread() is self._thread and os.getpid() == self._pid:
            raise UsageError(
                "this was called on the kernel's own thread, which would wait for itself; "
                'let the tool run in a thread (isolation="thread")'
            )
        with self._waiting:
            self._check_alive()
            self._waited_for.add(call.future)
        call.future.add_done_callback(self._waited_for.discard)
        self._soon(lambda: call.start(self._nursery))

    def _cancel(self, call: _Call[Any]) -> None:
        with suppress(_Closed):  # then it has ended
            self._soon(call.cancel)

    def _live(self, ready: Future[trio.lowlevel.TrioToken]) -> None:
        """Run trio. When it dies, whoever waits for it is told."""
        try:
            trio.run(self._main, ready)
        except BaseException as error:
            with self._waiting:
                self._died_of = error
            for future in (ready, *tuple(self._waited_for)):
                if not future.done():
                    future.set_exception(_death(error))

    def _check_alive(self) -> None:
        if self._died_of is not None:
            raise _death(self._died_of)

    def _soon(self, action: Callable[[], object]) -> None:
        """Run `action` on the trio thread, in order. Raises in a forked child, and once closed."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this kernel was opened by process {self._pid}, this is its child {os.getpid()}. "
                "Open a kernel of your own in the child."
            )
        try:
            with suppress(OSError):  # it is dying just now, and tells who waits
                self._token.run_sync_soon(action)
        except trio.RunFinishedError:
            raise _Closed from None

    async def _main(self, ready: Future[trio.lowlevel.TrioToken]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            ready.set_result(trio.lowlevel.current_trio_token())
            await self._stop.wait()
            while self._held:
                await self._leave(self._held[-1], tell=False)
            self._nursery = None
            nursery.cancel_scope.cancel()

    async def _enter(self, held: _Held[T]) -> T:
        assert self._nursery is not None, "the call that does this was started by it"
        held.started = True
        self._held.append(held)
        self._nursery.start_soon(held.hold)
        try:
            await held.entered.wait()
        except trio.Cancelled:
            held.scope.cancel()
            with trio.CancelScope(shield=True):
                await held.left.wait()
            self._forget(held)
            raise
        if held.left.is_set():
            self._forget(held)
            if held.error is None:
                raise _Closed
            error, held.error = held.error, None
            raise error
        return cast("T", held.value)

    async def _leave(self, held: _Held[Any], *, tell: bool = True) -> None:
        """Let `held` go, and before the first, the kernel, all others. With `tell`, raise what that raised."""
        with trio.CancelScope(shield=True):
            for inner in self._held[::-1] if self._held[:1] == [held] else [held]:
                inner.leave.set()
                if inner.started:
                    await inner.left.wait()
                self._forget(inner)
        if tell and held.error is not None:
            raise held.error

    def _forget(self, held: _Held[Any]) -> None:
        if held in self._held:
            self._held.remove(held)

    def _has_left(self, held: _Held[Any]) -> bool:
        """Whether there is nothing to leave: a forked child leaves its parent's contexts alone."""
        return os.getpid() != self._pid or (not held.started and not self._thread.is_alive())


def _death(error: BaseException) -> InvariantViolation:
    """What is said to each who waits, or comes later: an error of his own, since it is raised in his thread."""
    why = described(error.__cause__ or error)
    death = InvariantViolation(
        f"the thread of this kernel has died, by a bug of a plugin or of its own: {why}. "
        "What was acknowledged is in the log; open it in a new process."
    )
    death.__cause__ = error
    return death


def _wait(future: Future[Any]) -> None:
    """Until it is done, whatever came of it; signals are handled meanwhile.

    A signal that reaches another thread, or this one just before it sleeps, wakes nobody. So it looks again and again.
    """
    while not future.done():
        with suppress(TimeoutError):
            future.exception(_LOOK_S)


async def _inline(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    return function(*args)


class Following(Iterator[Record]):
    """The records of a subscription, waited for in this thread."""

    def __init__(self, thread: TrioThread, subscribe: Callable[[], Subscription]) -> None:
        self._thread = thread
        self._stream = thread.call(subscribe)
        self._arrived = self._stream.seq
        self._at_hand: deque[Record] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        if not self._at_hand:
            try:
                self._at_hand.extend(self._thread.run(self._stream.batch, self._arrived))
            except _Closed:  # the last records may have come while nobody waited for them
                self._at_hand.extend(self._stream.rest(self._arrived))
        if not self._at_hand:
            raise StopIteration
        self._arrived = self._at_hand[0].seq
        return self._at_hand.popleft()


class AsyncFollowing(AsyncIterator[Record]):
    """The records of a subscription, waited for under asyncio."""

    def __init__(self, thread: TrioThread, subscribe: Callable[[], Subscription]) -> None:
        self._thread = thread
        self._subscribe = subscribe
        self._stream: Subscription | None = None
        self._arrived = 0
        self._at_hand: deque[Record] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._stream is None:
            self._stream = await self._thread.acall(self._subscribe)
            self._arrived = self._stream.seq
        if not self._at_hand:
            try:
                self._at_hand.extend(await self._thread.arun(self._stream.batch, self._arrived))
            except _Closed:  # the last records may have come while nobody waited for them
                self._at_hand.extend(self._stream.rest(self._arrived))
        if not self._at_hand:
            raise StopAsyncIteration
        self._arrived = self._at_hand[0].seq
        return self._at_hand.popleft()
