"""`openenv:URL`: an environment behind an OpenEnv 0.10 server, one session per episode.

A reply becomes the server's action by its published schema, or by a function of the user's; an observation becomes text. What the
server pays is the reward. Sessions cannot be copied, so there are no forks. When the server fails or is lost, the episode ends in
an error, which is recorded and not trained on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from onthejob.envs.env import Env
from onthejob.envs.exchange import Next, Request
from onthejob.errors import ConfigError, ServeError
from onthejob.interop.json_options import json_object
from onthejob.interop.openenv_action import Form, form_of
from onthejob.interop.openenv_session import Access, Answer, Full, Rejected, Session, normal_url, schemas
from onthejob.plugins import function_of, source_of
from onthejob.types import Message, Split, StopReason, Task

log = logging.getLogger(__name__)
AGENT = "agent"
NOT_SHOWN = ("done", "reward", "metadata", "messages")
"""Fields of observations that no prompt holds."""
OWN_SOURCES = ("from_openenv.py", "openenv_action.py")
"""Files of this folder that decide what is shown and done."""


class OpenEnv(Env):
    """An environment behind an OpenEnv server."""

    roles = (AGENT,)
    forks = "no"
    url: ClassVar[str] = ""
    """Of the server; `environment` makes a subclass of each."""

    max_turns: int = 50  # type: ignore[misc]
    """Replies after which an episode is over."""
    max_new_tokens: int = 64  # type: ignore[misc]
    """Limit of a reply in tokens."""
    threads: int = 1  # type: ignore[misc]
    """Threads that wait for the server side by side; each episode has a session of its own."""
    count: int = 200
    """Tasks of each split; each has a seed of its own."""
    seeded_reset: bool = True
    """Send a task's seed with reset. Without it the server chooses, and tasks do not differ."""
    reset_options: str = ""
    """Further arguments of reset, a JSON object, e.g. '{"role": "sales"}'."""
    instructions: str = ""
    """Text before the first observation, e.g. the rules."""
    render: str = ""
    """A function (observation) -> text, as path/to/file.py:name or package.module:name. Nothing else is shown, so it must
    list possible actions. Without it: messages, the only text, or JSON."""
    action: str = ""
    """A function (reply) -> action as a dictionary, in the same form; it raises ValueError with feedback for a reply that is no
    action."""
    legal: str = "legal_actions"
    """Field of observations that lists legal replies, where the server has one."""
    rejected: Literal["error", "invalid"] = "error"
    """What an exception of the server's environment at a step means: a failed episode, which is not trained on, or a reply that
    cannot be used. An action that does not fit the schema is always the latter."""
    invalid_reward: float = -1.0
    """Reward of a reply that cannot be used."""
    timeout_s: float = 60.0
    """Seconds that the server has for each answer."""
    token_variable: str = ""
    """Environment variable with the server's token, which is sent as `Authorization: Bearer`."""

    def tasks(self, split: Split) -> list[Task]:
        """Tasks that differ by the seed of their reset."""
        self._checked()
        return self.seeded(split, count=self.count)

    def fingerprint(self) -> str:
        """Of the server's schema and the functions' sources; the server's own code is not known."""
        own = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in OWN_SOURCES]
        own += [source_of(function_of(named, "")) for named in (self.render, self.action) if named]
        told = json.dumps(_schemas(self._access()), sort_keys=True)
        return hashlib.sha256("\0".join([self.url, told, *own]).encode()).hexdigest()[:12]

    def anchored(self) -> Mapping[str, Any]:
        """Functions' files are found from every folder."""
        from onthejob import plugins

        given = {"render": self.render, "action": self.action}
        return {name: plugins.anchored(named) for name, named in given.items() if named}

    def reset(self, task: Task) -> Next:
        """Open a session and begin the episode of the task's seed."""
        self.form = self._form()
        self.session, answer = self._begun(task.seed)
        self._ended = weakref.finalize(self, self.session.close)
        self._ended.atexit = False
        if answer.done:
            self._ended()
            raise ServeError(f"the OpenEnv server {self.url} ended the episode at reset. Look at --env.reset-options.")
        request = self._request(answer, first=True)
        rewards = {AGENT: answer.reward} if answer.reward else {}
        return Next(request=request, rewards=rewards)

    def step(self, reply: str) -> Next:
        """Send the action of a reply."""
        try:
            action = function_of(self.action, "--env.action")(reply) if self.action else self.form.action(reply, self.allowed)
            if not isinstance(action, Mapping):
                raise RuntimeError(f"--env.action {self.action} must return a dictionary, got {action!r:.60}.")
            answer = self.session.step(action)
        except ValueError as error:
            return self._last(self.invalid(str(error) or "The reply is no action.", reward=self.invalid_reward))
        except Rejected as error:
            if self.rejected == "error" and error.code != "VALIDATION_ERROR":
                self._ended()
                raise ServeError(
                    f"the OpenEnv server {self.url} failed at step: {error}. Where its environment raises for unusable replies, "
                    "give --env.rejected invalid."
                ) from error
            return self._last(self.invalid(f"The reply was not accepted: {error}.", reward=self.invalid_reward))
        valid = answer.observation.get("valid") is not False
        if answer.done:
            self._ended()
            figures = answer.observation.get("metrics")
            metrics = {str(k): v for k, v in figures.items() if type(v) in (int, float)} if isinstance(figures, Mapping) else {}
            stop = StopReason.MAX_TURNS if answer.observation.get("truncated") else StopReason.DONE
            return self.end(answer.reward, metrics=metrics, valid=valid, stop=stop)
        rewards = {AGENT: answer.reward} if answer.reward else {}
        return self._last(Next(request=self._request(answer, first=False), rewards=rewards, valid=valid))

    def _last(self, following: Next) -> Next:
        """The session ends with the last turn."""
        if self._now.turn >= self.max_turns:
            self._ended()
        return following

    def _request(self, answer: Answer, *, first: bool) -> Request:
        observation = answer.observation
        listed = observation.get(self.legal)
        self.allowed = self.form.listed(listed if isinstance(listed, list) else None)
        rules = [self.instructions, "" if self.action else self.form.described()] if first else []
        talk = [] if self.render else messages_of(observation)
        if talk:
            whole = first or observation.get("fresh") is True
            system = talk[0].content if whole and len(talk) > 1 and talk[0].role == "system" else ""
            before = tuple(talk[1 if system else 0 : -1]) if whole else ()
            text = talk[-1].content if whole else "\n".join(message.content for message in talk)
            rules = rules[:1]
        else:
            system, before, whole, text = "", (), first, self._text(observation)
        text = "\n".join(part for part in [*rules, text] if part)
        return Request(role=AGENT, text=text, system=system, before=before, legal=tuple(self.allowed), fresh=whole)

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self.render:
            made = function_of(self.render, "--env.render")(dict(observation))
            if not isinstance(made, str):
                raise RuntimeError(f"--env.render {self.render} must return a text, got {made!r:.60}. Return a str.")
            return made
        left = {name: value for name, value in observation.items() if name not in (*NOT_SHOWN, self.legal)}
        if len(left) == 1 and isinstance(only := next(iter(left.values())), str):
            shown = only
        else:
            shown = json.dumps(left, ensure_ascii=False)
        return f"{shown}\nPossible now: {', '.join(self.allowed)}." if self.allowed else shown

    def _access(self) -> Access:
        if not 0.0 < self.timeout_s < float("inf"):
            raise ConfigError(f"--env.timeout-s must be finite and > 0 seconds, got {self.timeout_s}.")
        return Access(url=self.url, token_variable=self.token_variable, timeout_s=self.timeout_s)

    def _form(self) -> Form:
        return form_of(_schemas(self._access()).get("action"), self.url, given=bool(self.action))

    def _begun(self, seed: int) -> tuple[Session, Answer]:
        options = self._options()
        session = Session(self._access())
        return session, session.reset(**({"seed": seed} if self.seeded_reset else {}), **options)

    def _options(self) -> dict[str, Any]:
        given = json_object(self.reset_options, "--env.reset-options", '{"role": "sales"}')
        if "seed" in given:
            raise ConfigError("--env.reset-options must not hold a seed, which each task has. Omit it.")
        return given

    def _checked(self) -> None:
        """Refuse what cannot be played, before anything is loaded; says where equal seeds are not equal episodes."""
        access = self._access()
        self._options()
        for named, flag in ((self.render, "--env.render"), (self.action, "--env.action")):
            if named:
                function_of(named, flag)
        self._form()
        try:
            _probe(access, json.dumps(self._options()), self.seeded_reset)
        except ServeError as error:
            raise ConfigError(str(error)) from error


