"""From a typed function with a docstring to a tool the model can call, and arguments checked for it.

JSON Schema 2020-12. msgspec turns annotations into schemas, docstring_parser reads the parameters'
descriptions, jsonschema judges schemas and arguments; all three are imported when the first tool is
registered, not with the package.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from attrs import field, frozen

from flightlog.core import canonical
from flightlog.core.canonical import Json
from flightlog.core.saying import described, said
from flightlog_hookspecs.errors import BadPayload, UsageError
from flightlog_hookspecs.events import ToolSpec
from flightlog_hookspecs.tools import Effect, Isolation, Mode, Risk, Tool, ToolContext

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_NAME_MAX_CHARS = 64
_COMPLAINT_MAX_CHARS = 300
_REPEAT = re.compile(r"[*+]|\{\d*,")
_BRANCH = re.compile(r"[(|]")
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@frozen(kw_only=True)
class PreparedTool:
    """A tool ready to be offered and called.

    `wants_context`: the body's first positional parameter takes the `ToolContext`; so does
    `precheck_wants_context` of the precheck's.
    """

    tool: Tool
    spec: ToolSpec
    plugin: str
    plugin_version: str
    wants_context: bool
    precheck_wants_context: bool
    slow: bool
    """Whether to judge arguments may take for ever: a pattern may, and cannot be interrupted."""
    validator: Draft202012Validator = field(eq=False, repr=False)
    convert: Callable[[dict[str, Any]], dict[str, Any]] = field(eq=False, repr=False)

    @property
    def defaults(self) -> dict[str, Any]:
        """What its schema says that arguments are which are left out."""
        properties = json.loads(self.spec.parameters).get("properties", {})
        named = properties.items() if isinstance(properties, dict) else ()
        return {name: its["default"] for name, its in named if isinstance(its, dict) and "default" in its}

    def arguments(self, raw: str) -> dict[str, Any]:
        """The body's keyword arguments from the model's raw text ("" means none).

        Raises `BadArguments` with a message that tells the model what to change.
        """
        try:
            value = canonical.loads(raw.strip() or "{}")
        except BadPayload as error:
            raise BadArguments(f"The arguments are not valid JSON ({error}). Send one complete JSON object.") from None
        if not isinstance(value, dict):
            raise BadArguments(f"The arguments must be a JSON object, not {type(value).__name__}.")
        try:
            self._judge(value)
            return self.convert(value)
        except (BadArguments, KeyboardInterrupt):
            raise
        except BaseException as error:  # a schema without an end, or the code of a parameter's own type
            why = f"The arguments of {self.spec.name!r} cannot be used ({described(error)})."
            raise BadArguments(why) from error

    def _judge(self, value: dict[str, Any]) -> None:
        errors = sorted(self.validator.iter_errors(value), key=lambda error: error.json_path)
        if errors:
            listed = "; ".join(f"{error.json_path}: {error.message:.{_COMPLAINT_MAX_CHARS}}" for error in errors[:5])
            raise BadArguments(f"The arguments do not fit the schema of {self.spec.name!r}: {listed}")


def key_of(tool: Tool, raw: str) -> str:
    """The arguments in `raw` that make two calls of `tool` the same action; "" when all of them do."""
    if not tool.key_arguments:
        return ""
    given: Any = canonical.loads(raw.strip() or "{}")
    return canonical.sameness({name: given[name] for name in tool.key_arguments if name in given})


class BadArguments(UsageError):
    """The model's fault: the arguments of a call cannot be used. The body did not run."""


def prepare(tool: Tool, plugin: str, plugin_version: str) -> PreparedTool:
    """Check `tool` and complete it. Raises `UsageError` naming what is wrong with it."""
    _check_fields(tool)
    wants_context, parameters = _signature(tool)
    _check_database(tool, wants_context)
    schema: Any
    convert: Callable[[dict[str, Any]], dict[str, Any]]
    if tool.parameters is None:
        schema, convert = _derive(tool, parameters)
    else:
        schema, convert = tool.parameters, _as_is
    description = tool.description or _summary(tool)
    if not description:
        raise UsageError(f"tool {tool.name!r} has no description: give its function a docstring")
    try:
        schema = canonical.plain(schema)
        text = canonical.dumps(schema)
        reason = _fault(text)
    except BadPayload as error:
        reason = str(error)
    if reason:
        raise UsageError(f"tool {tool.name!r}: its parameters are not a JSON Schema 2020-12: {reason}")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise UsageError(f"tool {tool.name!r}: its parameters must be a schema of type 'object'")
    if lost := _lost_reference(text):
        raise UsageError(f"tool {tool.name!r}: its parameters refer to {lost}, which is not in them")
    return PreparedTool(
        tool=tool,
        spec=ToolSpec(name=tool.name, description=canonical.paired(description), parameters=text),
        plugin=plugin,
        plugin_version=plugin_version,
        wants_context=wants_context,
        precheck_wants_context=_checked_companions(tool, schema),
        slow=not all(map(_is_quick, _patterns(schema))),
        validator=validator_of(text),
        convert=convert,
    )


