"""`onthejob`: finds the command, parses its options with tyro, runs it, and turns errors into one line and an exit code.

Only the module of the command that is called is imported, so `onthejob --help` does not wait for torch. Exit codes: 0 ok,
1 failure, 2 usage or configuration, 3 the task pool has converged (a result), 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import inspect
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.console import Console
from rich.table import Table

from onthejob import __version__
from onthejob.checkout import from_checks
from onthejob.commands.options import from_toml, stated_env
from onthejob.commands.removed import check_file, check_words
from onthejob.commands.terminal import Output, Terminal, shown
from onthejob.errors import ConfigError, OnTheJobError

FAILURE, INTERRUPTED = 1, 130
REMEDIES = {
    errno.ENOSPC: "Free disk space there and repeat the command; a run continues with `train --resume`",
    errno.EDQUOT: "This user's quota is used up: free disk space and repeat the command",
    errno.EFBIG: "Raise the limit of file sizes (`ulimit -f`) and repeat the command",
    errno.EACCES: "Give this user permission, or name another place",
    errno.EROFS: "The file system is read-only: name another place",
}
"""Error of the system -> what helps."""


SWITCHES = ("--json", "--quiet", "--debug")
"""Options of every command that take no value."""


class CommandEntry(NamedTuple):
    """Where a command lives: a dataclass of options with a method `run(terminal) -> exit code`."""

    module: str
    name: str
    summary: str
    configurable: bool = False
    """Takes --config FILE, whose values become the defaults that flags override."""
    places: bool = False
    """Takes --env REF, on which the defaults and the options --env.NAME depend."""
    first: bool = False
    """With `places`: the environment may also be the first word."""
    env: str = ""
    """With `places`: the environment where none is named; empty where one must be."""
    measures: bool = False
    """Lives in `checks/commands/`, which only a checkout has."""
    common: Mapping[str, str] = {}
    """Options that --help shows, and a word for the value of each; --help-all shows the others too. Empty: --help shows all."""


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry(
        "demo", "Demo", "Let the sales agent of the office practise for some minutes, and show what that changed."
    ),
    "play": CommandEntry("play_episode", "Play", "Play one episode and show every turn.", places=True, first=True, env="office"),
    "collect": CommandEntry(
        "collect_demonstrations",
        "Collect",
        "Write a scripted player's demonstrations, one file per role.",
        places=True,
        env="office",
    ),
    "sft": CommandEntry("warm_start", "Sft", "Warm start: train the roles' adapters on demonstrations."),
    "train": CommandEntry(
        "train",
        "Train",
        "Train the roles' adapters with GRPO.",
        configurable=True,
        places=True,
        env="office",
        common={
            "env": "ENV",
            "init": "ADAPTERS",
            "roles": "ROLE ...",
            "name": "NAME",
            "iterations": "N",
            "minutes": "N",
            "eval_every": "N",
            "smoke": "",
            "resume": "RUN",
            "config": "FILE",
        },
    ),
    "eval": CommandEntry("evaluation", "Eval", "Decision quality of teams on held-out states.", places=True, env="office"),
    "compare": CommandEntry(
        "compare", "Compare", "Whole held-out episodes of teams, matched and paired.", places=True, env="office"
    ),
    "serve env": CommandEntry("serve", "ServeEnv", "Serve a workplace under OpenEnv.", places=True, first=True, env="office"),
    "env new": CommandEntry("env", "New", "Write an environment of your own that runs as it is, and its test."),
    "env check": CommandEntry("env", "CheckEnv", "Play an environment and say what is wrong with it.", places=True, first=True),
    "env list": CommandEntry("env", "ListEnvs", "List the environments that are built in or installed."),
    "env show": CommandEntry(
        "env", "ShowEnv", "Show an environment: roles, limits, options, tasks, a prompt.", places=True, first=True
    ),
    "view": CommandEntry(
        "view", "View", "Watch the office or play an environment, take a seat, look into runs.", places=True, env="office"
    ),
    "serve model": CommandEntry("servers", "ServeModel", "Serve the base and its adapters with vLLM on loopback."),
    "serve trainer": CommandEntry("servers", "Trainer", "Make updates for runs on other machines."),
    "policy swap": CommandEntry("policy", "Swap", "Hand a role to another policy while an episode is running."),
    "runs ls": CommandEntry("runs", "Ls", "List recorded runs: status, outcome, environment, roles, time."),
    "runs show": CommandEntry("runs", "ShowRun", "Show one run on one screen: status, verdict, settings, newest numbers."),
    "runs check": CommandEntry("runs", "CheckRun", "Check a run for damage and name the damaged parts."),
    "runs export": CommandEntry("runs", "Export", "Write a run's tables as JSON lines or Parquet."),
    "runs push": CommandEntry("share", "PushRun", "Upload a run's tables to the Hub as a data set."),
    "runs sync": CommandEntry("sync", "SyncRun", "Send a run's record to trackers and spreadsheets, also while it is written."),
    "runs replay": CommandEntry(
        "replay", "ReplayRecord", "Execute a run's episodes, or a game, again and compare with the record."
    ),
    "runs rescore": CommandEntry("rescore", "RescoreRun", "Score recorded trajectories under another reward or stop table."),
    "office gates": CommandEntry(
        "gates", "Gates", "Check that the office is a sound training environment; fails when a gate fails.", measures=True
    ),
    "office behaviours": CommandEntry("behaviours", "Behaviours", "Measure emergent behaviours, per team.", measures=True),
    "scenarios list": CommandEntry("scenarios", "ListScenarios", "List the office's scenarios."),
    "scenarios show": CommandEntry("scenarios", "ShowScenario", "Show one scenario: stocks and calendar."),
    "scenarios lint": CommandEntry("scenarios", "Lint", "Check scenario files of your own."),
    "tasks list": CommandEntry("tasks_claw", "ListFamilies", "List the claw's task families."),
    "tasks show": CommandEntry("tasks_claw", "ShowTask", "Show one claw task: request, files, assertions, gold commands."),
    "tasks synth": CommandEntry(
        "tasks_claw", "Synth", "Write a corpus of claw tasks, synthesized or written by a hosted model, as train, dev and test."
    ),
    "tasks convert": CommandEntry(
        "tasks_convert", "Convert", "Write InterCode-Bash as tasks in the Harbor format.", measures=True
    ),
    "tasks validate": CommandEntry("tasks_claw", "Validate", "Prove claw or Harbor tasks: doing nothing fails, gold passes."),
    "model fetch": CommandEntry("model", "Fetch", "Bring a model into the cache (default: the embedded SmolLM2-135M)."),
    "model show": CommandEntry("model", "ShowModel", "Describe a model: size, layers, context, digest."),
    "model merge": CommandEntry("model", "Merge", "Write base + adapter as one model; kept only when it computes the same."),
    "adapters import": CommandEntry("adapters", "Import", "Take in an adapter made by PEFT, TRL or Unsloth."),
    "adapters push": CommandEntry("share", "Push", "Upload adapters to the Hub, with a card of base, recipe and evaluation."),
    "adapters pull": CommandEntry("share", "Pull", "Download adapters that were pushed, and check their digests."),
    "scale plan": CommandEntry(
        "scale_plan",
        "ScalePlan",
        "Show who would sit where in a run on several processes or nodes, and what is wrong on each node.",
        configurable=True,
        places=True,
        env="office",
    ),
    "scale doctor": CommandEntry("scale_plan", "ScaleDoctor", "Check what this machine offers as a node of a Ray cluster."),
    "sandbox doctor": CommandEntry("sandbox", "SandboxDoctor", "Show what isolates an agent's commands here, and attack it."),
    "doctor": CommandEntry("doctor", "Doctor", "Check versions, the sandbox's packages, cores, memory, disk, cache and model."),
}
"""Command line words -> where they are implemented, in the order of `--help`."""
AT_ONCE = frozenset(
    {
        *("runs ls", "runs show", "env new", "env list", "env show", "scenarios list", "scenarios show", "scenarios lint"),
        *("tasks list", "tasks show", "model show", "policy swap"),
    }
)
"""Commands that show their result within about a second. All others print a line before they load anything."""
SILENT = frozenset({"-h", "--help", "--help-all", "--quiet", "--print-config"})
"""Words with which a command has nothing to wait for, or is to print no progress."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; None takes those of the process.

    Returns:
        The exit code.
    """
    # Closed by the caller (`>&-`): what is printed there is lost, as with any other program.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for the rest of the process
    # It warns of missing kernels for 4 bits on CPUs as soon as PEFT imports it, whatever the command is about.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print_commands("")
        return 0
    if words[0] == "--version":
        print(f"onthejob {__version__}")
        return 0
    try:
        path, rest = split(words)
    except ConfigError as error:
        return report(f"onthejob: {error}", error.exit_code)
    if path not in COMMANDS:
        print_commands(path)
        return 0
    return run(path, rest)


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command's words joined by a space, and its options; a topic alone (`runs`, `runs --help`) is returned as it is.

    Raises:
        ConfigError: There is no such command.
    """
    for count in (2, 1):
        path = " ".join(words[:count])
        if path in COMMANDS:
            return path, list(words[count:])
    topics = {path.split()[0] for path in COMMANDS}
    if words[0] in topics and (len(words) == 1 or words[1] in ("-h", "--help")):
        return words[0], []
    known = {path.split()[1] for path in COMMANDS if path.startswith(words[0] + " ")} if words[0] in topics else topics
    wrong = words[1] if words[0] in topics else words[0]
    near = difflib.get_close_matches(wrong, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"unknown command {wrong!r}; known: {', '.join(sorted(known))}.{meant}")


