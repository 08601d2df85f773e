"""`dataset:FILE`: prompts with a reward, one reply each, from JSON lines, CSV or Parquet.

A row has a prompt (a text, or messages of a conversation) and whatever the reward needs, usually an answer. The reward is a named
matcher, or a function of the user's: `function(reply, row) -> float`, or one written for TRL's GRPOTrainer,
`function(prompts, completions, **columns) -> list[float]`. Rows that have the same prompt are in the same split.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from onthejob.envs.env import Env
from onthejob.envs.exchange import Next, Reply
from onthejob.errors import ConfigError, MissingDependency
from onthejob.interop.content_split import drawn_split
from onthejob.types import Message, Observation, Split, Task

Row = Mapping[str, Any]
Reward = Callable[[str, Row], float]
ANSWERS = ("answer", "solution", "target", "label", "expected", "ground_truth", "output", "completion")
"""Columns that are taken for the answer, the first one that is there."""
SPLITS = {
    "train": Split.TRAIN,
    "training": Split.TRAIN,
    "dev": Split.DEV,
    "validation": Split.DEV,
    "valid": Split.DEV,
    "val": Split.DEV,
    "test": Split.TEST,
}
"""What a column `split` may say."""
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
CHOICE = re.compile(r"(?<![A-Za-z])\(?([A-Z])\)?(?![A-Za-z])")


class Dataset(Env):
    """Prompts of a file, one reply each, scored by a matcher or a function."""

    roles = ("agent",)
    max_turns = 1
    file: ClassVar[str] = ""
    """Path of the file; `environment` makes a subclass of each file."""

    max_new_tokens: int = 128  # type: ignore[misc]
    """Limit of a reply in tokens."""
    reward: str = "exact"
    """How a reply is scored: exact, contains, number, choice, regex, json, or a function of yours as path/to/file.py:name or
    package.module:name."""
    prompt: str = "prompt"
    """Column of the prompt: a text, or a list of messages with role and content."""
    answer: str = ""
    """Column of the answer, for the matchers and the player gold; empty takes the first of answer, solution, target, label, and
    others. With a function of yours gold exists only where it is named."""
    system: str = ""
    """System message before every prompt that is a text."""
    threads: int = 1  # type: ignore[misc]
    """Threads that score replies; more than 1 where a function waits for something."""

    def tasks(self, split: Split) -> list[Task]:
        """The rows of a split."""
        table, name = rows_of(self.file), Path(self.file).stem
        self._check_columns(table)
        return [
            Task(id=f"{name}-{number:06d}", env="dataset", split=split, seed=number, payload=dict(row))
            for number, row in enumerate(table)
            if self._split(row, number) is split
        ]

    def reset(self, task: Task) -> Next:
        """Show the row's prompt."""
        self.row = dict(task.payload)
        prompt, view = self.row[self.prompt], {"row": task.seed}
        if isinstance(prompt, str):
            return self.ask("agent", prompt, system=self.system, view=view)
        messages = tuple(Message(str(message["role"]), str(message["content"])) for message in prompt)
        return self.ask("agent", messages[-1].content, before=messages[:-1], view=view)

    def step(self, reply: str) -> Next:
        """Score the reply."""
        paid = self.scored(reply)
        return self.end(reward=paid, metrics={"correct": float(paid >= 1.0)})

    def scored(self, reply: str) -> float:
        """The reward of a reply to the row that is shown; raises as `scored`."""
        return scored(self.reward, reply, self.row, self.answer, self.file)

    def players(self) -> Mapping[str, Reply]:
        """`gold` replies with the row's answer, where rows have one that is also a right reply."""
        known = self.answer if self.reward not in MATCHERS else self.reward not in UNWRITTEN
        return {"gold": self._gold} if known else {}

    def _gold(self, seen: Observation, _seed: int) -> str:
        row, where = rows_of(self.file)[int(seen.view["row"])], f"{self.file}, row {int(seen.view['row']) + 1}"
        return written(self.reward, row[answer_column(row, self.reward, self.answer, where)])

    def fingerprint(self) -> str:
        """Of the file, and of the reward's source where it is a function."""
        own = "" if self.reward in MATCHERS else source_of(self.reward)
        return hashlib.sha256(Path(self.file).read_bytes() + own.encode()).hexdigest()[:12]

    def anchored(self) -> Mapping[str, Any]:
        """The reward's file is found from every folder."""
        from onthejob import plugins

        return {} if self.reward in MATCHERS else {"reward": plugins.anchored(self.reward)}

    def _check_columns(self, table: Sequence[Row]) -> None:
        for number, row in enumerate(table):
            where = f"{self.file}, row {number + 1}"
            if self.prompt not in row:
                known = ", ".join(row)
                raise ConfigError(f"{where} has no column {self.prompt!r}: it has {known}. Name the prompt's with --env.prompt.")
            prompt = row[self.prompt]
            if isinstance(prompt, str):
                continue
            if not (isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt)):
                raise ConfigError(f"{where}: a prompt is a text or a list of messages with role and content, got {prompt!r:.80}.")
            if prompt[-1]["role"] != "user":
                raise ConfigError(f"{where}: the last message of a prompt is the user's, got role {prompt[-1]['role']!r}.")
            if self.system:
                raise ConfigError(f"--env.system has no effect on {where}, whose prompt is a list of messages. Leave it out.")
        check_reward(self.reward, table, self.answer, self.file)

    def _split(self, row: Row, number: int) -> Split:
        return split_of(row, row[self.prompt], f"{self.file}, row {number + 1}")