@lru_cache(maxsize=256)
def _fault(schema: str) -> str:
    """What is wrong with a JSON Schema, given as canonical text; "" when nothing is.

    Remembered: it takes milliseconds, and a host that opens many kernels brings the same tools each time.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(canonical.loads(schema))
    except SchemaError as error:
        return str(error.message)
    return ""


@lru_cache(maxsize=256)
def validator_of(schema: str) -> Draft202012Validator:
    """What judges arguments by `schema`. Remembered, as above; it has no state."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry: nothing is ever fetched to judge arguments.
    return Draft202012Validator(canonical.loads(schema), registry=Registry())


def _patterns(schema: Json) -> Iterator[str]:
    """The regular expressions in `schema`, and at times something else: a reference may lead anywhere in it."""
    if isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            yield pattern
        if isinstance(named := schema.get("patternProperties"), dict):
            yield from named
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _patterns(part)


def _is_quick(pattern: str) -> bool:
    """Whether matching takes about as long as reading, as far as that can be told at a glance.

    So it is at one place, without groups and alternatives, when no more than one repeat has no fixed end.
    """
    repeats = len(_REPEAT.findall(pattern))
    return pattern.startswith("^") and not _BRANCH.search(pattern) and repeats <= 1 and pattern.count("?") <= 3