def command_class(path: str) -> Any:
    """The class of a command's options.

    Raises:
        ConfigError: the command measures, and this installation has no `checks/`.
    """
    entry = COMMANDS[path]
    if entry.measures:
        module = from_checks(f"commands.{entry.module}", what=f"`onthejob {path}`")
    else:
        module = importlib.import_module(f"onthejob.commands.{entry.module}")
    return getattr(module, entry.name)


def run(path: str, words: list[str]) -> int:
    """Parse the options of one command and run it."""
    entry = COMMANDS[path]
    debug = False
    try:
        check_words(path, words)
        if path not in AT_ONCE and SILENT.isdisjoint(words):
            # Before the command's module and its libraries are loaded, which takes seconds.
            print(f"onthejob {path}: starting", file=sys.stderr, flush=True)
        options = command_class(path)
        if "--help-all" in words and entry.common:
            from onthejob.commands.brief import without_output

            options = without_output(options)
        options, default = begun(options, words, entry)
        if entry.common and not {"-h", "--help"}.isdisjoint(words):
            from onthejob.commands.brief import brief_help

            print(brief_help(options, default, path=path, shown=entry.common))
            return 0
        words = ["--help" if word == "--help-all" else word for word in words]
        try:
            command = parse(options, words, prog=f"onthejob {path}", default=default)
        except SystemExit as error:
            # tyro has printed its help (0) or what is wrong with the options (2).
            return error.code if isinstance(error.code, int) else 0
        output: Output = command.output
        debug = output.debug
        return command.run(Terminal(output))
    except SystemExit as error:
        # A library's code is not one of ours: uvicorn's 3 would mean a converged pool.
        return report(f"onthejob {path}: a library ended the command with exit code {error.code}.", FAILURE)
    except OnTheJobError as error:
        if debug:
            print(shown(traceback.format_exc()), file=sys.stderr)
        return report(f"{type(error).__name__}: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        if debug:
            print(shown(traceback.format_exc()), file=sys.stderr)
        where = f": {error.filename}" if error.filename else ""
        remedy = f". {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
        return report(f"{type(error).__name__}: {error.strerror or error}{where}{remedy}", FAILURE)
    except KeyboardInterrupt:
        return report("interrupted", INTERRUPTED)


def parse(options: Any, words: Sequence[str], *, prog: str, default: Any = None) -> Any:
    """The command that `words` state; tyro prints help or what is wrong, and exits."""
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.EnumChoicesFromValues)
    if default is None:
        return tyro.cli(options, prog=prog, args=list(words), config=config)
    return tyro.cli(options, prog=prog, args=list(words), default=default, config=config)


