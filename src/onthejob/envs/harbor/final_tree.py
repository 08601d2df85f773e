"""The tree that tests see: what the agent left, without what would change how programs start or what tests know.

    folders of the system, /tests, /logs, /solution     never taken over
    links that lead there, or into /proc, /dev, /run     omitted (/dev/null may be linked to)
    start-up files of programs                           as they were before the agent worked
    other files of /etc, dotfiles of a home             taken over where the request or the tests name them
    /tmp, /var/tmp                                       taken over where the request names them
    everything else                                      taken over, with modes and times

A program that the tests start reads none of the agent's settings, then, unless the task is about them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from onthejob.envs.claw.copying import stays_inside
from onthejob.envs.claw.sandbox.sandbox_interface import SYSTEM_NAMES, Item, Kind
from onthejob.envs.harbor.image import STAGING

VERIFIERS = frozenset({"tests", "logs", "solution"})
"""Folders of `/` that are the verifier's."""
RESERVED = SYSTEM_NAMES | VERIFIERS | {STAGING}
CLOSED = frozenset({"proc", "dev", "run", *VERIFIERS})
"""Names in `/` through which no link of the agent's may lead."""
START_UP = re.compile(
    r"""etc/(ld\.so\.|ssl(/|$)|python|perl|alternatives(/|$)|profile|bash|inputrc$|environment$|pip|gitconfig$|nsswitch|gai|nanorc|vim|
        wgetrc$|curlrc$|sitecustomize|security|pam|login|locale)
      | [^/]*(conftest\.py|pytest\.ini|pyproject\.toml|tox\.ini|setup\.(py|cfg)|(site|user)customize\.py|\.pth|\.so)$
      | (root|home/[^/]+)/(\.local/(lib|bin|share/jupyter)(/|$)|\.cargo(/|$)|\.config/(pip|git|matplotlib|python|uv)|
        \.pythonrc|\.pdbrc|\.pip/|\.gitconfig$|\.condarc|\.npmrc|\.curlrc|\.wgetrc|\.netrc|\.pytest|\.matplotlib|\.ipython|\.bash_env)""",
    re.VERBOSE,
)
"""Files that programs load when they start, and settings of test runners above `/tests`."""
_ETC, _HOME_DOTFILE = re.compile(r"etc/"), re.compile(r"(root|home/[^/]+)/\.")
_TEMPORARY = re.compile(r"(var/)?tmp/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The texts that say which files a task is about."""

    request: str
    tests: str

    def by_request(self, path: str) -> bool:
        """Whether the request names a path below `/`, or a folder above it that is not a folder of `/`."""
        return any(_names(self.request, one) for one in _folders(path))

    def anywhere(self, path: str) -> bool:
        """The same of request and tests."""
        return any(_names(self.request, one) or _names(self.tests, one) for one in _folders(path))


def links(path: str, items: Mapping[str, Item]) -> bool:
    """Whether a link at `path` is taken over: it leads to nothing of the verifier's."""
    return items[path].data == b"/dev/null" or stays_inside(path, items, workspace="/", forbidden=CLOSED)


def for_tests(left: Mapping[str, Item], before: Mapping[str, Item], *, named: Named, workdir: str) -> dict[str, Item]:
    """The tree that the tests of a task see.

    Args:
        left: what the agent left, by path below `/`.
        before: the same before it worked.
        named: what the task is about.
        workdir: the task's folder, absolute: its files are taken over whatever they are called.
    """
    inside = workdir.strip("/") + "/"
    found: dict[str, Item] = {}
    for path in {**before, **left}:
        if path.split("/")[0] in RESERVED:
            continue
        kept = left.get(path) if _taken_over(path, named, inside) else before.get(path)
        if kept is not None:
            found[path] = kept
    return _consistent(found)


def _taken_over(path: str, named: Named, inside: str) -> bool:
    """Whether the agent decides what is at a path."""
    if START_UP.match(path):
        return False
    if path.startswith("root/."):
        # What programs of the tests read from their home, also where a task is worked on there.
        return named.anywhere(path)
    if len(inside) > 1 and path.startswith(inside):
        return True
    if _TEMPORARY.match(path):
        return named.by_request(path)
    if _ETC.match(path) or _HOME_DOTFILE.match(path):
        return named.anywhere(path)
    return True


def _names(text: str, path: str) -> bool:
    """Whether a text names `/path`, or a home's file as `~/...` or by its own name."""
    home = re.sub(r"^(root|home/[^/]+)/", "", path)
    candidates: Iterable[str] = (f"/{path}", *((f"~/{home}", f"$HOME/{home}", home) if home != path else ()))
    return any(re.search(rf"(?<![\w.-]){re.escape(one)}(?![\w-])", text) for one in candidates)


def _folders(path: str) -> list[str]:
    """The path and the folders above it, without the folders of `/` and the homes themselves."""
    parts = path.split("/")
    least = 3 if parts[0] == "home" or parts[:2] == ["var", "tmp"] else 2
    return ["/".join(parts[:count]) for count in range(len(parts), least - 1, -1)]


def _consistent(found: dict[str, Item]) -> dict[str, Item]:
    """Without what lies below a path that is no folder: the agent has put a file or a link in the place of one."""
    solid: Collection[str] = {path for path, item in found.items() if item.kind is not Kind.FOLDER}
    return {
        path: item
        for path, item in found.items()
        if not any("/".join(path.split("/")[:count]) in solid for count in range(1, path.count("/") + 1))
    }
