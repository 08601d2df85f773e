"""RUN lines, `test.sh` and `solve.sh`: which of their commands can do what they are for in a sandbox without network.

    install what is here already   nothing to do; what is not here is a refusal
    fetch from the network         a refusal
    harmless programs              run, in the sandbox
    anything else                  in a RUN line a refusal; in tests the sandbox's own business

The sandbox is the wall, not this reader: what it misses runs without network and without any right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from onthejob.envs.harbor.packages import COMPILERS, HERE, System
from onthejob.envs.harbor.refusal import PYTHONS, Refusal, RefusalReason, words_of
from onthejob.envs.harbor.shell import Command, UnreadScript, arguments, commands

HARMLESS = words_of(
    "mkdir touch chmod chown chgrp echo printf cat cp mv rm rmdir ln sed awk gawk grep egrep head tail tar gzip gunzip "
    "bzip2 xz unzip zip python python3 perl bash sh git find sort uniq tr cut paste tee seq date dd truncate split base64 "
    "xxd md5sum sha256sum sha1sum wc test [ [[ true false : cd set export unset umask source . read eval exit shuf od "
    "install mktemp mkfifo sqlite3 jq openssl ls stat du df id whoami pwd which command type basename dirname realpath "
    "readlink diff cmp patch file hostname uname sleep expr let declare local return shift trap wait env tree fold nl rev "
    "tac column join comm bc yes cksum ssh-keygen pytest"
)
"""Programs of RUN lines that need neither network nor rights."""
SYSTEM = words_of(
    "useradd adduser groupadd usermod passwd chpasswd systemctl service update-rc.d sysctl mount umount modprobe iptables "
    "crontab update-alternatives ldconfig dpkg dpkg-reconfigure locale-gen update-locale add-apt-repository apt-key docker "
    "dockerd setcap"
)
"""Programs that change the system, which is this machine's and read-only."""
TOOLS = words_of(
    "gcc g++ cc clang make cmake go cargo rustc javac java mvn gradle node npm npx yarn pnpm ruby gem bundle php composer "
    "dotnet swift ghc cabal stack opam conda mamba R Rscript julia lua perlbrew cpan cpanm ninja meson configure"
)
"""Compilers and package managers of other languages; those that only compile run where they are here."""
FETCHING = words_of("npm npx yarn pnpm gem bundle composer mvn gradle cabal stack opam conda mamba cpan cpanm go cargo")
"""Of these, those that usually fetch."""
NETWORK = words_of(
    "curl wget ssh scp rsync ftp nc ncat telnet svn hg aria2c gsutil aws gcloud kaggle huggingface-cli hf dig nslookup"
)
"""Programs whose work is the network."""
OF_PACKAGES = frozenset({"apt-get", "apt", "aptitude", "pip", "pip3", "uv", "uvx"})
_OPTION_WITH_VALUE = words_of(
    "-o -c -t -r -i --index-url --extra-index-url --target --timeout -f --root-user-action --requirement --constraint "
    "--trusted-host --python -p -w --with --target-release"
)
TIDIED = re.compile(r"-|/var/(lib/apt|cache)|/(tmp|root/\.cache)(/|$)")
"""Words of an `rm` that tidies up after installing."""
_UV = re.compile(r"astral\.sh/uv")


@lru_cache(maxsize=1024)
def refusals_of_script(script: str, system: System = HERE) -> tuple[tuple[Refusal, ...], bool]:
    """Why a RUN line cannot be carried out here, and whether there is nothing to carry out; tasks repeat each other's lines."""
    try:
        found = commands(script)
    except UnreadScript as error:
        return (Refusal(RefusalReason.RUN, f"RUN {script.strip()[:40]!r}: {error}"),), False
    refused = [one for command in found for one in _of_run_line(command, system)]
    return tuple(_distinct(refused)), all(_does_nothing(command) for command in found)


def refusals_of_installing(script: str, system: System = HERE) -> list[Refusal]:
    """What a script of tests installs or fetches and sandboxes do not have; everything else it names is not looked at.

    Raises:
        UnreadScript: it cannot be read.
    """
    found = commands(script)
    own = _UV.search(script) is not None
    refused: list[Refusal] = []
    for command in found:
        if command.program in OF_PACKAGES or _module(command) == "pip":
            refused += _of_packages(command, system)
        elif (
            (command.program in NETWORK and not (own and _UV.search(" ".join(command.words))))
            or _clones(command)
            or (command.program in FETCHING and command.words[1:2] in (["install"], ["i"], ["add"], ["ci"], ["get"], ["fetch"]))
        ):
            refused.append(Refusal(RefusalReason.NETWORK, f"tests run {' '.join(command.words)[:50]}"))
        elif command.program in TOOLS and system.lacks_program(command.program):
            refused.append(Refusal(RefusalReason.COMPILERS, command.program))
        elif command.program in ("systemctl", "service", "docker", "dockerd"):
            refused.append(Refusal(RefusalReason.SERVICES, f"tests run {' '.join(command.words)[:50]}"))
    return _distinct(refused)


