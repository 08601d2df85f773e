"""Whether the checks of an official task may run what the agent wrote, and whether that can happen in a process of its own.

A check that imports, executes or unpickles a file of the workspace hands its own process over: what it prints afterwards is what
the agent wants. Such a task is marked. A check that starts programs can be kept apart from them (`onthejob.envs.claw.checks`), as
long as it needs no file besides its own text. All of it is read from that text and does not depend on what an agent leaves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from onthejob.envs.claw.needs import RUNS

CHECK = "check.py"
NOT_NEEDED = frozenset({CHECK, "reward.sh"})
"""Files of a `reward` folder that a separated check need not find."""


def _by_name(named: Mapping[str, str]) -> dict[str, str]:
    """Name -> what it does, from what it does -> names."""
    return {name: does for does, names in named.items() for name in names.split()}


CALLS = _by_name({
    "imports a module by name": "import_module __import__",
    "imports a file": "spec_from_file_location SourceFileLoader SourcelessFileLoader ExtensionFileLoader exec_module load_module "
    "load_source",
    "executes a file": "run_path run_setup",
    "executes a module": "run_module",
    "executes text": "exec",
    "evaluates text": "eval get_type_hints",
    "executes compiled code": "FunctionType",
    "looks functions up by name": "__builtins__",
    "imports from a folder": "addsitedir",
    "loads a library": "CDLL PyDLL LoadLibrary dlopen load_library enable_load_extension load_extension",
    "constructs objects from YAML": "unsafe_load unsafe_load_all full_load full_load_all",
    "unpickles": "read_pickle",
    "constructs what a file names": "fileConfig dictConfig",
})  # fmt: skip
"""Called function -> what it may do with a file of the workspace in the check's own process."""
MODULES = _by_name({
    "unpickles": "pickle _pickle cPickle cloudpickle dill joblib shelve torch keras",
    "constructs objects from JSON": "jsonpickle",
    "executes graphs": "tensorflow",
    "loads code": "marshal",
    "executes files": "runpy distutils setuptools",
    "imports a file": "imp",
    "imports from an archive": "zipimport",
    "imports modules by name": "pkgutil pydoc",
    "looks functions up by name": "builtins",
    "executes text": "code codeop bdb pdb timeit trace profile cProfile",
    "loads a library": "ctypes cffi",
    "executes templates": "jinja2 mako",
    "evaluates text": "numexpr",
    "runs tests in its own process": "pytest nose unittest doctest",
})  # fmt: skip
"""Imported module -> the same."""
ATTRIBUTES = {
    ("sys", "path"): "changes where modules are imported from",
    ("sys", "path_hooks"): "changes where modules are imported from",
    ("sys", "meta_path"): "changes where modules are imported from",
    ("sys", "modules"): "changes what is imported",
    **{("yaml", f"{kind}Loader"): "constructs objects from YAML" for kind in ("", "C", "Unsafe", "CUnsafe", "Full", "CFull")},
    ("pandas", "eval"): "evaluates text",
}
"""Used attribute of a module -> the same."""
ALLOWING = {"allow_pickle": "unpickles"}
"""Name of an argument that is true -> the same."""
FRAMES = frozenset({"eval", "query"})
"""Methods of pandas that evaluate text."""
STARTS = re.compile(
    rb"\bos\.(?:exec|spawn|posix_spawn|fork|system\b|popen\b)|\bfrom[ \t]+os[ \t]+import\b|\bimport[ \t]+os[ \t]+as\b"
    rb"|\bgetattr\([ \t]*os\b|\bmultiprocessing\b|\bProcessPoolExecutor\b|\bpty\b|\bcreate_subprocess_"
    rb"|\b(?:import|from)[ \t]+(?:pexpect|plumbum|invoke|fabric|git|sh|docker)\b"
)
"""Occurs in files that start programs otherwise than by `needs.RUNNERS`."""
_IMPORTED = rf"(?:\bimport|\bfrom)[ \t(][^\n#]*(?:\\\n[^\n]*)*\b(?:{'|'.join(MODULES)})\b"
_SYS = r"\bsys\s*\.\s*(?:path|path_hooks|meta_path|modules)\b|\bfrom\s+sys\s+import\b|\bimport\s+sys\s+as\b|,\s*sys\s+as\b"
_NAMED = rf"\b(?:{'|'.join((*CALLS, *ALLOWING, 'pandas', *(name for top, name in ATTRIBUTES if top == 'yaml')))})\b"
WORTH_PARSING = re.compile(f"{_IMPORTED}|{_NAMED}|{_SYS}".encode())
"""Occurs in every file in which `reasons` finds one."""


