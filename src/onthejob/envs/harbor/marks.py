"""Whether a task's tests may run what the agent wrote, or read a verdict that the agent could have written.

In Harbor the tests run where the agent worked. Here they run in a second sandbox on a copy of its tree, with the agent's
processes dead; but tests that import or start a program of the agent's hand over a process that may write the verdict. Such a
task is marked with the reason. All of it is read from the tests' text, and what cannot be read is marked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from onthejob.envs.claw.sandbox.sandbox_interface import Content, Kind, as_item
from onthejob.envs.claw.separation import WORTH_PARSING, reasons, starts_programs
from onthejob.envs.harbor.refusal import words_of
from onthejob.envs.harbor.shell import Command, UnreadScript, arguments, commands

TESTS, VERDICTS = "/tests", "/logs/verifier"
FRAMEWORKS = frozenset({"pytest", "unittest"})
"""Modules that run the tests' own code in their own process."""
READING = words_of(
    "echo printf cat cd set exit test [ [[ grep egrep fgrep diff cmp wc head tail sort uniq cut tr awk gawk sed stat ls "
    "find jq md5sum sha1sum sha256sum cksum true false : export local return shift trap date sleep touch rm cp mv chmod "
    "mkdir tee basename dirname readlink realpath bc let declare readonly unset read pwd which command type seq expr du "
    "file od xxd base64 gzip gunzip zcat tar unzip column comm paste join fold nl rev tac id whoami break continue shopt wc "
    "umask mktemp pushd popd ps pgrep apt-get apt pip pip3 curl uv"
)
"""Programs of a test script that run nothing of the agent's. Of the last row the verifier's own stand-ins are run."""
UV_VALUED = frozenset({"-p", "-w", "--with", "--python", "--from", "--index", "--extra"})
"""Options of uv of which the value stands apart."""
SHELLS = (".sh", ".bash")
UNPACKS = re.compile(rb"\bextractall\b|\bunpack_archive\b|\.extract\(")
_CODE_VARIABLE = re.compile(
    r"\b(PATH|PYTHONPATH|PYTHONHOME|LD_LIBRARY_PATH|LD_PRELOAD|BASH_ENV|PERL5LIB|NODE_PATH|TESTS?_?(?:DIR|ROOT|PATH)?)\+?=([^\s;]*)"
)
_TESTS_FOLDER = re.compile(r"/tests\b|\$\(|\$\{TESTS?_?(DIR|ROOT|PATH)?:?-/tests")
_OF_SYSTEM = re.compile(
    r"\$\{?(PATH|PYTHONPATH)\}?|/usr/[\w./-]*|/s?bin|(\$\{?HOME\}?|/root|~)/\.(local|cargo)/bin|/run/[\w./-]*"
)
_PYTHON = re.compile(r"python[\d.]*")
_OWN_FILE = re.compile(r"(\$\{?TEST(S)?_?(DIR|ROOT|PATH)?\}?|/tests)(/|$)|.*BASH_SOURCE|.*dirname.*\$0")
_ENVIRONMENT = re.compile(r"\$\{?HOME\}?/\.(local/bin|cargo)/env|/root/\.(local/bin|cargo)/env|~/\.(local/bin|cargo)/env")
_VALUED = words_of(
    "-k -m -p -c -o -W -n --ctrf --json-ctrf --junitxml --rootdir --timeout --maxfail --tb --color --durations --confcutdir "
    "--import-mode --log-level --basetemp --report-log"
)


def why_marked(tests: Mapping[str, Content]) -> str:
    """The reason why what the agent wrote may decide the verdict; empty when it cannot.

    `tests` are the files of its `tests` folder.
    """
    texts = {path: item.data for path, content in tests.items() if (item := as_item(path, content)).kind is Kind.FILE}
    return next(_reasons(texts), "")


def _reasons(texts: Mapping[str, bytes]) -> Iterator[str]:
    for path, data in sorted(texts.items()):
        if path.endswith(".py"):
            yield from _of_python(path, data)
        elif path.endswith((".sh", ".bash")) or data.startswith(b"#!"):
            yield from _of_shell(path, data.decode("utf-8", "replace"))


def _of_python(path: str, data: bytes) -> Iterator[str]:
    if starts_programs({path: data}):
        yield f"{path} starts programs"
    if UNPACKS.search(data):
        yield f"{path} unpacks an archive, which may write anywhere"
    if not WORTH_PARSING.search(data):
        return
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield f"{path} cannot be read as Python"
        return
    yield from (f"{path} {reason}" for reason in reasons(tree, FRAMEWORKS))


def _of_shell(path: str, script: str) -> Iterator[str]:
    try:
        found = commands(script)
    except UnreadScript as error:
        yield f"{path} cannot be read: {error}"
        return
    yield from (f"{path} {reason}" for reason in _of_variables(script))
    inside, before = False, Command()
    for command in found:
        inside = _enters_tests(command, inside)
        # What the network's installer would be is a stand-in here that prints nothing.
        installs = before.program == "curl" and command.program in ("sh", "bash") and not command.body
        if not installs and (reason := _of_command(command, inside=inside)):
            yield f"{path} {reason}"
        before = command
        yield from (f"{path} {reason}" for reason in _verdict_from_elsewhere(command))