def environment(path: str) -> type[Dataset]:
    """The environment of one file."""
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise ConfigError(f"there is no file {path}. Name one that ends with {', '.join(READERS)}.")
    if file.suffix not in READERS:
        raise ConfigError(f"{path} must end with one of {', '.join(READERS)}, got {file.suffix or 'no ending'!r}.")
    return _kind(str(file))


def anchored(path: str) -> str:
    """The file's absolute path."""
    return str(Path(path).expanduser().absolute())


@cache
def _kind(file: str) -> type[Dataset]:
    # Messages and tables name it by its file.
    return type(Path(file).stem, (Dataset,), {"file": file, "__module__": __name__, "__doc__": f"Prompts of {Path(file).name}."})


def split_of(row: Row, content: Any, where: str) -> Split:
    """The split of a row: what its column `split` says, else drawn from `content`, so that equal contents are in the same one."""
    if "split" in row:
        said = str(row["split"]).lower()
        if said not in SPLITS:
            raise ConfigError(f"{where}: split must be one of {', '.join(SPLITS)}, got {said!r}.")
        return SPLITS[said]
    return drawn_split(json.dumps(content, sort_keys=True))


def rows_of(file: str) -> list[Row]:
    """The rows of a file, which is read once per process and state."""
    path = Path(file)
    found = path.stat()
    return _rows(file, found.st_mtime_ns, found.st_size)


@cache
def _rows(file: str, _changed: int, _size: int) -> list[Row]:
    path = Path(file)
    try:
        table = READERS[path.suffix](path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    if not table:
        raise ConfigError(f"{file} holds no row. Write one prompt per row.")
    return table


def _json_lines(path: Path) -> list[Row]:
    table: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}. Write one object per line.") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number} must be an object with a prompt, got {row!r:.60}.")
        table.append(row)
    return table


def _csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [{str(name): value for name, value in row.items()} for row in csv.DictReader(file, strict=True)]


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise MissingDependency("Parquet files need pyarrow: pip install 'onthejob[export]'.") from error
    try:
        # Through JSON, so that a task can be recorded: dates become text.
        return json.loads(json.dumps(parquet.read_table(path).to_pylist(), default=str))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no Parquet file: {error}.") from error


READERS: Mapping[str, Callable[[Path], list[Row]]] = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
"""Ending -> reader."""


def exact(reply: str, row: Row) -> float:
    """1 where the reply is the answer, apart from case and white space."""
    return float(_plain(reply) == _plain(row["answer"]))


def contains(reply: str, row: Row) -> float:
    """1 where the answer stands in the reply as words of its own."""
    return float(re.search(rf"(?<!\w){re.escape(_plain(row['answer']))}(?!\w)", _plain(reply)) is not None)


def number(reply: str, row: Row) -> float:
    """1 where the last number of the reply is the last number of the answer."""
    said, meant = _last_number(reply), _last_number(str(row["answer"]))
    return float(said is not None and meant is not None and math.isclose(said, meant, rel_tol=1e-9, abs_tol=1e-9))


def choice(reply: str, row: Row) -> float:
    """1 where the first capital letter that stands alone is the answer's."""
    said, meant = CHOICE.search(reply), CHOICE.search(str(row["answer"]).upper())
    return float(said is not None and meant is not None and said[1] == meant[1])


def regex(reply: str, row: Row) -> float:
    """1 where the whole reply, without the white space around it, matches the answer, a regular expression."""
    return float(re.fullmatch(str(row["answer"]), reply.strip()) is not None)


