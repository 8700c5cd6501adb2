"""The contract explains itself: every hook, point and field, and the page that is made of it leaves none out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest
from attrs import fields, has

import flightlog_hookspecs
from flightlog_hookspecs import Point, specs
from flightlog_hookspecs.hooks import ANSWERS

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import contract  # noqa: E402

PAGE = (DOCS / "hooks.md").read_text()
CLASSES = [
    cls
    for name in flightlog_hookspecs.__all__
    if isinstance(cls := getattr(flightlog_hookspecs, name), type) and has(cls) and "events" not in cls.__module__
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_that_a_plugin_sees_or_sets_is_explained(cls: type) -> None:
    docs = contract.field_docs(cls)
    assert [field.name for field in fields(cls) if not docs.get(field.name, "").strip(". ")] == []
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_of_the_contract_is_on_the_page(cls: type) -> None:
    assert f"\n### {cls.__name__}\n" in PAGE


def test_every_registration_hook_is_on_the_page_with_its_arguments() -> None:
    for name, function in contract.registration_hooks().items():
        assert f"### {name}\n" in PAGE
        assert f"`{name}(register: " in PAGE
        assert function.__doc__
    assert len(contract.registration_hooks()) == len([name for name in vars(specs) if name.startswith("register")])


def test_the_types_of_hooks_say_what_the_kernel_accepts() -> None:
    assert set(contract.points()) == set(get_args(Point)) == set(ANSWERS)
    for point, (_, answers) in contract.points().items():
        assert set(answers) == set(ANSWERS[point]), point


def test_every_point_is_on_the_page_and_in_the_docstring_of_its_module() -> None:
    table = flightlog_hookspecs.hooks.__doc__ or ""
    for point, (view, answers) in contract.points().items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `{point}`")]
        names = [view.__name__, *(answer.__name__ for answer in answers)]
        assert all(f"`{name}`" in row for name in names), row
        assert f"| `{point}` |" in PAGE