def _enters_tests(command: Command, inside: bool) -> bool:
    """Whether commands after this one run in the folder of the tests."""
    if command.program not in ("cd", "pushd"):
        return inside
    return len(command.words) > 1 and _OWN_FILE.match(command.words[1]) is not None


def _of_command(command: Command, *, inside: bool) -> str:
    """What makes a command of a test script one that may run the agent's code; empty when nothing does."""
    program, words = command.program, command.words
    if not program:
        return ""
    said = " ".join(words)[:60]
    if program in ("pytest", "py.test"):
        return _of_pytest(words[1:], inside=inside)
    if _PYTHON.fullmatch(program):
        return _of_interpreter(command, inside=inside)
    if program in ("uvx", "uv") and "pytest" in words:
        return _of_pytest(_behind_pytest(words), inside=inside)
    if program in ("source", "."):
        fine = len(words) > 1 and (_ENVIRONMENT.fullmatch(words[1]) or _is_own(words[1], SHELLS, inside=inside))
        return "" if fine else f"runs {said!r}"
    if program in ("bash", "sh"):
        files = [word for word in words[1:] if not word.startswith("-")]
        return "" if files and "-c" not in words and _is_own(files[0], SHELLS, inside=inside) else f"runs {said!r}"
    if program in ("tar", "unzip") and not re.match(r"-?-?(t|l|list|z1|Z)", words[1] if len(words) > 1 else ""):
        return f"unpacks an archive ({said!r}), which may write anywhere"
    if program == "find" and any(word in ("-exec", "-execdir", "-ok") for word in words):
        return f"runs {said!r}"
    if program in ("awk", "gawk", "sed") and (
        "-f" in words or re.search(r"system\s*\(|\|\s*getline|(^|[;{}/])\s*e(\s|$)", " ".join(words[1:]))
    ):
        return f"runs {said!r}"
    if program in READING or _is_own(program, SHELLS, inside=False):
        return ""
    return f"runs {said!r}"


def _behind_pytest(words: list[str]) -> list[str]:
    """Arguments of the pytest that `uvx -w pytest pytest ...` or `uv run pytest ...` starts."""
    at = 1
    while at < len(words) and words[at] != "pytest":
        at += 2 if words[at] in UV_VALUED else 1
    return words[at + 1 :]


def _is_own(word: str, endings: tuple[str, ...], *, inside: bool) -> bool:
    """Whether a word names a file of the tests that is read for its reasons too."""
    return word.endswith(endings) and (_OWN_FILE.match(word) is not None or (inside and not word.startswith(("/", "~", ".."))))


def _of_variables(script: str) -> Iterator[str]:
    """Variables that say where programs and their code are found, set to a folder that the agent may write to."""
    for name, value in _CODE_VARIABLE.findall(script):
        if name.startswith("TEST") and _TESTS_FOLDER.match(value.strip("\"'")):
            continue
        parts = [part for part in re.split(r"[:\"']", value) if part]
        if not all(_OF_SYSTEM.fullmatch(part) or _OWN_FILE.match(part) for part in parts):
            yield f"sets {name} to {value[:60]}"


def _of_interpreter(command: Command, *, inside: bool) -> str:
    """Of `python ...`: fine are a file of the tests, pytest on them, and text that is itself fine."""
    words = command.words[1:]
    while words and words[0].startswith("-") and words[0] not in ("-c", "-m", "-"):
        del words[0]
    if not words or words[0] == "-":
        return _of_text(command.body) if command.body else "runs Python on what it reads"
    if words[0] == "-c":
        return _of_text(words[1]) if len(words) > 1 else ""
    if words[0] == "-m":
        module = words[1] if len(words) > 1 else ""
        if module == "pytest":
            return _of_pytest(words[2:], inside=inside)
        return "" if module in ("pip", "venv", "json.tool") else f"runs the module {module}"
    return "" if _is_own(words[0], (".py",), inside=inside) else f"runs {words[0]!r}"


def _of_text(text: str) -> str:
    """Of Python in a shell script, in which the shell may replace variables."""
    plain = re.sub(r"\$\{?\w+\}?|\$\([^)]*\)", "0", text).encode()
    return next((reason.partition(" ")[2] for reason in _of_python("-", plain)), "")


def _of_pytest(words: list[str], *, inside: bool) -> str:
    """Pytest runs what it is pointed at, so that must be the tests."""
    paths = [*arguments(words, _VALUED)]
    if paths and all(_OWN_FILE.match(path) or (inside and not path.startswith("/")) for path in paths):
        return ""
    return "" if inside and not paths else f"runs pytest on {' '.join(paths) or 'the working folder'}"


def _verdict_from_elsewhere(command: Command) -> Iterator[str]:
    """A command that brings the verdict from a file outside of the tests and their own folder."""
    written = [*command.writes, *(command.words[-1:] if command.program in ("cp", "mv", "ln", "install") else [])]
    if not any("reward" in path for path in written) or command.program in ("echo", "printf"):
        return
    outside = [
        word for word in command.words[1:] if word.startswith(("/", "$", "~", ".")) and "reward" not in word.rpartition("/")[2]
    ]
    if command.program in ("cp", "mv", "ln", "install"):
        outside = command.words[1:-1]
    for word in outside:
        if not word.startswith((VERDICTS, "$", TESTS)) and not word.startswith("-"):
            yield f"takes its verdict from {word}"