@lru_cache(maxsize=256)
def _lost_reference(schema: str) -> str:
    """A `$ref` in `schema` that leads nowhere, "" when all lead somewhere: it would only show when a call is judged."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(canonical.loads(schema))
    resolver = Registry().with_resource("", root).resolver()
    waiting = [root]
    while waiting:
        resource = waiting.pop()
        waiting += resource.subresources()
        if isinstance(resource.contents, dict) and (reference := resource.contents.get("$ref")):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return repr(reference)
    return ""


def _check_fields(tool: Tool) -> None:
    if not callable(tool.body):
        raise UsageError(f"tool {tool.name!r}: its body {tool.body!r:.100} is not callable")
    if not isinstance(tool.name, str):
        raise UsageError(f"a tool's name must be a string, not {type(tool.name).__name__}")
    if not tool.name.replace("-", "_").isidentifier() or len(tool.name) > _NAME_MAX_CHARS or not tool.name.isascii():
        raise UsageError(
            f"tool name {tool.name!r} must be 1 to 64 ASCII letters, digits, '_' or '-', not starting with a digit"
        )
    if not isinstance(tool.description, str):
        raise UsageError(f"tool {tool.name!r}: its description must be a string")
    if type(tool.timeout_s) not in (int, float) or not tool.timeout_s > 0:
        raise UsageError(f"tool {tool.name!r}: timeout_s must be a positive number of seconds")
    for name, kinds in (("mode", Mode), ("effect", Effect), ("isolation", Isolation), ("risk", Risk)):
        if getattr(tool, name) not in get_args(kinds):
            raise UsageError(
                f"tool {tool.name!r}: {name} must be one of {get_args(kinds)}, not {getattr(tool, name)!r}"
            )
    if tool.isolation == "process":
        module, name = getattr(tool.body, "__module__", ""), getattr(tool.body, "__qualname__", "")
        if inspect.iscoroutinefunction(tool.body) or "<" in name or module in ("", "__main__"):
            raise UsageError(
                f"tool {tool.name!r}: isolation='process' needs a sync function importable by name, not {module}.{name}"
            )


def _check_database(tool: Tool, wants_context: bool) -> None:
    if tool.effect != "transactional":
        if tool.database is not None:
            raise UsageError(f"tool {tool.name!r}: only effect='transactional' has a database, not {tool.effect!r}")
        return
    if not isinstance(tool.database, str) or not tool.database or "\0" in tool.database:
        raise UsageError(
            f"tool {tool.name!r}: effect='transactional' needs database=, the path of its SQLite file, "
            f"not {tool.database!r:.100}"
        )
    try:
        tool.database.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"tool {tool.name!r}: no file can be called {tool.database!r:.100}") from None
    if not wants_context:
        raise UsageError(f"tool {tool.name!r}: a transactional body takes `context` first: its SQL runs through it")
    if tool.reconcile is not None:
        raise UsageError(f"tool {tool.name!r}: a transactional tool has no reconcile: its database tells")
    if inspect.iscoroutinefunction(tool.body) or tool.isolation == "process":
        raise UsageError(f"tool {tool.name!r}: a transactional body is a sync function, run in a thread")


def _checked_companions(tool: Tool, schema: dict[str, Any]) -> bool:
    """Check what stands beside the body, given the schema of its arguments. Whether the precheck wants a context."""
    known = schema.get("properties", {})
    keys = tool.key_arguments
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise UsageError(f"tool {tool.name!r}: key_arguments must be names of parameters, not {keys!r:.100}")
    if missing := [key for key in keys if key not in known]:
        raise UsageError(f"tool {tool.name!r}: key_arguments name {missing[0]!r}, which is none of its parameters")
    for name in ("refreshable", "core"):
        if type(getattr(tool, name)) is not bool:
            raise UsageError(f"tool {tool.name!r}: {name} must be True or False")
    if tool.refreshable and tool.effect != "read":
        raise UsageError(f"tool {tool.name!r}: only a tool with effect='read' is refreshable, not {tool.effect!r}")
    if tool.reconcile is not None:
        _bound(tool, "reconcile", tool.reconcile, (None, None), ())
    if tool.precheck is None:
        return False
    wants_context = next(iter(_parameters(tool, "precheck", tool.precheck)), "") == "context"
    leading = (None,) if wants_context else ()
    _bound(tool, "precheck", tool.precheck, leading, known)
    if tool.parameters is not None:  # else the body's defaults fill in what the model left out
        _bound(tool, "precheck", tool.precheck, leading, schema.get("required", ()))
    return wants_context


def _bound(
    tool: Tool, what: str, function: Callable[..., object], leading: tuple[None, ...], named: Iterable[str]
) -> None:
    """Raise `UsageError` unless `function` can be called so."""
    _parameters(tool, what, function)
    try:
        inspect.signature(function).bind(*leading, **dict.fromkeys(named))
    except TypeError as error:
        form = "reconcile(context, arguments)" if what == "reconcile" else "precheck(**arguments), as its body is"
        raise UsageError(f"tool {tool.name!r}: it cannot be called as {form}: {error}") from None


def _parameters(tool: Tool, what: str, function: object) -> Mapping[str, inspect.Parameter]:
    if not callable(function):
        raise UsageError(f"tool {tool.name!r}: its {what} {function!r:.100} is not callable")
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise UsageError(f"tool {tool.name!r}: its {what}'s signature cannot be read: {error}") from None


def _signature(tool: Tool) -> tuple[bool, list[inspect.Parameter]]:
    parameters = list(_parameters(tool, "body", tool.body).values())
    wants_context = bool(parameters) and parameters[0].name == "context"
    named = parameters[1:] if wants_context else parameters
    for parameter in named:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or (
            parameter.kind is inspect.Parameter.VAR_POSITIONAL and tool.parameters is None
        ):
            raise UsageError(f"tool {tool.name!r}: parameter {parameter.name!r} cannot be passed by name")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and tool.parameters is None:
            raise UsageError(f"tool {tool.name!r}: **{parameter.name} needs an explicit schema (parameters=...)")
    return wants_context, named


def _derive(
    tool: Tool, parameters: list[inspect.Parameter]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
    import msgspec
    from docstring_parser import parse

    try:
        hints = get_type_hints(tool.body, include_extras=True)
    except Exception as error:  # annotations are code of the author's
        raise UsageError(f"tool {tool.name!r}: an annotation cannot be resolved: {error}") from None
    described = {entry.arg_name: entry.description for entry in parse(inspect.getdoc(tool.body) or "").params}
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.name not in hints:
            raise UsageError(f"tool {tool.name!r}: parameter {parameter.name!r} has no type annotation")
        if hints[parameter.name] is ToolContext:
            raise UsageError(f"tool {tool.name!r}: the ToolContext parameter must come first and be named 'context'")
        required = parameter.default is inspect.Parameter.empty
        fields.append(
            (parameter.name, hints[parameter.name])
            if required
            else (parameter.name, hints[parameter.name], parameter.default)
        )
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        (whole,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    except Exception as error:  # whatever it makes of the types, and of names it cannot give to its fields
        reason = said(error).rpartition("\n")[2]
        raise UsageError(f"tool {tool.name!r}: its signature has no JSON Schema: {reason}") from None
    own = definitions.pop(whole["$ref"].rpartition("/")[2])
    own.pop("title", None)
    for name, text in described.items():
        if name in own["properties"] and text:
            own["properties"][name].setdefault("description", text)
    schema = {"$schema": DIALECT, **own} | ({"$defs": definitions} if definitions else {})

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        try:
            try:
                arguments = msgspec.convert(value, struct)
            except msgspec.ValidationError:  # of 3.0 too, which is an integer to the schema that the model was shown
                arguments = msgspec.convert(canonical.without_points(value), struct)
        except msgspec.ValidationError as error:
            raise BadArguments(f"The arguments do not fit the schema of {tool.name!r}: {error}") from None
        return {name: getattr(arguments, name) for name in struct.__struct_fields__}

    return schema, convert


def _summary(tool: Tool) -> str:
    from docstring_parser import parse

    parsed = parse(inspect.getdoc(tool.body) or "")
    return "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)


def _as_is(value: dict[str, Any]) -> dict[str, Any]:
    return value
