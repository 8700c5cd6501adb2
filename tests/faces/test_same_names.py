"""The blocking and the asyncio face offer what the trio API offers: same names, arguments, results."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import flightlog
from flightlog import aio, sync

FACES = [sync, aio]
CLASSES = ["Kernel", "Session", "SessionReader", "Mailbox", "Registration", "Tasks"]
BLOCKING = {"aclose": "close"}
"""What closes is named after how it is waited for."""
LEFT_OUT = {
    "deliver": "open_kernel runs it",
    "verifying": "for those who verify and read at once; verify() is what hosts need",
    "take_letters": "the kernel calls it",
    "fence": "the kernel calls it",
    "observe": "the kernel calls it",
    "observed": "the kernel calls it",
    "release": "the kernel calls it",
    "end": "the kernel calls it",
    "finish_step": "the kernel calls it",
    "wake": "the kernel calls it",
    "woken": "the kernel calls it",
    "close": "the context manager does it",
    "tail": "superseded by events() for hosts; it hands out what only the trio thread may call",
}


def public(cls: type) -> dict[str, Any]:
    return {name: member for name, member in vars(cls).items() if not name.startswith("_")}


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_what_is_a_context_is_one_in_each_face(face: Any) -> None:
    enter, leave = ("__enter__", "__exit__") if face is sync else ("__aenter__", "__aexit__")
    assert {enter, leave} <= set(vars(face.Registration))
    assert {"__aenter__", "__aexit__"} <= set(vars(flightlog.Registration))


def parameters(function: Any) -> list[tuple[str, Any, Any, Any]]:
    return [(p.name, p.kind, p.default, p.annotation) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
@pytest.mark.parametrize("name", CLASSES)
def test_each_face_has_the_same_methods_with_the_same_arguments(face: Any, name: str) -> None:
    theirs, ours = public(getattr(flightlog, name)), public(getattr(face, name))
    if face is sync:
        theirs = {BLOCKING.get(method, method): member for method, member in theirs.items()}
    methods = {method for method, member in theirs.items() if callable(member) or isinstance(member, property)}
    assert set(ours) | LEFT_OUT.keys() >= methods
    assert {member for member in ours if callable(ours[member])} <= methods
    for method in methods - LEFT_OUT.keys():
        if isinstance(theirs[method], property):
            assert isinstance(ours[method], property), method
        else:
            assert parameters(ours[method]) == parameters(theirs[method]), method
        assert ours[method].__doc__


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_each_face_opens_a_kernel_with_the_same_arguments(face: Any) -> None:
    assert parameters(face.open_kernel) == parameters(flightlog.open_kernel)


@pytest.mark.parametrize("name", CLASSES)
def test_results_are_the_same_and_only_waiting_differs(name: str) -> None:
    lives_on = {"session", "events", "read", "records", "mailbox"}
    for method, member in public(getattr(sync, name)).items():
        if not inspect.isfunction(member) or method in lives_on:
            continue
        waited_for = next((other for other, blocking in BLOCKING.items() if blocking == method), method)
        theirs = getattr(getattr(flightlog, name), waited_for)
        awaited = getattr(getattr(aio, name), waited_for)
        assert inspect.signature(member).return_annotation == inspect.signature(theirs).return_annotation, method
        assert inspect.signature(awaited).return_annotation == inspect.signature(theirs).return_annotation, method
        assert not inspect.iscoroutinefunction(member), method
        assert inspect.iscoroutinefunction(awaited), method
