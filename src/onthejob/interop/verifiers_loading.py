"""How `verifiers_child` loads a package of `verifiers`, and why one cannot be played; it imports nothing of onthejob either."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
from pathlib import Path
from typing import Any

CHAT = "onthejob_chat"
"""Id of the harness that plays a plain conversation."""
MODEL = "policy"
UNLIMITED_S = 1e7
"""Time of an agent: most of it is spent on sampling, which is not the agent's doing."""


class Refused(Exception):
    """What cannot be played, in one sentence."""


def loaded(
    *, env: str, taskset: str, args: dict[str, Any], env_args: dict[str, Any], count: int, max_turns: int
) -> tuple[Any, list[Any]]:
    """The environment, and the first `count` of its tasks.

    Raises:
        Refused: there is none, or it cannot be played.
    """
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    try:
        importlib.import_module(vf.import_taskset(taskset).__name__)
        kind = vf.env_config_type(taskset, env)
    except ModuleNotFoundError as error:
        raise Refused(f"a module is missing in this interpreter; install its package there ({said(error)[:200]})") from error
    except Exception as error:
        raise Refused(f"the package cannot be loaded: {said(error)}") from error
    roles = {name: one.default for name, one in kind.model_fields.items() if isinstance(one.default, vf.AgentConfig)}
    if len(roles) != 1:
        raise Refused(f"{kind.__name__} has the agents {', '.join(roles) or 'none'}, and only one agent can be played")
    ((role, seat),) = roles.items()
    own = dict(env_args.get(role) or {})
    pinned = own.pop("harness", None) or (seat.harness and seat.harness.model_dump()) or {"id": vf.default_harness_id(taskset)}
    # "bash" is what verifiers falls back to where nothing is pinned.
    plain = pinned["id"] == "null" or (
        pinned["id"] == "bash" and seat.harness is None and "harness" not in (env_args.get(role) or {})
    )
    harness = {"id": CHAT} if plain else pinned
    limit = min(max_turns, own.get("max_turns") or seat.max_turns or max_turns)
    fixed = {"harness": harness, "runtime": {"type": "subprocess"}, "max_turns": limit, "model": MODEL, "client": None}
    fixed |= {"timeout": {"rollout": UNLIMITED_S}, "retries": {"max_retries": 0}}
    try:
        config = vf.resolve_env_config(
            {**env_args, "id": env, "taskset": {**args, "id": taskset}, "retries": {"max_retries": 0}, role: {**own, **fixed}}
        )
        made = vf.load_environment(config)
        tasks = list(itertools.islice(made.taskset, count))
    except Exception as error:
        raise Refused(f"it cannot be loaded: {said(error)}{offline(error)}") from error
    if not tasks:
        raise Refused("its taskset yields no task")
    if reason := why_not(made, harness, tasks):
        raise Refused(reason)
    return made, tasks


def why_not(env: Any, harness: dict[str, Any], tasks: list[Any]) -> str:
    """Why an environment cannot be played; empty when it can."""
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    program, kind, config = (
        vf.load_harness(vf.harness_config_type(harness["id"]).model_validate(harness)),
        type(tasks[0]),
        env.config.taskset,
    )
    if program.NEEDS_CONTAINER or program.EXECUTES_CODE:
        return f"its harness {harness['id']!r} runs programs that the model controls, which needs a container of its own"
    if kind.NEEDS_CONTAINER or kind.toolsets(config.task) or env.taskset.toolsets(config):
        needs = "a container" if kind.NEEDS_CONTAINER else "tools, and a reply is text"
        return f"{kind.__name__} needs {needs}"
    for judge in config.task.judges:
        if not os.environ.get(judge.api_key_var):
            return f"its judge {judge.id!r} asks the model {judge.model}, and there is no key for it in {judge.api_key_var}"
    for task in tasks:
        data = task.data
        if data.image or data.skills or data.agent_user or data.network_block or "*" not in data.network_allow:
            return f"task {data.idx} needs a container (an image, a user, skills or a network of its own)"
        if data.prompt is None and type(env) is vf.SingleAgentEnv:
            return f"task {data.idx} has no prompt, and no environment that begins the conversation"
        if isinstance(data.prompt, list):
            if any(not isinstance(message.content, str) for message in data.prompt):
                return f"the prompt of task {data.idx} holds an image or parts, and only text is shown"
            if data.prompt[-1].role != "user":
                return f"the prompt of task {data.idx} ends with a message of the {data.prompt[-1].role}, not of the user"
    return ""


def content(task: Any) -> str:
    """Digest of what a task is about; equal for tasks that differ by number and name only."""
    row = task.data.model_dump(mode="json", exclude={"idx", "id", "name"}, exclude_none=True)
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def about(taskset: str, env: str) -> dict[str, str]:
    """Versions of the packages and digests of their sources."""
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    found = {"verifiers": importlib.metadata.version("verifiers")}
    owners = importlib.metadata.packages_distributions()
    for module in [vf.import_taskset(taskset), *([vf.import_environment(env)] if env else [])]:
        name = module.__name__
        file = Path(module.__file__ or "")
        sources = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        digest = hashlib.sha256(b"\0".join(one.read_bytes() for one in sources)).hexdigest()[:12]
        versions = [importlib.metadata.version(owner) for owner in sorted(set(owners.get(name.partition(".")[0], ())))]
        found[name] = " ".join([*versions, digest])
    return found


def said(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def offline(error: BaseException | None) -> str:
    """A hint where an error is one of a missing connection."""
    while error is not None:
        roots = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if roots & {"huggingface_hub", "datasets", "requests", "httpx", "httpcore", "urllib3"} or isinstance(
            error, ConnectionError
        ):
            return ". Its data come from the network, e.g. Hugging Face's Hub: load it once where there is a connection"
        error = error.__cause__ or error.__context__
    return ""