def _of_run_line(command: Command, system: System) -> Iterator[Refusal]:
    program = command.program
    if not program:
        return
    said = " ".join(command.words)[:60]
    if _links_program(command):
        if system.lacks_program(command.words[-1].rpartition("/")[2]):
            yield Refusal(RefusalReason.PLACE, said)
    elif program in OF_PACKAGES or _module(command) == "pip":
        yield from _of_packages(command, system)
    elif program in NETWORK or _clones(command):
        yield Refusal(RefusalReason.NETWORK, said)
    elif program in FETCHING:
        yield Refusal(RefusalReason.NETWORK if not system.lacks_program(program) else RefusalReason.COMPILERS, said)
    elif program in TOOLS:
        if system.lacks_program(program):
            yield Refusal(RefusalReason.COMPILERS, program)
    elif program in SYSTEM or (program not in HARMLESS and not program.startswith(("/", "./", "$"))):
        yield Refusal(RefusalReason.RUN, said)
    elif program in HARMLESS and system.lacks_program(program) and program not in BUILTINS:
        yield Refusal(RefusalReason.PACKAGES, program)


BUILTINS = words_of(
    "[[ : cd set export unset umask source . read eval exit command type let declare local return shift trap wait"
)


def _of_packages(command: Command, system: System) -> Iterator[Refusal]:
    """What an installing command names and is not here."""
    words = command.words
    if _module(command) == "pip":
        words = words[words.index("pip") :]
    program, rest = words[0], words[1:]
    if program in ("uvx", "uv"):
        yield from _of_uv(rest, system)
        return
    plain = list(arguments(rest, _OPTION_WITH_VALUE))
    if program in ("apt-get", "apt", "aptitude"):
        if plain[:1] == ["install"]:
            for name in system.missing_apt(plain[1:]):
                yield Refusal(RefusalReason.COMPILERS if name in COMPILERS else RefusalReason.PACKAGES, name)
        elif plain[:1] in (["build-dep"], ["source"], ["download"]):
            yield Refusal(RefusalReason.NETWORK, " ".join(words)[:60])
    elif plain[:1] == ["install"]:
        if any(word in ("-r", "--requirement") for word in rest):
            yield Refusal(RefusalReason.PACKAGES, f"{' '.join(words)[:50]}: a list of requirements")
        outside = [word for word in plain[1:] if re.match(r"git\+|https?://", word)]
        yield from (Refusal(RefusalReason.NETWORK, word[:60]) for word in outside)
        local = [word for word in plain[1:] if word.startswith((".", "/"))]
        yield from (Refusal(RefusalReason.PACKAGES, f"pip install {word}") for word in local)
        named = [word for word in plain[1:] if word not in outside and word not in local]
        yield from (Refusal(RefusalReason.PACKAGES, f"{PYTHONS}{name}") for name in system.missing_pip(named))


def _of_uv(words: list[str], system: System) -> Iterator[Refusal]:
    """Packages that `uvx -w NAME pytest` and `uv pip install NAME`, `uv add NAME` or `uv run --with NAME` want."""
    wanted = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-w", "--with")]
    wanted += [word.partition("=")[2] for word in words if word.startswith("--with=")]
    plain = list(arguments(words, _OPTION_WITH_VALUE))
    if plain[:2] == ["pip", "install"]:
        wanted += plain[2:]
    elif plain[:1] == ["add"]:
        wanted += plain[1:]
    yield from (Refusal(RefusalReason.PACKAGES, f"{PYTHONS}{name}") for name in system.missing_pip(wanted))


def _module(command: Command) -> str:
    """The module of `python -m MODULE`."""
    words = command.words
    if re.fullmatch(r"python[\d.]*", command.program) and "-m" in words[1:3]:
        return words[words.index("-m") + 1] if len(words) > words.index("-m") + 1 else ""
    return ""


def _clones(command: Command) -> bool:
    return command.program == "git" and any(word in ("clone", "fetch", "pull", "submodule") for word in command.words[1:4])


def _links_program(command: Command) -> bool:
    """Whether a command gives a program a further name, such as `python` for `python3`, which is here or is not."""
    return command.program == "ln" and re.match(r"/usr/(local/)?s?bin/[\w.+-]+$", command.words[-1]) is not None


def _does_nothing(command: Command) -> bool:
    """Whether a command installs what is here, or tidies up after that."""
    if command.program in ("", "true", ":", "set") and not command.writes:
        return True
    tidies = command.program == "rm" and all(TIDIED.match(word) for word in command.words[1:])
    return command.program in OF_PACKAGES or _module(command) == "pip" or tidies or _links_program(command)


def _distinct(refused: list[Refusal]) -> list[Refusal]:
    return list(dict.fromkeys(refused))
