"""Functions as tools: what a model is shown of them, and running what its reply calls.

A function's signature and docstring are its schema. The arguments of a call are checked and converted to the annotated types, so
a function receives only what its signature names.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from onthejob.envs.env import Env
from onthejob.envs.exchange import Next, Request
from onthejob.errors import ConfigError, ContractError, OnTheJobError
from onthejob.texts import encodable
from onthejob.types import Message, ToolCall, ToolSpec

Tool = Callable[..., Any]
MOST_SAID = 400
"""Characters of an error that a model is shown."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*")
_ARGUMENT = re.compile(r"(\w+)(?:\s*\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of one call."""

    text: str
    """What the model reads."""
    valid: bool = True
    """False when there is no such tool or the arguments are wrong, so that nothing was run."""
    error: str = ""
    """Of the tool itself."""
    following: Next | None = None
    """What the tool returned with self.tell, self.invalid or self.end."""


def tools_of(env: Env, role: str) -> dict[str, Tool]:
    """Name -> tool of a role; methods that the class body lists are bound to this environment.

    Raises:
        ConfigError: `tools` is no list of functions, or two have one name.
    """
    kind = type(env).__name__
    given = env.tools() if callable(env.tools) else env.tools
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in env.roles]:
            raise ConfigError(f"{kind}.tools has tools for {unknown[0]!r}, and the roles are {', '.join(env.roles)}.")
        given = given.get(role, ())
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(f"{kind}.tools must list functions, or lists of functions by role, got {given!r:.60}.")
    found: dict[str, Tool] = {}
    for tool in given:
        function = _plain(tool)
        if (name := function.__name__) in found:
            raise ConfigError(f"{kind}.tools has two tools {name!r}. Give each a name of its own.")
        found[name] = function.__get__(env) if tool is function and _takes_self(function) else tool
    return found


def spec_of(tool: Tool) -> ToolSpec:
    """A tool as a model is shown it.

    Raises:
        ConfigError: the function has no docstring, or a parameter without a type that a schema can express.
    """
    return _shape(_plain(tool)).spec


def run(tools: Mapping[str, Tool], call: ToolCall) -> Done:
    """Run a call. What the model does wrong, and what the tool raises, is a result.

    Raises:
        ContractError: the tool returned something that is not a result.
        OnTheJobError: the tool raised it, e.g. because its sandbox failed, which says nothing about the reply.
    """
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return Done(text=f"Error: there is no tool {call.name[:60]!r}. Tools: {known}.", valid=False)
    shape = _shape(_plain(tool)).arguments
    try:
        given = shape.model_validate(dict(call.arguments))
    except ValidationError as error:
        return Done(text=f"Error: {_wrong(call.name, error)}", valid=False)
    try:
        result = tool(**{str(shape.model_fields[name].alias): getattr(given, name) for name in given.model_fields_set})
    except OnTheJobError:
        raise
    except Exception as error:
        said = encodable(f"{type(error).__name__}: {error}".strip()[:MOST_SAID])
        return Done(text=f"Error: {said}", error=said)
    if isinstance(result, Next):
        return Done(text=result.request.text if result.request else "", valid=result.valid, following=result)
    return Done(text=_text(call.name, result))


def run_calls(tools: Mapping[str, Tool], calls: Sequence[ToolCall], asked: Request, *, where: str, bad: float) -> Next:
    """Run the calls of a reply in their order, until one ends the episode: their results are what its role reads next.

    Args:
        tools: name -> tool.
        calls: at least one.
        asked: the request that the reply answers.
        where: the environment, its task and turn, for a message.
        bad: reward of a reply with a call that cannot be run.

    Raises:
        ContractError: a tool returned something that is no result.
    """
    results: list[Message] = []
    facts: list[dict[str, Any]] = []
    rewards: dict[str, float] = {}
    valid, charged, last = True, False, asked
    for call in calls:
        done = run(tools, call)
        facts.append({"name": call.name, "arguments": dict(call.arguments), "result": done.text})
        if done.error:
            facts[-1]["error"] = done.error
        paid: Mapping[str, float] = {} if done.following is None else done.following.rewards
        if not done.valid and done.following is None and bad and not charged:
            paid, charged = {asked.role: bad}, True
        rewards |= {role: rewards[role] + amount if role in rewards else amount for role, amount in paid.items()}
        valid = valid and done.valid
        if (following := done.following) is not None:
            if following.request is None:
                return replace(following, rewards=rewards, valid=valid, facts={**following.facts, "calls": facts})
            last = following.request
            if last.role != asked.role or last.fresh is not False or not isinstance(last.text, str):
                raise ContractError(
                    f"{where} asks {last.role} for a reply in {call.name}, whose result goes to {asked.role}. Return text, "
                    "JSON's types, or what self.tell(text), self.invalid(text) or self.end return."
                )
        results.append(Message("tool", done.text))
    after = replace(last, text=results[-1].content, before=tuple(results[:-1]), speaker="tool", system="", fresh=False)
    return Next(request=after, rewards=rewards, valid=valid, facts={"calls": facts})