def begun(options: Any, words: Sequence[str], entry: CommandEntry) -> tuple[Any, Any]:
    """The class whose options are parsed, and what those that are not given are; None for the class's own defaults.

    The environment brings options of its own; the file of --config comes before them all.
    """
    file = last_value(words, "--config") if entry.configurable else None
    env = last_value(words, "--env") if entry.places else None
    if env is None and entry.first:
        env = first_word(words)
    named = env or (stated_env(Path(file)) if file is not None else "")
    env = named or entry.env
    if not env:
        return options, None
    from onthejob.commands.env_options import earlier, typed

    options = typed(options, env)
    if entry.places and not named:
        options.__doc__ = (
            f"{options.__doc__ or ''}\n\nThese are the options for --env {env}, the default. With --env REF before "
            f"{'--help-all' if entry.common else '--help'}, those of another environment are shown."
        )
    if entry.common:
        # tyro joins a line that begins with a letter to the one before, and wraps nothing.
        paragraphs = inspect.cleandoc(options.__doc__ or "").split("\n\n")
        options.__doc__ = "\n\n".join(textwrap.fill(" ".join(part.split()), 80, subsequent_indent=" ") for part in paragraphs)
    default = options.starting(env)
    return options, default if file is None else from_toml(default, Path(file), earlier, env, check_file)


def last_value(words: Sequence[str], flag: str) -> str | None:
    """The value of the last `flag`, which must be known before the other options are parsed."""
    found = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            found = words[index + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def first_word(words: Sequence[str]) -> str | None:
    """The first word that is neither an option nor an option's value."""
    for before, word in zip(("", *words), words, strict=False):
        takes = before.startswith("-") and "=" not in before and before not in SWITCHES
        if not takes and not word.startswith("-") and "=" not in word:
            return word
    return None


def report(message: str, code: int) -> int:
    """Say what went wrong in one line on stderr; returns `code`."""
    print(shown(" ".join(message.split())), file=sys.stderr)
    return code


def print_commands(topic: str) -> None:
    """Print the commands, or those of one topic."""
    console = Console(highlight=False)
    console.print(f"usage: onthejob {topic or 'COMMAND'} [OPTIONS]\n", markup=False)
    listed = Table(box=None, pad_edge=False, show_header=False)
    for path, entry in COMMANDS.items():
        if not topic or path.split()[0] == topic:
            listed.add_row(f"  {path}", entry.summary)
    console.print(listed)
    console.print("\n`onthejob COMMAND --help` explains the options.", markup=False)
    console.print("Exit codes: 0 ok, 1 failure, 2 usage or configuration, 3 task pool converged (a result), 130 interrupted.")


if __name__ == "__main__":
    raise SystemExit(main())
