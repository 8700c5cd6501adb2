"""What values of others say of themselves, and what is said of those that cannot."""

from __future__ import annotations

import pytest

from flightlog.core.saying import described, said, shown


class Words(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise RuntimeError("not to be formatted")


class Odd(Exception):
    """An error whose words are whatever it is made with; an error is raised instead of them."""

    def __str__(self) -> str:
        (words,) = self.args
        if isinstance(words, BaseException):
            raise words
        assert isinstance(words, str)
        return words

    __repr__ = __str__


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), RecursionError(), GeneratorExit()])
def test_what_cannot_be_said_is_said_to_be_so(error: BaseException) -> None:
    assert said(Odd(error)) == "(its message cannot be shown)"
    assert described(Odd(error)) == "Odd: (its message cannot be shown)"
    assert shown(Odd(error)) == "something whose repr fails"


def test_words_are_plain_ones_and_what_is_shown_is_short() -> None:
    odd = Odd(Words("x" * 1000))
    assert type(said(odd)) is str
    assert described(odd) == f"Odd: {'x' * 1000}"
    assert shown(odd) == "x" * 200


def test_a_ctrl_c_meanwhile_goes_on() -> None:
    for say in (said, shown):
        with pytest.raises(KeyboardInterrupt):
            say(Odd(KeyboardInterrupt()))
