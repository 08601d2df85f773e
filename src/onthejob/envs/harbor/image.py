"""What a Dockerfile makes, without Docker: the files of the tree, the commands that are still to run in it, folder and variables.

The base stands for this machine's own system, which a sandbox shows read-only, and must be an ordinary one; any base stands for
a root file system that the user names. On top come the files that COPY brings, and RUN lines of harmless programs, run once
without network. Anything else is a refusal with its reason, before anything is started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from onthejob.envs.claw.sandbox.sandbox_interface import SYSTEM_NAMES, Content, ItemKind, WorkspaceItem, as_item
from onthejob.envs.harbor.base import base_of
from onthejob.envs.harbor.dockerfile import Instruction, UnreadDockerfile, assignments, expanded, parse
from onthejob.envs.harbor.packages import HERE, System, module_of
from onthejob.envs.harbor.refusal import PYTHONS, Refusal, RefusalReason, words_of
from onthejob.envs.harbor.run_lines import refusals_of_script

STAGING = ".copied"
"""Folder of `/` from which files are copied that come after a RUN line; it is gone before anything else runs."""
BASES: tuple[tuple[str, str], ...] = (
    (r"(docker\.io/)?(library/)?(ubuntu|debian|buildpack-deps)(:[\w.-]+)?", ""),
    (r"(docker\.io/)?(library/)?python(:3[\w.-]*)?", "python"),
    (r"(ghcr\.io/)?(laude-institute/)?t-bench/(ubuntu-24-04|python-3-\d+)(:[\w.-]+)?", ""),
)
"""Images for which this machine's system can stand, and what they bring that it may not."""
IGNORED = frozenset({"LABEL", "MAINTAINER", "EXPOSE", "STOPSIGNAL", "VOLUME", "ARG"})
WAITING = re.compile(r"(sh|bash|/bin/sh|/bin/bash|sleep|tail|true|cat|python3?|-c|-l|infinity|-f|/dev/null|\d+)")
"""Words of a CMD that only keeps a container running."""
AGENT_ONLY = words_of(
    "PYTHONPATH PYTHONHOME PYTHONSTARTUP LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT BASH_ENV ENV PERL5LIB PERL5OPT NODE_OPTIONS "
    "NODE_PATH RUBYOPT RUBYLIB GIT_CONFIG_GLOBAL OPENSSL_CONF"
)
"""Variables of an image that name code which programs load; tests do not get them unless their task is marked."""