class _Shape(typing.NamedTuple):
    spec: ToolSpec
    arguments: type[BaseModel]


@lru_cache(maxsize=1024)
def _shape(function: Tool) -> _Shape:
    """What a function's signature and docstring say."""
    name = function.__name__
    summary, described = _documented(inspect.getdoc(function) or "")
    if not summary:
        raise ConfigError(f"tool {name} has no docstring. Its first paragraph tells the model what the tool does.")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"tool {name} has an annotation that cannot be read: {error}. Use types of the module.") from error
    fields: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:] if _takes_self(function) else parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name}: argument {parameter.name!r} cannot be passed by name, as a model does. "
                f"Write {name}(a: int, b: str)."
            )
        if parameter.name not in hints:
            raise ConfigError(f"tool {name}: argument {parameter.name!r} needs a type, e.g. `{parameter.name}: str`.")
        default = ... if parameter.default is parameter.empty else parameter.default
        about = Field(default, alias=parameter.name, description=described.get(parameter.name))
        # Under names of ours, as one like `copy` means something else in pydantic.
        fields[f"argument{len(fields)}"] = (hints[parameter.name], about)
    try:
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = _untitled(arguments.model_json_schema())
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"tool {name} cannot be described to a model: {reason}. Use str, int, float, bool, Literal, lists, dictionaries, "
            "dataclasses."
        ) from error
    schema.pop("description", None)
    schema.setdefault("properties", {})
    return _Shape(ToolSpec(name, summary, schema), arguments)


def _takes_self(function: Tool) -> bool:
    """Whether it is a method."""
    return next(iter(inspect.signature(function).parameters), "") == "self"


def _plain(tool: Any) -> Tool:
    """The function itself, without the object to which it is bound."""
    function = inspect.unwrap(getattr(tool, "__func__", tool))
    if not inspect.isfunction(function) or not _NAME.fullmatch(function.__name__):
        raise ConfigError(f"`tools` holds {tool!r:.60}, which is no named function. Write it with `def`.")
    return function


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The text before the sections of a docstring, and argument -> its description."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section, last, depth = "", "", 0
    for line in text.splitlines():
        if found := _SECTION.fullmatch(line):
            section, last = found[1], ""
        elif not section:
            summary.append(line)
        elif section.startswith("Arg") and line.strip():
            indent = len(line) - len(line.lstrip())
            argument = _ARGUMENT.fullmatch(line.strip())
            if argument and (not last or indent <= depth):
                last, depth = argument[1], indent
                described[last] = argument[2]
            elif last:
                described[last] += " " + line.strip()
    return "\n".join(summary).strip(), described


def _untitled(value: Any, *, names: bool = False) -> Any:
    """A schema without titles, which repeat the names; `names` where the keys are names of properties."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if names or key != "title"}
        return {key: _untitled(item, names=not names and key in ("properties", "$defs")) for key, item in kept.items()}
    return [_untitled(item) for item in value] if isinstance(value, list) else value


def _wrong(name: str, error: ValidationError) -> str:
    """What is wrong with the arguments, for the model."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    said = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in found)
    return encodable(f"wrong arguments of {name}: {said}"[:MOST_SAID]) + "."


def _text(name: str, result: Any) -> str:
    """A result as the model reads it: text as it is, everything else as JSON."""
    if isinstance(result, str):
        return encodable(result)
    try:
        return encodable(json.dumps(result, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(
            f"tool {name} returned {result!r:.80}, which is no result: {error}. Return text, JSON's types, or what self.tell, "
            "self.invalid or self.end return."
        ) from error
