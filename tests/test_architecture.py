"""The shape of the package: who may import whom, what an import may do, and what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "onthejob"
ROOT = PACKAGE.parent.parent
CHECKS = ROOT / "checks"

# Modules that are open to all.
COMMON = {"types", "calls", "checkout", "errors", "files", "keys", "processes", "progress", "setting_ranges", "texts"}
# The way of the data. A room may import itself, what is `COMMON`, and the rooms named here.
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "calls": set(),
    "checkout": set(),
    "errors": set(),
    "files": set(),
    "keys": set(),
    "processes": set(),
    "progress": set(),
    "setting_ranges": set(),
    "texts": set(),
    "envs": set(),
    "plugins": {"envs", "interop"},
    "interop": {"envs", "plugins"},
    "track": {"plugins", "record"},
    "models": set(),
    "record": set(),
    "learn": {"models", "plugins"},
    "rollout": {"models", "scale"},
    "scale": {"serve", "learn", "models"},
    "serve": {"models", "learn", "record"},
    "evaluate": {"models", "rollout", "record", "learn"},
    "testing": {"envs", "models", "rollout"},
    "train": {"models", "rollout", "learn", "record", "evaluate", "scale", "serve"},
    "loop": {"learn", "rollout", "train"},
    "compat": {"envs", "record", "rollout"},
}
# Only these put the rooms together for one workplace, so they may import everything.
COMPOSERS = {"stack", "office_players", "office", "claw", "__main__", "cli", "commands", "api"}
LIGHT = {"types", "errors", "envs"}
HEAVY = {"torch", "vllm", "ray", "transformers", "peft", "fastapi", "uvicorn"}
# Names of files that occur in several rooms, with one meaning: an environment, and its scripted players.
REPEATED = {"__init__.py", "env.py", "policies.py"}
# What measures the product is in `checks/`, which only a checkout has: these alone ask `onthejob.checkout` for it.
MEASURED_BY = {"cli.py", "envs/office/policies/__init__.py", "envs/claw/sandbox/faults/__init__.py"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def measuring() -> list[Path]:
    return sorted(path for path in CHECKS.rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT))


def room(path: Path) -> str:
    """First word below the package: `envs`, `learn`, `types`, ...; empty for `onthejob/__init__.py`."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all modules that the file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = path.relative_to(PACKAGE.parent).with_suffix("").parts[: -node.level]
                base = ".".join([*parent, base]).rstrip(".")
            yield base
            # `from onthejob import cli` imports a room too.
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_imports_follow_the_way_of_the_data(path: Path):
    here = room(path)
    if here in COMPOSERS or here == "":
        return
    assert here in ALLOWED, f"{path}: name the new room {here!r} and what it may import in this test"
    rooms = {p.stem if p.is_file() else p.name for p in PACKAGE.iterdir()} - {"__init__", "__pycache__", "py"}
    used = {name.split(".")[1] for name in imports(path) if name.startswith("onthejob.") and name.split(".")[1] in rooms}
    wrong = used - ALLOWED[here] - COMMON - {here}
    assert not wrong, f"{path} imports {sorted(wrong)}"


@pytest.mark.parametrize("path", [path for path in modules() if room(path) in LIGHT], ids=shown)
def test_workplaces_and_vocabulary_stay_light(path: Path):
    heavy = {name.split(".")[0] for name in imports(path)} & HEAVY
    assert not heavy, f"{path} imports {sorted(heavy)}"


def test_only_compat_and_interop_import_other_peoples_interfaces():
    """They are optional: nothing but their own module may need them."""
    others = {"pettingzoo", "gymnasium", "trl", "openenv", "reasoning_gym", "textarena"}
    for path in modules():
        found = {name.split(".")[0] for name in imports(path)} & others
        assert not found or room(path) in ("compat", "interop"), f"{path} imports {sorted(found)}"


def test_one_file_imports_ray():
    assert [shown(path) for path in modules() if "ray" in {name.split(".")[0] for name in imports(path)}] == ["scale/on_ray.py"]


def test_the_package_finds_what_measures_it_at_one_place():
    assert [shown(path) for path in modules() if any(name.split(".")[0] == "checks" for name in imports(path))] == []
    asking = {shown(path) for path in modules() if any(name.endswith("checkout.from_checks") for name in imports(path))}
    assert asking == MEASURED_BY


def test_what_measures_imports_the_package_and_itself():
    own = {path.stem if path.is_file() else path.name for path in ROOT.iterdir()} - {"checks", "src"}
    for path in measuring():
        assert not {name.split(".")[0] for name in imports(path)} & own, shown(path)


