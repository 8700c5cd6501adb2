"""Which calls run, which are put to a person and which are refused: rules per tool and per effect.

    policy = ApprovalPolicy(tools={"send_mail": "allow"}, effects={"external": "deny"})
    flightlog.open_kernel(path, plugins=[policy])

The most specific rule counts: the tool's, else its effect's, else the default: read calls are allowed, all
others ask. That includes idempotent ones, which may be repeated but do change something. Where nobody can be
asked a question is a denial, so a session without an approver only reads. A person's answer that is to be
remembered is obeyed without asking again, where the rule is "ask".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from attrs import field, frozen

from flightlog_hookspecs import Allow, Ask, Deny, Effect, Hook, ProposedCall, Verdict, hookimpl
from flightlog_hookspecs.errors import UsageError

Rule = Literal["allow", "ask", "deny"]

SHOWN_MAX_CHARS: Final = 1000
"""As much of a call's arguments stands in the question."""
NAME_MAX_CHARS: Final = 100

_DEFAULTS: Final[Mapping[str, Rule]] = {"read": "allow"}
_WORDS: Final[Mapping[str, str]] = {
    "read": "which only reads",
    "idempotent": "which changes something, and may be repeated",
    "write": "which changes something",
    "external": "which reaches outside",
    "transactional": "which changes its database, once",
}


@frozen
class ApprovalPolicy:
    """A plugin with one guard. `tools` are rules by tool name, `effects` by effect.

    Raises `UsageError` for a rule or an effect that does not exist.
    """

    tools: Mapping[str, Rule] = field(factory=dict, converter=dict)
    effects: Mapping[Effect, Rule] = field(factory=dict, converter=dict)

    def __attrs_post_init__(self) -> None:
        for name, rule in (*self.tools.items(), *self.effects.items()):
            if rule not in get_args(Rule):
                raise UsageError(f"the rule for {name!r} is {rule!r}; it must be one of {', '.join(get_args(Rule))}")
        for effect in self.effects:
            if effect not in get_args(Effect):
                raise UsageError(f"there is no effect {effect!r}; there are {', '.join(get_args(Effect))}")

    def rule(self, name: str, effect: Effect) -> Rule:
        """The rule for calls of the tool `name`, which has `effect`."""
        return self.tools.get(name) or self.effects.get(effect) or _DEFAULTS.get(effect, "ask")

    async def decide(self, call: ProposedCall) -> Verdict:
        """The guard."""
        match self.rule(call.name, call.effect), call.remembered:
            case ("allow", _) | ("ask", "allowed"):
                return Allow()
            case ("deny", _):
                return Deny(f"the approval policy does not allow {call.name} here")
            case ("ask", "denied"):
                return Deny(f"a person has denied {call.name} for the rest of this session")
            case _:
                return Ask(question(call))

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        """Register the guard."""
        register(Hook(point="before_tool", body=self.decide, name="approval policy"))


def question(call: ProposedCall) -> str:
    """What a person is asked about `call`: on one line, of bounded length, and nothing in it steers a terminal."""
    kind = f"{call.effect}, {_WORDS[call.effect]}" if call.effect in _WORDS else call.effect
    return f"Run {_shown(call.name, NAME_MAX_CHARS)} ({kind}) with {_shown(_compact(call.arguments), SHOWN_MAX_CHARS)}?"


def _compact(arguments: str) -> str:
    """The arguments as JSON on one line, in the order in which they were given."""
    return json.dumps(json.loads(arguments), ensure_ascii=False)


def _shown(text: str, max_chars: int) -> str:
    """The beginning of `text`, whatever cannot be seen being escaped; says how much is left out."""
    seen = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:max_chars])
    rest = len(text) - max_chars
    return f"{seen} … ({rest:,} more characters)" if rest > 0 else seen
