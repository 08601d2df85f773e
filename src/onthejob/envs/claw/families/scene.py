"""A task in the making: a family fills a Scene with files, a request, gold commands and what must hold at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onthejob.envs.claw.keyed_choices import Draw
from onthejob.envs.claw.task_schema import Assertion, AssertionKind, Difficulty, FileKind, SeedFile

GREETINGS = (
    *[""] * 8,
    "Hi! ",
    "Hello! ",
    "A small job: ",
    "One more thing. ",
    "Next: ",
    "For today: ",
    "As discussed: ",
    "To do: ",
)
"""What a request may begin with."""
THANKS = (*[""] * 8, "Thanks!", "Thank you.", "That is all.", "No hurry.", "I need it today.", "Tell me when it is done.")
"""What a request may end with."""


class Scene:
    """What a family's build function fills. Paths are relative to the workspace."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.intent = ""
        self.files: dict[str, SeedFile] = {}
        self.turns: list[str] = []
        self.steps = 0
        self.assertions: list[Assertion] = []
        self.answers: list[str] = []

    def text(self, path: str, lines: Iterable[str]) -> str:
        """Seed a text file that ends with a newline; returns its content."""
        content = "".join(f"{line}\n" for line in lines)
        self.files[path] = SeedFile(path=path, content=content)
        return content

    def stub(self, *paths: str) -> None:
        """Seed binary files of drawn sizes."""
        for path in paths:
            self.files[path] = SeedFile(path=path, kind=FileKind.BINARY_STUB, size_bytes=self.draw.number(64, 4096))

    def say(self, *wordings: str) -> None:
        """The request, in one of several wordings that ask for the same."""
        self.intent = f"{self.draw.pick(GREETINGS)}{self.draw.pick(wordings)} {self.draw.pick(THANKS)}".rstrip()

    def ask(self, openings: Iterable[str], *items: str | tuple[str, ...]) -> None:
        """A request of several parts: an opening sentence, then one line per part, each in one of its wordings."""
        parts = [self.draw.pick((item,) if isinstance(item, str) else item) for item in items]
        opening = f"{self.draw.pick(GREETINGS)}{self.draw.pick(tuple(openings))}"
        self.intent = "\n".join([opening, *(f"- {part}" for part in parts), self.draw.pick(THANKS)]).rstrip()

    def do(self, *commands: str) -> None:
        """One gold turn. Each command is one line and counts as one step."""
        self.turns.append("\n".join(commands))
        self.steps += len(commands)

    def exists(self, *paths: str) -> None:
        """Each of these must be a file or folder at the end."""
        self.assertions.extend(Assertion(kind=AssertionKind.FILE_EXISTS, path=path) for path in paths)

    def gone(self, *paths: str) -> None:
        """Nothing may be at these paths."""
        self.assertions.extend(Assertion(kind=AssertionKind.FILE_NOT_EXISTS, path=path) for path in paths)

    def contains(self, path: str, *parts: str) -> None:
        """The file must contain each of these strings."""
        self.assertions.append(Assertion(kind=AssertionKind.FILE_CONTENTS_CONTAIN, path=path, must_contain=parts))

    def matches(self, path: str, regex: str) -> None:
        """Something in the file must match."""
        self.assertions.append(Assertion(kind=AssertionKind.FILE_CONTENTS_MATCH_REGEX, path=path, regex=regex))

    def exact(self, path: str, content: str | Iterable[str]) -> None:
        """The file must hold this text or these lines, blank space at its end apart."""
        lines = content.splitlines() if isinstance(content, str) else list(content)
        self.matches(path, "^" + r"\n".join(literal(line) for line in lines) + r"\s*$")

    def value(self, path: str, value: int | str) -> None:
        """The file must hold nothing but this value, which the agent has to work out."""
        self.matches(path, rf"^\s*{literal(str(value))}\s*$")
        self.answers.append(str(value))

    def unchanged(self, *paths: str) -> None:
        """These seeded files must keep their bytes: guards."""
        self.assertions.extend(Assertion(kind=AssertionKind.FILE_UNCHANGED, path=path, guard=True) for path in paths)


def literal(text: str) -> str:
    """A pattern that matches `text` and nothing else, in Python's `re` and in RE2."""
    return "".join("\\" + char if char in r".^$*+?{}[]\|()" else r"\t" if char == "\t" else char for char in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks that differ in names, numbers, files and wording only."""

    name: str
    persona: str
    """Name of one of the eight personas."""
    difficulty: Difficulty
    build: Callable[[Scene, Draw], None]
    """Fills a scene; everything it chooses comes from the draw."""

    @property
    def summary(self) -> str:
        """The first line of the build function's docstring."""
        return (self.build.__doc__ or "").strip().splitlines()[0]


def easy(persona: str, *builds: Callable[[Scene, Draw], None]) -> tuple[Family, ...]:
    """Easy families of a persona, named after their build functions."""
    return _families(persona, Difficulty.EASY, builds)


def medium(persona: str, *builds: Callable[[Scene, Draw], None]) -> tuple[Family, ...]:
    """Medium families of a persona."""
    return _families(persona, Difficulty.MEDIUM, builds)


def hard(persona: str, *builds: Callable[[Scene, Draw], None]) -> tuple[Family, ...]:
    """Hard families of a persona."""
    return _families(persona, Difficulty.HARD, builds)


def _families(persona: str, difficulty: Difficulty, builds: Iterable[Callable[[Scene, Draw], None]]) -> tuple[Family, ...]:
    return tuple(
        Family(name=build.__name__.replace("_", "-"), persona=persona, difficulty=difficulty, build=build) for build in builds
    )