def json_equal(reply: str, row: Row) -> float:
    """1 where the reply is JSON and equals the answer."""
    meant = row["answer"]
    try:
        return float(json.loads(reply) == (json.loads(meant) if isinstance(meant, str) else meant))
    except (ValueError, RecursionError):
        return 0.0


MATCHERS: Mapping[str, Reward] = {
    "exact": exact, "contains": contains, "number": number, "choice": choice, "regex": regex, "json": json_equal,
}  # fmt: skip


UNWRITTEN = ("regex",)
"""Matchers whose answer describes right replies and is none itself."""


def written(reward: str, answer: Any) -> str:
    """The right reply that an answer stands for: its letter for `choice`, JSON for `json`, else its text."""
    text = json.dumps(answer, ensure_ascii=False) if reward == "json" and not isinstance(answer, str) else str(answer)
    letter = CHOICE.search(text.upper()) if reward == "choice" else None
    return text if letter is None else letter[1]


def reward_of(named: str) -> Reward:
    """The matcher or function of this name, as (reply, row) -> reward."""
    if named in MATCHERS:
        return MATCHERS[named]
    if ":" not in named:
        known = ", ".join(MATCHERS)
        raise ConfigError(f"--env.reward must be one of {known}, or file.py:name, or package.module:name; got {named!r}.")
    found = _function(named)
    if "completions" in inspect.signature(found).parameters:
        return partial(_as_in_trl, found)
    return found


def scored(reward: str, reply: str, row: Row, answer: str, file: str) -> float:
    """The reward of a reply to a row.

    Args:
        reward: name of a matcher, or a function.
        reply: any text.
        row: all columns.
        answer: the column of the answer, for matchers; empty takes the first of `ANSWERS` that is there.
        file: where the row stands, for messages.

    Raises:
        RuntimeError: the function returned no finite number, or raised; the episode is recorded and not trained on.
    """
    given = {**row, "answer": row[answer_column(row, reward, answer, file)]} if reward in MATCHERS else row
    function = reward_of(reward)
    try:
        paid = function(reply, given)
    except Exception as error:
        raise RuntimeError(
            f"the reward {reward} raised {type(error).__name__}: {error}, for the reply {reply!r:.80}. A reward "
            "must take every text that a model can write."
        ) from error
    try:
        figure = float(paid)
    except (TypeError, ValueError):
        figure = math.nan
    if not math.isfinite(figure):
        raise RuntimeError(f"the reward {reward} must return a finite number, got {paid!r:.80}. Return a float.")
    return figure


def check_reward(reward: str, table: Sequence[Row], answer: str, file: str) -> None:
    """Refuse a reward that is none, or a matcher where a row has no answer."""
    if reward not in MATCHERS:
        reward_of(reward)
        if not answer:
            return
    for number, row in enumerate(table):
        where = f"{file}, row {number + 1}"
        if (name := answer_column(row, reward, answer, where)) not in row:
            raise ConfigError(f"{where} has no column {name!r}. Correct --env.answer.")


def answer_column(row: Row, reward: str, named: str, where: str) -> str:
    """The column of the answer: the one that is named, else the first of `ANSWERS` that is there."""
    if named:
        return named
    found = next((name for name in ANSWERS if name in row), None)
    if found is None:
        raise ConfigError(
            f"{where} has no column of answers for --env.reward {reward}: its columns are "
            f"{', '.join(row)}. Name one with --env.answer, or score with a function of yours: --env.reward file.py:name."
        )
    return found


def source_of(named: str) -> str:
    """The text of the file in which a reward function is defined."""
    from onthejob import plugins

    return plugins.source_of(_function(named))


def _function(named: str) -> Callable[..., Any]:
    from onthejob.plugins import function_of

    return function_of(named, "--env.reward")


def _as_in_trl(function: Callable[..., Any], reply: str, row: Row) -> float:
    """Call a reward function of TRL's with one prompt; a None of its, by which it abstains, is 0."""
    prompt = row.get("prompt")
    talk = not isinstance(prompt, str)
    completion: Any = [{"role": "assistant", "content": reply}] if talk else reply
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    taken = inspect.signature(function).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        columns = {name: value for name, value in columns.items() if name in taken}
    given = {"prompts": [prompt], "completions": [completion], **columns}
    if "prompts" not in taken and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        del given["prompts"]
    (paid,) = function(**given)
    return 0.0 if paid is None else paid


def _plain(value: object) -> str:
    return " ".join(str(value).split()).casefold()


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    if not found:
        return None
    above, _, below = found[-1].replace(",", "").partition("/")
    try:
        return float(above) / float(below) if below else float(above)
    except (ZeroDivisionError, OverflowError):
        return None


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
