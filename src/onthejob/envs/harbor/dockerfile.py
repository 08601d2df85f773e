"""A Dockerfile's instructions, read without running anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onthejob.envs.harbor.refusal import words_of

NAMES = words_of(
    "FROM RUN COPY ADD WORKDIR ENV ARG USER CMD ENTRYPOINT EXPOSE VOLUME LABEL SHELL STOPSIGNAL HEALTHCHECK ONBUILD MAINTAINER"
)
_HEREDOC = re.compile(r"<<(-?)(['\"]?)([\w.-]+)\2")
_VARIABLE = re.compile(r"\\\$|\$(\w+)|\$\{(\w+)(?:(:?[-+])([^}]*))?\}")


class UnreadDockerfile(ValueError):
    """A Dockerfile that is not one; the message says which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction."""

    name: str
    """In capitals."""
    text: str
    """What stands behind its name, continued lines joined."""
    bodies: Mapping[str, str] = field(default_factory=dict)
    """Delimiter -> text of its heredocs."""

    @property
    def words(self) -> list[str]:
        """The words of the JSON or of the plain form, quotes removed."""
        if self.text.lstrip().startswith("["):
            try:
                found = json.loads(self.text)
            except ValueError:
                found = None
            if isinstance(found, list) and all(isinstance(word, str) for word in found):
                return found
        return [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", self.text)]

    @property
    def options(self) -> dict[str, str]:
        """Its flags, `--chmod=755` as chmod: 755."""
        return dict(_flags(self.text))

    @property
    def rest(self) -> Instruction:
        """The instruction without its flags."""
        return Instruction(name=self.name, text=re.sub(r"^(\s*--[\w-]+(=\S+)?)+\s*", "", self.text), bodies=self.bodies)


def _flags(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        if not word.startswith("--"):
            return
        name, _, value = word[2:].partition("=")
        yield name, value


def parse(text: str) -> list[Instruction]:
    """The instructions in order.

    Raises:
        UnreadDockerfile: a line begins with no instruction.
    """
    found: list[Instruction] = []
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            more = next(lines, None)
            if more is None:
                whole = whole[:-1]
                break
            # Comments and empty lines within a continued one do not end it.
            if more.lstrip().startswith("#") or not more.strip():
                continue
            whole = f"{whole[:-1]}{more.rstrip()}"
        name, _, rest = whole.partition(" ")
        name, rest = name.upper().strip(), rest.strip()
        if "\t" in name:
            name, _, rest = whole.upper().partition("\t")[0], "", whole.partition("\t")[2].strip()
        if name not in NAMES:
            raise UnreadDockerfile(f"{line.strip()[:60]!r} is no instruction")
        bodies: dict[str, str] = {}
        if name in ("RUN", "COPY", "ADD"):
            for cut, _, delimiter in _HEREDOC.findall(rest):
                body: list[str] = []
                for inner in lines:
                    if (inner.lstrip("\t") if cut else inner) == delimiter:
                        break
                    body.append(inner.lstrip("\t") if cut else inner)
                bodies[delimiter] = "\n".join(body) + "\n"
        found.append(Instruction(name=name, text=rest, bodies=bodies))
    return found


def assignments(instruction: Instruction) -> dict[str, str]:
    """Name -> value of an ENV or ARG, in either form; an ARG without a value has an empty one."""
    text = instruction.text
    if not re.match(r"\s*\w+\s*=", text):
        name, _, value = text.strip().partition(" ")
        return {name: value.strip()} if name else {}
    found = {}
    for name, value in re.findall(r"([\w.-]+)=((?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\\.|[^\s\"'\\])*)", text):
        found[name] = re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)[\"']", "", value))
    return found


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`text` with the variables that Docker replaces; unknown ones are empty."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "\\$":
            return "$"
        value = values.get(found[1] or found[2], "")
        if found[3] in ("-", ":-"):
            return value or found[4]
        if found[3] in ("+", ":+"):
            return found[4] if value else ""
        return value

    return _VARIABLE.sub(one, text)