def environment(what: str) -> type[OpenEnv]:
    """The environment of a server."""
    url = normal_url(what)
    _schemas(Access(url=url))
    return _kind(url)


def anchored(what: str) -> str:
    """The server's base URL."""
    return normal_url(what)


def messages_of(observation: Mapping[str, Any]) -> list[Message]:
    """The conversation that an observation holds, if it does."""
    found = observation.get("messages")
    if not isinstance(found, list) or not found:
        return []
    talk = [
        Message(message["role"], message["content"])
        for message in found
        if isinstance(message, Mapping)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
    ]
    return talk if len(talk) == len(found) and talk[-1].role == "user" else []


@cache
def _kind(url: str) -> type[OpenEnv]:
    return type("OpenEnv", (OpenEnv,), {"url": url, "__module__": __name__, "__doc__": f"The OpenEnv server {url}."})


@cache
def _probe(access: Access, options: str, seeded: bool) -> None:
    """Begin two episodes of one seed; says what is worth knowing before others are played. Done once per process.

    Raises:
        ServeError: no session can be had, or no episode be begun.
    """
    if access.exposed:
        log.warning("the token of %s travels unencrypted to %s; use https", access.token_variable, access.url)
    given = {**({"seed": 1} if seeded else {}), **json.loads(options)}
    sessions: list[Session] = []
    seen = []
    try:
        for number in range(2):
            try:
                sessions.append(Session(access))
                seen.append(json.dumps(sessions[-1].reset(**given).observation, sort_keys=True))
            except Full:
                if not number:
                    raise
                log.warning(
                    "%s has one session at a time, and commands play several episodes at once; raise its max_concurrent_envs",
                    access.url,
                )
                sessions.pop().close()
                seen.append(json.dumps(sessions[-1].reset(**given).observation, sort_keys=True))
    finally:
        for session in sessions:
            session.close()
    if seeded and seen[0] != seen[1]:
        log.warning(
            "%s begins different episodes for equal seeds, so groups compare replies to different tasks; see whether its reset "
            "takes a seed, or what of its observations --env.render should not show",
            access.url,
        )


@cache
def _schemas(access: Access) -> dict[str, Any]:
    """Of a server, asked once per process."""
    return schemas(access)