def starts_programs(checks: Mapping[str, bytes]) -> bool:
    """True when one of the Python files may start a program."""
    return any(RUNS.search(data) or STARTS.search(data) for path, data in checks.items() if path.endswith(".py"))


def why_inseparable(checks: Mapping[str, bytes]) -> str:
    """The reason why what the agent wrote may run with the checks' own rights; empty when it cannot.

    `checks` are the files of its `reward` folder.
    """
    for path, data in sorted(checks.items()):
        if not path.endswith(".py") or not WORTH_PARSING.search(data):
            continue
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return f"{path} cannot be read as Python"
        if found := next(reasons(tree), ""):
            return f"{path} {found}"
    others = sorted(set(checks) - NOT_NEEDED)
    if others and starts_programs(checks):
        return f"a program that {CHECK} starts could read {others[0]} next to it"
    return ""


def reasons(tree: ast.Module, allowed: Collection[str] = ()) -> Iterator[str]:
    """Why a program in Python may run what the agent wrote in its own process. `allowed` modules of `MODULES` are no reason."""
    dangerous = MODULES.keys() - set(allowed)
    aliases = {
        name.asname or name.name.split(".")[0]: name.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"{MODULES[top]} ({top})" for name in node.names if (top := name.name.split(".")[0]) in dangerous)
        elif isinstance(node, ast.ImportFrom):
            top = (node.module or "").split(".")[0]
            yield from (f"{MODULES[top]} ({top})" for _ in node.names[:1] if top in dangerous)
            pairs = ((top, name.name) for name in node.names)
            yield from (f"{ATTRIBUTES[pair]} ({'.'.join(pair)})" for pair in pairs if pair in ATTRIBUTES)
            yield from (f"{CALLS[name.name]} ({name.name})" for name in node.names if name.name in CALLS)
        elif isinstance(node, ast.Attribute):
            yield from _of_attribute(node, aliases)
        elif isinstance(node, ast.Name) and node.id in CALLS:
            yield f"{CALLS[node.id]} ({node.id})"
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_attribute(node: ast.Attribute, aliases: Mapping[str, str]) -> Iterator[str]:
    """Also where it is not called at once: `run = importlib.import_module`."""
    if node.attr in CALLS and node.attr not in ("exec", "eval"):
        yield f"{CALLS[node.attr]} ({node.attr})"
    if node.attr in FRAMES and "pandas" in aliases.values():
        yield f"evaluates text (pandas {node.attr})"
    if isinstance(node.value, ast.Name):
        pair = (aliases.get(node.value.id, node.value.id), node.attr)
        if pair in ATTRIBUTES:
            yield f"{ATTRIBUTES[pair]} ({'.'.join(pair)})"


def _of_call(node: ast.Call) -> Iterator[str]:
    """What an argument allows, and functions that are looked up by a name that is written there."""
    for word in node.keywords:
        if word.arg in ALLOWING and not (isinstance(word.value, ast.Constant) and not word.value.value):
            yield f"{ALLOWING[word.arg]} ({word.arg})"
    if isinstance(node.func, ast.Name) and node.func.id == "getattr":
        for argument in node.args[1:2]:
            if isinstance(argument, ast.Constant) and argument.value in CALLS:
                yield f"{CALLS[str(argument.value)]} ({argument.value})"
