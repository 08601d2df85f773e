"""The process in which Reasoning Gym makes items and scores answers; `Items` of `reasoning_gym_items` starts it and talks to it.

It is a process of its own for three reasons. Some datasets draw from sets of texts, whose order depends on PYTHONHASHSEED, which
only a new process can set; items are therefore the same everywhere. Some scorers pass the answer to `eval` or to sympy, where a
short text can compute for years; limits on processor time and memory end that. And the package's imports stay out of training.

While an answer is scored, code in it cannot start processes, open connections or write files; that is a guard against accidents
of sampling, not a sandbox. The file imports nothing of onthejob. One line of JSON is read per request, and one is written.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import random
import resource
import signal
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

SCORE_CPU_S = 5
"""Processor time for an answer; scored as unusable after it."""
SCORE_WALL_S = 20
"""Time for an answer that waits instead of computing."""
MAKE_CPU_S = 300
"""Processor time for an item, and for importing the package."""
MEMORY_BYTES = 6 << 30
DRAWN_AT_ONCE = {"acre": 10, "gsm_symbolic": 2, "list_functions": 2}
"""Datasets that draw all items when they are made -> size with which the last item is as varied as those of a large one."""
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
"""Keys of an item's metadata that hold a right answer where many are right."""
REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "fcntl.", "tempfile.", "builtins.input")
HARMLESS = ("os.listdir", "os.scandir")
"""Events of `sys.addaudithook` that importing a module raises."""


class Overtime(BaseException):
    """An answer took too long to score; no `except Exception` of a scorer catches it."""


class Scoring:
    """Within it the guards are on."""

    on = False

    def __enter__(self) -> None:
        Scoring.on = True
        limit_cpu(2 * SCORE_CPU_S)
        # Again every second, in case a bare `except` catches it.
        signal.setitimer(signal.ITIMER_VIRTUAL, SCORE_CPU_S, 1)
        signal.setitimer(signal.ITIMER_REAL, SCORE_WALL_S, 1)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        Scoring.on = False
        limit_cpu(MAKE_CPU_S)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook."""
    if not Scoring.on:
        return
    writes = False
    if event == "open" and len(arguments) == 3:
        _, mode, flags = arguments
        written = set("wax+") & set(mode) if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        writes = bool(written)
    if writes or (event.startswith(REFUSED) and event not in HARMLESS):
        raise PermissionError(f"{event} is not allowed while an answer is scored")


def overtime(*_: object) -> None:
    """The handler of the timer."""
    raise Overtime


def limit_cpu(seconds: int) -> None:
    """End the process when it has used this much more processor time, also inside a computation that heeds no signal."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def kinds() -> dict[str, Any]:
    """Name -> (class, class of its configuration)."""
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]  # without a compiler it is not installed

    return {name: kind for name, kind in DATASETS.items() if name != "composite"}


def names() -> list[str]:
    """Names of all datasets."""
    return sorted(kinds())


def prompts() -> dict[str, str]:
    """The package's own system prompts."""
    from reasoning_gym.utils import SYSTEM_PROMPTS  # pyright: ignore[reportMissingImports]  # without a compiler it is not installed

    return dict(SYSTEM_PROMPTS)


def checked(name: str, config: str) -> str:
    """A sentence on what is wrong with a configuration; empty when nothing is."""
    given = json.loads(config)
    fields = {one.name for one in dataclasses.fields(kinds()[name][1])} - {"seed", "size"}
    if unknown := sorted(set(given) - fields):
        return f"{name} has no setting {unknown[0]!r}; it has {', '.join(sorted(fields)) or 'none'}"
    try:
        made(name, config)
    except Exception as error:
        return f"{name} refuses {config}: {str(error) or type(error).__name__}"
    return ""


@lru_cache(maxsize=32)
def made(name: str, config: str) -> Any:
    """A dataset from which those of other seeds are copied, as some read large files when they are made."""
    return new(name, config, seed=0, size=1)


def new(name: str, config: str, *, seed: int, size: int) -> Any:
    """A dataset."""
    dataset, settings = kinds()[name]
    defaults = settings()
    given = {
        key: tuple(value) if isinstance(value, list) and isinstance(getattr(defaults, key), tuple) else value
        for key, value in json.loads(config).items()
    }
    return dataset(config=settings(**given, seed=seed, size=size))


def of_seed(name: str, config: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """The dataset of a seed, and its item."""
    import numpy as np

    # Programs that codeio runs draw from the global generators.
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if name in DRAWN_AT_ONCE:
        size = DRAWN_AT_ONCE[name]
        dataset = new(name, config, seed=seed, size=size)
        return dataset, dataset[size - 1]
    dataset = copy.copy(made(name, config))
    dataset.config, dataset.seed = dataclasses.replace(dataset.config, seed=seed), seed
    return dataset, dataset[0]


@lru_cache(maxsize=512)
def kept(name: str, config: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """The same, of the items met last."""
    return of_seed(name, config, seed)


def item(name: str, config: str, seed: int) -> dict[str, str | None]:
    """The question of a seed, and a right answer where one is known."""
    entry = kept(name, config, seed)[1]
    known = [entry["answer"], *(entry["metadata"].get(key) for key in EXAMPLES)]
    answer = next((one for one in known if one is not None), None)
    written = answer if isinstance(answer, str) or answer is None else json.dumps(answer)
    return {"question": entry["question"], "answer": written}


def score(name: str, config: str, seed: int, reply: str) -> dict[str, Any]:
    """The score of a reply, and why it is 0 where it cannot be scored."""
    from reasoning_gym.utils import extract_answer  # pyright: ignore[reportMissingImports]  # without a compiler it is not installed

    found = extract_answer(reply)
    answer = reply.strip() if found is None else found
    dataset, entry = kept(name, config, seed)
    entry = copy.deepcopy(entry)
    try:
        with Scoring():
            paid = float(dataset.score_answer(answer, entry))
    except Overtime:
        return {"score": 0.0, "unusable": "scoring it takes too long"}
    except Exception as error:
        return {"score": 0.0, "unusable": f"{type(error).__name__}: {error}"[:200]}
    if not math.isfinite(paid):
        return {"score": 0.0, "unusable": f"it scores {paid}"}
    # An empty answer is the right one of a few items.
    return {"score": paid, "unusable": "" if answer or paid > 0 else "it is empty"}


CALLS = {"names": names, "prompts": prompts, "checked": checked, "item": item, "score": score}


def main() -> None:
    """Answer requests until the other end is closed."""
    # What the package prints, and what an answer reads, must not meet the requests.
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with Path(os.devnull).open("r+b") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        os.dup2(nowhere.fileno(), 1)
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    limit_cpu(MAKE_CPU_S)
    import reasoning_gym  # noqa: F401  # pyright: ignore[reportMissingImports]

    # An answer that crashes the interpreter leaves no file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGVTALRM, overtime)
    signal.signal(signal.SIGALRM, overtime)
    sys.addaudithook(refuse)
    for line in requests:
        call, arguments = json.loads(line)
        limit_cpu(MAKE_CPU_S)
        try:
            row: dict[str, Any] = {"value": CALLS[call](*arguments)}
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(row) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
