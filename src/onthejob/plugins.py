"""References: how a command line, a file or a record names an environment.

    office, claw, or a name of an installed package's entry point in the group `onthejob.envs`
    package.module:Class
    path/to/file.py:Class          (the class may be omitted where the file defines one Env)
    dataset:FILE                   (and other schemes of `onthejob.interop`: what others have as an environment)

Functions, e.g. a reward of your own, are named in the same ways. A file is imported once per process, under a name that its path
determines, so that worker processes find the same class.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from onthejob.envs.declared import check_class
from onthejob.envs.env import Env
from onthejob.errors import ConfigError, OnTheJobError

GROUP = "onthejob.envs"
"""Entry points of installed packages: name -> Env class."""
BUILT_IN = {"office": "onthejob.office:Office", "claw": "onthejob.claw:Claw"}
"""Name -> module and class of the environments of this package."""
SCHEMES = {
    "dataset": "onthejob.interop.dataset",
    "gymnasium": "onthejob.interop.from_gymnasium",
    "harbor": "onthejob.interop.harbor",
    "openenv": "onthejob.interop.from_openenv",
    "pettingzoo": "onthejob.interop.from_pettingzoo",
    "program": "onthejob.interop.program",
    "reasoning_gym": "onthejob.interop.reasoning_gym",
    "textarena": "onthejob.interop.textarena",
    "verifiers": "onthejob.interop.verifiers",
}
"""Scheme -> module. Its function `environment` makes an Env class of what stands after the colon, and its function `anchored`
writes that as it is found from every folder."""


def resolve(ref: str) -> type[Env]:
    """The Env class that `ref` names.

    Raises:
        ConfigError: there is none, it cannot be imported, or what it says of itself cannot be played.
    """
    scheme, colon, what = ref.partition(":")
    outside = importlib.import_module(SCHEMES[scheme]) if colon and scheme in SCHEMES else None
    kind = found(BUILT_IN.get(ref, ref), "--env") if outside is None else outside.environment(what)
    if not (isinstance(kind, type) and issubclass(kind, Env)):
        raise ConfigError(f"--env {ref} is a {type(kind).__name__}, and an environment is a subclass of onthejob.Env. Derive it.")
    check_class(kind)
    return kind


def anchored(ref: str) -> str:
    """`ref` as it is found from every folder: a file's path is absolute."""
    scheme, colon, what = ref.partition(":")
    if colon and scheme in SCHEMES:
        return f"{scheme}:{importlib.import_module(SCHEMES[scheme]).anchored(what)}"
    path, colon, name = _parted(ref)
    return f"{Path(path).expanduser().absolute()}{colon}{name}" if path.endswith(".py") else ref


def installed() -> dict[str, EntryPoint]:
    """Name -> entry point of every environment that an installed package offers."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def defined(module: ModuleType) -> list[type[Env]]:
    """The Env classes that a module defines itself, in the order of its lines."""
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Env) and kind is not Env and kind.__module__ == module.__name__
    ]


def module_of(path: Path) -> ModuleType:
    """A file as a module; imported once.

    Raises:
        ConfigError: there is no such file, or importing it fails.
    """
    file = path.expanduser().absolute()
    if not file.is_file():
        raise ConfigError(f"there is no file {path}. `onthejob env new NAME` writes one.")
    name = f"{file.stem.replace('-', '_')}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported. Name a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as dataclasses look their module up; and its neighbours can be imported, as when it is run as a script.
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {_said(error, file)}.") from error
    return module


def found(ref: str, flag: str) -> object:
    """The object that `ref` names: a class, a function.

    Args:
        ref: path/to/file.py:name, package.module:name or, for environments, an installed name.
        flag: the option that took it, for the message.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    path, colon, name = _parted(ref)
    if path.endswith(".py"):
        return _of(module_of(Path(path)), name, path)
    if colon:
        if not all(part.isidentifier() for part in path.split(".")):
            raise ConfigError(f"{flag} {ref} names no module. Write path/to/file.py:NAME or package.module:NAME.")
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{flag} {ref}: there is no module {error.name!r}. Install its package, or name a file.") from error
        except Exception as error:
            raise ConfigError(f"{flag} {ref}: importing {path} fails: {_said(error, None)}.") from error
        return _of(module, name, path)
    known = installed()
    if ref in known:
        try:
            return known[ref].load()
        except Exception as error:
            raise ConfigError(f"{flag} {ref} ({known[ref].value}) cannot be imported: {_said(error, None)}.") from error
    raise ConfigError(f"there is no environment {ref!r}: known are {', '.join([*BUILT_IN, *known])}. {_forms()}")


def _of(module: ModuleType, name: str, where: str) -> object:
    classes = [kind.__name__ for kind in defined(module)]
    if not name:
        if len(classes) != 1:
            there = f"defines {', '.join(classes)}" if classes else "defines no subclass of onthejob.Env"
            raise ConfigError(f"{where} {there}. Name one class: {where}:{classes[0] if classes else 'Guess'}.")
        return getattr(module, classes[0])
    if not hasattr(module, name):
        there = f"; it defines {', '.join(classes)}" if classes else ""
        raise ConfigError(f"{where} has no {name!r}{there}. Correct the name after the colon.")
    return getattr(module, name)


def _parted(ref: str) -> tuple[str, str, str]:
    path, colon, name = ref.rpartition(":")
    return (path, colon, name) if colon else (ref, "", "")


def _said(error: Exception, file: Path | None) -> str:
    """The error, and the line of `file` in which it arose."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if file and Path(frame.filename) == file]
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [error.lineno]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


def _forms() -> str:
    return "An environment of your own is path/to/file.py:Class or package.module:Class; `onthejob env new NAME` writes one."


def function_of(named: str, flag: str) -> Callable[..., Any]:
    """A function of the user's.

    Raises:
        ConfigError: there is none of this name.
    """
    if ":" not in named:
        raise ConfigError(f"{flag} must be path/to/file.py:function or package.module:function, got {named!r}.")
    function = found(named, flag)
    if not callable(function):
        raise ConfigError(f"{flag} {named} is a {type(function).__name__}. Name a function.")
    return function


def source_of(what: Any) -> str:
    """The text of the file that defines a class or a function; empty where there is none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(what))
    except TypeError:
        return ""
    return Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""


def environment_here(ref: str) -> dict[str, str]:
    """`environment` -> the digest of the file that defines it, 16 hex digits, or why there is none on this machine."""
    try:
        return {"environment": hashlib.sha256(source_of(resolve(ref)).encode()).hexdigest()[:16]}
    except OnTheJobError as error:
        return {"environment": f"missing ({error})"}


def source_digest(named: str, flag: str) -> str:
    """Of the file in which a function of the user's is defined, 16 hex digits; errors as in `function_of`."""
    return hashlib.sha256(source_of(function_of(named, flag)).encode()).hexdigest()[:16]