def test_players_and_attacks_that_measure_are_light():
    """The package lists them with its own, so they may cost no more than these."""
    for path in [*(CHECKS / "office/players").rglob("*.py"), *(CHECKS / "sandbox").rglob("*.py"), CHECKS / "__init__.py"]:
        used = {name for name in imports(path) if name.split(".")[0] in ("onthejob", "checks", *HEAVY)}
        allowed = ("onthejob.envs.", "checks.office.players", "checks.sandbox")
        assert not {name for name in used if not name.startswith(allowed)}, shown(path)


def test_train_imports_no_workplace():
    for path in [PACKAGE / "loop.py", *(PACKAGE / "train").glob("*.py")]:
        assert not [name for name in imports(path) if name.startswith("onthejob.envs")], path


def test_a_file_name_belongs_to_one_room():
    """A room is a package. A name says which file is meant, in a search, a traceback and a sentence."""
    found: dict[str, list[str]] = {}
    for path in modules():
        if path.name not in REPEATED:
            found.setdefault(path.name, []).append(shown(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_class_name_belongs_to_one_module():
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(shown(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


PROBE = """
import collections.abc, dataclasses, enum, pathlib, sys, typing

def watch(event, arguments):
    if event == "open":
        path, mode, _ = arguments
        writes = isinstance(mode, str) and set(mode) & set("wax+")
        if writes or (isinstance(path, str) and not path.endswith((".py", ".pyc"))):
            raise AssertionError(f"opened {path} at import")
    if event.startswith("socket.") or event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen"):
        raise AssertionError(f"{event} {arguments} at import")

sys.addaudithook(watch)
import onthejob
heavy = {"torch", "transformers", "peft", "numpy", "vllm", "rich", "tyro"} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_the_package_touches_no_disk_network_or_torch():
    done = subprocess.run([sys.executable, "-B", "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_listing_the_commands_does_not_wait_for_torch():
    code = "import sys; from onthejob.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


BORROWS = ("interop/textarena.py", "interop/reasoning_gym_child.py")
"""What they call draws from the interpreter's global generators: the one lends a game's state to them around every call, under a
lock, and the other is a process of its own."""


@pytest.mark.parametrize("path", [*modules(), *measuring()], ids=shown)
def test_no_module_level_state(path: Path):
    """Module-level names hold constants: no empty container to be filled later, no instance that changes, no `global`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    changing = {"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict", "Random", "default_rng", "Lock"}
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{path}:{node.lineno} uses `global`"
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        empty = isinstance(node.value, (ast.List, ast.Dict, ast.Set)) and not ast.unparse(node.value).strip("[]{}")
        called = ast.unparse(node.value.func).split(".")[-1] if isinstance(node.value, ast.Call) else ""
        bare = isinstance(node.value, ast.Call) and not node.value.args
        is_state = (empty or (called in changing and bare)) and not (shown(path) in BORROWS and called == "Lock")
        assert not is_state, f"{path}:{node.lineno} is state: {ast.unparse(node)}"


def test_no_global_randomness_in_the_library():
    """Draws come from keyed or passed generators; torch is seeded only through generators or inside fork_rng."""
    banned = re.compile(
        r"(?<![\w.])random\.(random|choice|shuffle|randint|seed|gauss|sample)\("
        r"|np\.random\.(?!SeedSequence|default_rng|Generator|PCG64|Philox)\w+\("
        r"|(?<![\w.])hash\("
    )
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in [*modules(), *measuring()]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if banned.search(line.split("#")[0]) and shown(path) not in BORROWS
    ]
    assert not found, "\n".join(found)


def test_no_paths_of_one_machine():
    """Nothing that is committed names a folder of one machine."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    machine = re.compile(r"(?:^|[\s\"'=(:`])/(?:work|root|home|tmp|Users|mnt|opt)/[A-Za-z0-9_.]")
    found = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if path.suffix not in {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".ts", ".tsx", ""} or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if machine.search(line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_tests_mirror_the_source():
    """Every folder below tests/ has its room in the package (data files apart)."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in {"data", "__pycache__"}}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} | {"benchmarks", "checks", "recipes"}
    assert folders <= rooms, folders - rooms
    parts = {path.name for path in (ROOT / "tests" / "checks").iterdir() if path.is_dir()} - {"__pycache__"}
    assert parts <= {path.name for path in CHECKS.iterdir()}, parts