@dataclass(slots=True, kw_only=True)
class Image:
    """What a task's Dockerfile makes."""

    files: dict[str, WorkspaceItem] = field(default_factory=dict)
    """By path below `/`."""
    commands: list[str] = field(default_factory=list)
    """Bash commands that complete the tree, in order."""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Differences to the image that a task may notice."""
    base: frozenset[str] = frozenset()
    """Paths that a root file system brings, whether or not they were changed."""
    root: Path | None = None
    """Root file system of an image that an engine made; None for that of all tasks."""
    refusals: list[Refusal] = field(default_factory=list)

    def refuse(self, reason: RefusalReason, detail: str) -> None:
        """Note why the task cannot run."""
        self.refusals.append(Refusal(reason, detail))


def image_of(environment: Mapping[str, Content], others: str | None = None, system: System = HERE) -> Image:
    """The image of the files of an `environment` folder; one that cannot be made here has `refusals`.

    Args:
        environment: path -> content.
        others: all other texts of the task. A Python package that is installed, is not here and occurs in none of them is a
            difference and no reason to refuse the task; None refuses it.
        system: stands for the base.

    Raises:
        ConfigError: what is taken of a root file system is too large.
    """
    base = base_of(system.root)
    image = Image(files=dict(base), env={}, base=frozenset() if system == HERE else frozenset(base))
    if any(re.fullmatch(r"(docker-)?compose\.ya?ml", path) for path in environment):
        image.refuse(RefusalReason.SERVICES, "docker-compose")
    dockerfile = environment.get("Dockerfile")
    if dockerfile is None:
        image.refuse(RefusalReason.IMAGE, "no Dockerfile")
        return image
    try:
        found = parse(as_item("Dockerfile", dockerfile).data.decode("utf-8", "replace"))
    except UnreadDockerfile as error:
        image.refuse(RefusalReason.FORMAT, f"Dockerfile: {error}")
        return image
    maker = _Maker(image, {path.rstrip("/"): as_item(path, content) for path, content in environment.items()}, others, system)
    for instruction in found:
        maker.take(instruction)
    if maker.stages != 1:
        image.refuse(RefusalReason.IMAGE, f"{maker.stages} stages")
    return image


class _Maker:
    """Carries out instructions as far as files go."""

    def __init__(self, image: Image, context: Mapping[str, WorkspaceItem], others: str | None, system: System) -> None:
        self._image, self._context, self._others, self._system = image, context, others, system
        self._arguments: dict[str, str] = {}
        self._staged = 0
        self.stages = 0

    def take(self, instruction: Instruction) -> None:
        """One instruction."""
        image, name = self._image, instruction.name
        match name:
            case "FROM":
                self._base(instruction)
            case "WORKDIR":
                self._workdir(self._expanded(instruction.text).strip().strip("\"'"))
            case "ENV":
                image.env |= {key: self._expanded(value) for key, value in assignments(instruction).items()}
            case "ARG":
                self._arguments |= {key: self._expanded(value) for key, value in assignments(instruction).items()}
            case "USER":
                if self._expanded(instruction.text).strip().partition(":")[0] not in ("root", "0"):
                    image.refuse(RefusalReason.USER, f"USER {instruction.text.strip()}")
            case "COPY" | "ADD":
                self._copy(instruction)
            case "RUN":
                self._run(instruction)
            case "CMD" | "ENTRYPOINT":
                words = [part for word in instruction.words for part in word.split()]
                if not all(WAITING.fullmatch(word) for word in words):
                    image.refuse(RefusalReason.SERVICES, f"the image starts {' '.join(words)[:60]}")
            case "HEALTHCHECK":
                if instruction.text.strip().upper() != "NONE":
                    image.refuse(RefusalReason.SERVICES, "HEALTHCHECK")
            case "SHELL":
                if not instruction.words or PurePosixPath(instruction.words[0]).name not in ("bash", "sh"):
                    image.refuse(RefusalReason.RUN, f"SHELL {instruction.text}")
            case "ONBUILD":
                image.refuse(RefusalReason.IMAGE, "ONBUILD")
            case _:
                assert name in IGNORED, name

    def _expanded(self, text: str) -> str:
        return expanded(text, {**self._arguments, **self._image.env})

    def _base(self, instruction: Instruction) -> None:
        self.stages += 1
        base = self._expanded(instruction.rest.text).split()[0] if instruction.rest.text.split() else ""
        if base and self._system != HERE:
            self._image.notes.append(f"{self._system.root} stands for {base}")
            return
        for pattern, brings in BASES:
            if re.fullmatch(pattern, base, re.IGNORECASE):
                if brings:
                    self._image.notes.append(f"the Python of this machine stands for that of {base}")
                return
        self._image.refuse(RefusalReason.IMAGE, base or "FROM without a name")

    def _workdir(self, path: str) -> None:
        self._image.workdir = self._absolute(path)
        inner = self._image.workdir.strip("/")
        if is_of_system(self._image.workdir):
            self._image.refuse(RefusalReason.PLACE, f"WORKDIR {self._image.workdir}")
        elif inner:
            self._put({inner: WorkspaceItem(kind=ItemKind.FOLDER, mode=0o755)})

    def _absolute(self, path: str) -> str:
        parts: list[str] = []
        for part in f"{self._image.workdir}/{path}".split("/") if not path.startswith("/") else path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)

    def _put(self, items: Mapping[str, WorkspaceItem]) -> None:
        """Files at their paths; those that come after a RUN line through a folder from which they are copied then."""
        if system := next(filter(is_of_system, items), ""):
            self._image.refuse(RefusalReason.PLACE, f"/{system}")
            return
        if not self._image.commands:
            for path, item in items.items():
                if item.kind is not ItemKind.FOLDER or path not in self._image.files:
                    self._image.files[path] = item
            return
        self._staged += 1
        top = f"{STAGING}/{self._staged}"
        self._image.files |= {f"{top}/{path}": item for path, item in items.items()}
        self._image.commands.append(f"cp -a /{top}/. /")

    def _copy(self, instruction: Instruction) -> None:
        image, options, rest = self._image, instruction.options, instruction.rest
        if "from" in options:
            image.refuse(RefusalReason.IMAGE, f"{instruction.name} --from={options['from']}")
            return
        if options.get("chown", "root").partition(":")[0] not in ("root", "0"):
            image.notes.append(f"files of {options['chown']} belong to root")
        words = [self._expanded(word) for word in rest.words]
        if len(words) < 2:
            image.refuse(RefusalReason.FORMAT, f"{instruction.name} {instruction.text[:60]}")
            return
        *sources, target = words
        mode = int(options["chmod"], 8) if re.fullmatch(r"[0-7]{3,4}", options.get("chmod", "")) else None
        into = target.endswith("/") or target in (".", "..") or len(sources) > 1
        base = self._absolute(target).strip("/")
        items: dict[str, WorkspaceItem] = {}
        for source in sources:
            if re.match(r"https?://|git@", source):
                image.refuse(RefusalReason.NETWORK, f"{instruction.name} {source}")
                return
            if instruction.name == "ADD" and re.search(r"\.(tar(\.\w+)?|tgz|tbz2|txz)$", source):
                image.refuse(RefusalReason.RUN, f"ADD of the archive {source}")
                return
            found = self._sources(source, instruction)
            if not found:
                image.refuse(RefusalReason.FORMAT, f"{instruction.name} {source}: no such file next to the Dockerfile")
                return
            exists = (
                into or base in ("", image.workdir.strip("/")) or image.files.get(base, WorkspaceItem()).kind is ItemKind.FOLDER
            )
            for path, item in found.items():
                whole = path or (PurePosixPath(source).name if exists else "")
                place = "/".join(part for part in (base, whole) if part)
                if place:
                    items[place] = (
                        item if mode is None or item.kind is ItemKind.FOLDER else WorkspaceItem(data=item.data, mode=mode)
                    )
        self._put(items)

    def _sources(self, source: str, instruction: Instruction) -> dict[str, WorkspaceItem]:
        """What a source of COPY names: path below the target -> item; the path of a single file is empty."""
        if source.startswith("<<"):
            delimiter = source.lstrip("<-").strip("'\"")
            return {"": WorkspaceItem(data=instruction.bodies.get(delimiter, "").encode())}
        name = self._tidy(source)
        if name == "":
            return dict(self._context)
        if name in self._context:
            return {"": self._context[name]}
        below = {path.removeprefix(f"{name}/"): item for path, item in self._context.items() if path.startswith(f"{name}/")}
        if below:
            return below
        if any(char in name for char in "*?["):
            depth = name.count("/")
            matching: dict[str, WorkspaceItem] = {}
            for path, item in self._context.items():
                parts = path.split("/")
                if fnmatchcase("/".join(parts[: depth + 1]), name):
                    # Of a folder that matches, Docker takes what is in it.
                    matching["/".join(parts[depth + 1 :]) or parts[-1]] = item
            return matching
        return {}

    def _tidy(self, source: str) -> str:
        return "/".join(part for part in source.split("/") if part not in ("", "."))

    def _run(self, instruction: Instruction) -> None:
        rest = instruction.rest
        if rest.text.lstrip().startswith("["):
            script = " ".join(f"'{word}'" for word in rest.words)
        elif rest.bodies and rest.text.startswith("<<"):
            script = "".join(rest.bodies.values())
        else:
            script = rest.text + "".join(f"\n{body}{delimiter}" for delimiter, body in rest.bodies.items())
        refused, empty = refusals_of_script(script, self._system)
        unused = [one for one in refused if self._is_unused(one)]
        self._image.notes += [f"{one.detail} is not here" for one in unused]
        refused = [one for one in refused if one not in unused]
        self._image.refusals += refused
        if not refused and not empty:
            values = {**self._arguments, **self._image.env}
            self._image.commands.append(prefix(self._image.workdir, values) + script)

    def _is_unused(self, refusal: Refusal) -> bool:
        """Whether a refusal is for a Python package that nothing else of the task names."""
        if self._others is None or refusal.reason is not RefusalReason.PACKAGES or not refusal.detail.startswith(PYTHONS):
            return False
        package = refusal.detail.removeprefix(PYTHONS)
        for name in {package, module_of(package)}:
            # Most texts do not hold it at all, and searching for words takes longer.
            if name in self._others and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._others):
                return False
        return True


def is_of_system(path: str) -> bool:
    """Whether a path, with or without `/` before it, lies in a folder of the system, which tasks cannot write to."""
    return path.strip("/").split("/")[0] in SYSTEM_NAMES


def prefix(folder: str, env: Mapping[str, str]) -> str:
    """Bash text, without a line break, after which a command begins in `folder` and has the variables `env`."""
    words = [f"cd -- {_quoted(folder)} 2>/dev/null"]
    if env:
        words.append(
            "export " + " ".join(f"{name}={_quoted(value)}" for name, value in sorted(env.items()) if name.isidentifier())
        )
    return "; ".join(words) + "; "


def _quoted(text: str) -> str:
    """A word of bash without a line break."""
    if "\n" in text:
        return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return "'" + text.replace("'", "'\\''") + "'"
