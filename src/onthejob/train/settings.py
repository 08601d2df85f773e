"""The settings with which a run is made; a resumed run repeats them, or it would be two experiments under one name."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from onthejob.errors import ConfigError
from onthejob.learn.earlier import MOVED, SAME
from onthejob.train.state import Setup

log = logging.getLogger(__name__)

FREE = frozenset({"iterations", "minutes", "workers", "learner.max_tokens", "learner.gradient_checkpointing"})
"""May change on a resume: how long and how fast a run goes, which changes nothing of what an iteration does."""
_SHOWN = 60


def settings_of(setup: Setup) -> dict[str, Any]:
    """Dotted name -> value in JSON's types, named as the options of `onthejob train` are where there is one."""
    config = asdict(setup.config)
    loop = {name: value for name, value in config.items() if name not in ("collect", "branch", "sampling")}
    nested = {
        **loop,
        **{name: config[name] for name in ("collect", "branch", "sampling")},
        "learner": asdict(setup.learner.config),
        "judging": None if setup.judge is None else asdict(setup.judge.config),
        "partners": {actor: policy.version for actor, policy in sorted(setup.partners.items())},
        "base_digest": setup.base_digest,
        "pool": setup.pool.identity(),
    }
    return json.loads(json.dumps(dict(flat(nested))))


def check_settings(recorded: Mapping[str, Any] | None, setup: Setup) -> None:
    """Refuse to resume a run under other settings than it was made with; what may change is recorded as a live message.

    Args:
        recorded: as `settings_of` gave it at the last checkpoint; None in checkpoints of versions that kept none.
        setup: of the resumed run.

    Raises:
        ConfigError: names the settings that differ, with both values.
    """
    if recorded is None:
        return
    now, recorded = settings_of(setup), _as_now(recorded)
    # A setting that one of two versions does not know is at its default there, which may have another name here.
    changed = {name: (recorded[name], now[name]) for name in recorded.keys() & now.keys() if recorded[name] != now[name]}
    changed |= {
        name: (recorded.get(name), now.get(name)) for name in recorded.keys() ^ now.keys() if name.startswith("partners.")
    }
    wrong = [f"{name} {_shown(old)} (now {_shown(new)})" for name, (old, new) in sorted(changed.items()) if name not in FREE]
    if wrong:
        raise ConfigError(
            f"run {setup.run.path} was made with {', '.join(wrong)}. Resume it with its own settings (iterations, minutes, "
            "workers and the learner's memory options may change), or start a new run from its adapters."
        )
    if changed:
        log.info("resumed with other %s", ", ".join(f"{name}: {old} -> {new}" for name, (old, new) in sorted(changed.items())))
        setup.run.live("resumed", {"iteration": setup.run.last_iteration(), "changed": changed})


def _as_now(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings by their names and values of now."""
    found: dict[str, Any] = {}
    for name, value in recorded.items():
        table = next((table for table in MOVED if name.startswith(f"{table}.")), None)
        named = name if table is None else MOVED[table] + name.removeprefix(table)
        found[named] = SAME.get((name, value), value) if isinstance(value, str) else value
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted name -> value of nested tables."""
    return [
        pair
        for name, value in values.items()
        for pair in (flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)])
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
