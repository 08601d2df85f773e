"""What the documents say exists, and what exists is documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from onthejob.cli import COMMANDS, begun, command_class, parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOG = sorted((ROOT / "docs/log").glob("[0-9]*.md"))
"""Pages of experiments. Their entries keep the commands and the names of their day."""
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in LOG),
    *sorted((ROOT / "adapters").rglob("*.md")),
]


def is_left_out(path: Path) -> bool:
    """True of the adapters in a source archive, which is without them."""
    return path.resolve().is_relative_to(ROOT / "adapters") and not (ROOT / "adapters").exists()


def code_lines(text: str) -> list[str]:
    """Lines of the fenced shell blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", text.replace("\\\n", " "), flags=re.DOTALL)
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.split("#")[0].strip()]


COMPILED = {"reasoning_gym:": "pycosat", "texas_holdem": "rlcard"}
"""Part of a command -> a package that it needs, which only `make compiled` installs."""


def check_command(line: str, place: str) -> None:
    """Fails unless the line names a real command with real options."""
    words = shlex.split(line)
    path = next((" ".join(words[1 : 1 + n]) for n in (2, 1) if " ".join(words[1 : 1 + n]) in COMMANDS), None)
    assert path is not None, f"{place}: no such command: {line}"
    rest = words[1 + len(path.split()) :]
    if "openenv:http" in line:
        return  # A server must run: tests/interop/test_from_openenv.py has one.
    if any(part in line and importlib.util.find_spec(package) is None for part, package in COMPILED.items()):
        return
    kind, default = begun(command_class(path), rest, COMMANDS[path])
    parse(kind, rest, prog=f"onthejob {path}", default=default)


def listed_commands(text: str) -> list[str]:
    return re.findall(r"^\| `onthejob ([a-z]+(?: [a-z]+)?)", text, flags=re.MULTILINE)


def test_the_page_of_commands_lists_every_command_and_no_other():
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert listed_commands(page.split("<!-- commands:begin -->")[1].split("<!-- commands:end -->")[0]) == list(COMMANDS)


def test_the_readme_names_eight_commands_that_exist():
    named = listed_commands(README)
    assert len(named) == len(set(named)) == 8
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_documents_parse(document: Path, monkeypatch: pytest.MonkeyPatch):
    """Every `onthejob ...` of a shell block, or in a line of text with options, names a real command with real options."""
    monkeypatch.chdir(ROOT)
    # As in an activated environment: Debian has no `python` of its own, which `program:python FILE` names.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    text = document.read_text(encoding="utf-8")
    spoken = [
        code for code in re.findall(r"`(onthejob [^`]*)`", text) if " -" in code and "..." not in code and "--help" not in code
    ]
    for line in code_lines(text) + spoken:
        if shlex.split(line)[:1] and shlex.split(line)[0].endswith("onthejob"):
            check_command(line, document.name)


@pytest.mark.parametrize(
    ("recipe", "commands"),
    [
        ("recipes/office.sh", ["collect", "sft", "sft", "train", "train", "train"]),
        ("recipes/office_eval.sh", ["sft", "eval", "compare"]),
        ("recipes/claw.sh", ["collect", "sft", "compare", "train", "compare"]),
        ("recipes/claw_seed.sh", ["train", "train", "compare"]),
    ],
)
def test_commands_of_the_recipes_parse(recipe: str, commands: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    script = (ROOT / recipe).read_text(encoding="utf-8").replace("\\\n", " ")
    variables = {
        "$recipe": "recipes/office.toml",
        "$(processes $roles)": "2",
        "$roles": "sales hr",
        **{f"${name}": text for name, text in re.findall(r'^(\w+)="(.*)"$', script, re.M)},
    }
    lines = [line.replace('"$role"', "sales") for line in re.findall(r"^ *onthejob (.*)$", script, flags=re.MULTILINE)]
    assert [line.split()[0] for line in lines] == commands
    for line in lines:
        for variable, value in variables.items():
            line = line.replace(f'"{variable}"', value).replace(variable, value)
        check_command(f"onthejob {line}", recipe)


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]):
    _, example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    values = [float(line.split()[0].replace(",", "")) for line in capsys.readouterr().out.splitlines()]
    assert len(values) >= 2
    assert len(set(values)) > 1, "replies that differ must be worth different amounts"


def test_make_targets_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {
        target
        for path in DOCUMENTS
        for target in re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for target in target
        if target
    }
    assert named
    assert named <= targets, named - targets


def undocumented(kind: type) -> list[str]:
    """Fields of a dataclass, inherited and nested ones included, without a docstring below them (which is what --help shows)."""
    explained: set[str] = set()
    for part in kind.__mro__:
        if not dataclasses.is_dataclass(part):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        explained |= {
            statement.target.id
            for statement, after in itertools.pairwise(body.body)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and len(str(after.value.value)) >= 8
        }
    missing = []
    for field in dataclasses.fields(kind):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if dataclasses.is_dataclass(default):
            missing += [f"{field.name}.{name}" for name in undocumented(type(default))]
        elif field.name not in explained:
            missing.append(field.name)
    return missing


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_explains_itself(path: str):
    assert undocumented(command_class(path)) == []
    assert command_class(path).__doc__


def test_flags_that_switch_something_off_say_so(capsys: pytest.CaptureFixture[str]):
    """`--no-x` is shown with the help of x: it must be right for who reads it as that of `--no-x`, and state no default of x."""
    on = {(path, field.name) for path in COMMANDS for field in dataclasses.fields(command_class(path)) if field.default is True}
    assert on, "there is no such flag left: drop this test"
    for path, name in on:
        with pytest.raises(SystemExit):
            parse(command_class(path), ["--help"], prog="onthejob")
        words = " ".join(re.sub(r"[│─]", " ", capsys.readouterr().out).split())
        flag = f"--no-{name.replace('_', '-')}"
        told = re.search(rf" {flag} ([^(]*)(\(default: True\))?", words)
        assert told is not None
        assert f"`{flag}`" in told[1], told
        assert "by default" in told[1], told
        assert told[2] is None, told


def test_the_tree_of_the_architecture_matches_the_repository():
    tree = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The tree")[1].split("```")[1]
    depth: list[str] = []
    named: set[str] = set()
    for line in tree.splitlines():
        found = re.match(r"^((?:│   |    )*)[├└]── (.*)$", line)
        if not found:
            continue
        level = len(found[1]) // 4
        # Names come before two spaces; one line may hold several names.
        for name in re.split(r"\s{2,}", found[2])[0].split():
            depth[level:] = [name.rstrip("/")]
            named.add("/".join(depth))
    missing = sorted(name for name in named if not (ROOT / name).exists() and not is_left_out(ROOT / name))
    assert not missing, missing
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode == 0:
        top = {".ci/run" if name.startswith(".ci/") else name.split("/")[0] for name in listed.stdout.split()} - {".gitignore"}
        shown = {name if name.startswith(".ci/") else name.split("/")[0] for name in named}
        assert top <= shown, top - shown
    rooms = {f"src/onthejob/{path.name}" for path in (ROOT / "src/onthejob").iterdir()} - {
        "src/onthejob/__init__.py",
        "src/onthejob/__pycache__",
        "src/onthejob/py.typed",
        "src/onthejob/_viewer",  # built, not committed
    }
    assert rooms <= named, rooms - named


def anchors(path: Path, marks: str = "#{1,6}") -> set[str]:
    """Names by which GitHub links to the headings of a page; marks: a pattern of the signs before a heading."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {anchor_of(heading) for heading in re.findall(rf"^{marks} (.+)$", text, flags=re.MULTILINE)}


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_between_documents_lead_somewhere():
    for path in [*DOCUMENTS, *LOG, ROOT / "CHANGELOG.md"]:
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not is_left_out(path.parent / target):
                page = path.parent / target if target else path
                assert page.exists(), f"{path.name} links to {target}"
                assert not anchor or anchor in anchors(page), f"{path.name} links to {target}#{anchor}"


def test_the_log_is_indexed_by_its_findings():
    """Every entry has a line; a line has a question, an answer, figures and its entry; no page is too long to read."""
    index = ROOT / "docs/log/README.md"
    rows = [line for line in index.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!question|-)", line)]
    shape = re.compile(r"\| [^|]+\? \| [^|]+ \| [^|]+ \| \[\d\d-\d\d\]\(([^)#]+)#([^)]+)\) \|")
    found = [shape.fullmatch(row) for row in rows]
    assert rows
    assert [row for row, match in zip(rows, found, strict=True) if match is None] == []
    entries = {(page.name, anchor) for page in LOG for anchor in anchors(page, "##")}
    assert entries == {(match[1], match[2]) for match in found}
    assert all(len(page.read_text(encoding="utf-8").splitlines()) <= 1_600 for page in LOG)
    assert all(f"({page.name})" in index.read_text(encoding="utf-8").split("## ")[0] for page in LOG)


def test_figures_of_the_log_index_are_those_of_their_entries():
    def numbers(text: str) -> set[str]:
        return {number.rstrip(",") for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)}

    held: dict[str, set[str]] = {}
    for page in LOG:
        for entry in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            held[anchor_of(entry.splitlines()[0])] = numbers(entry)
    index = (ROOT / "docs/log/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+\? \| ([^|]+ \| [^|]+) \| \[[\d-]+\]\([^)#]+#([^)]+)\) \|$", index, flags=re.MULTILINE)
    assert rows
    wrong = [(text, numbers(text) - held[anchor]) for text, anchor in rows if numbers(text) - held[anchor]]
    assert wrong == []


def test_every_page_is_listed():
    """In the index, for language models in llms.txt, and in the navigation of the site."""
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for_models = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    site = (ROOT / "docs/scripts/zensical.toml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md") if path not in LOG]
    assert len(pages) > 30
    for page in sorted(set(pages) - {"README.md"}):
        assert f"({page})" in index, f"docs/README.md does not list {page}"
        assert f"({page})" in for_models, f"docs/llms.txt does not list {page}"
        assert f'"{page.replace("README", "index")}"' in site, f"docs/scripts/zensical.toml does not list {page}"


def test_llms_txt_says_what_the_index_says():
    index = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (.+) \|$", (ROOT / "docs/README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert index
    assert (
        re.findall(r"^- \[(.+?)\]\((.+?)\): (.+)$", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"), re.MULTILINE) == index
    )


OPENINGS = ("Here you can ", "After this page you ", "Look up ")
"""How a page begins: with what a reader can do there."""


def test_every_page_opens_with_what_a_reader_can_do_there():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path not in LOG]
    opened = {path: path.read_text(encoding="utf-8").split("\n\n")[1] for path in pages}
    assert [path.name for path, text in sorted(opened.items()) if not text.startswith(OPENINGS)] == []


def source_texts() -> Iterable[str]:
    """Texts of the package's programs and of the Makefile, each in one piece; what a value fills in is an ellipsis."""
    yield (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(PYTHON)", "…")
    for path in (ROOT / "src/onthejob").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_of_the_questions_page_are_those_of_the_programs():
    page = (ROOT / "docs/faq.md").read_text(encoding="utf-8").split("## Messages")[1].split("## Questions")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(messages) >= 15
    texts = list(source_texts())
    assert [one for one in messages if not any(one.strip("… ") in text for text in texts)] == []


READS = (
    r"environ\b\)?(?:\.get\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"(?!\] =)",  # os.environ["X"], environ.get("X"), (...).get("X")
    r"\"([A-Z][A-Z0-9_]+)\" in os\.environ",
    r"^[A-Z_]+_ENV = \"([A-Z][A-Z0-9_]+)\"",  # constants that are handed to one of these
    r"key_env = \"([A-Z][A-Z0-9_]+)\"",  # the catalogue's
    r"\$\{(ONTHEJOB_[A-Z0-9_]+)",  # shell
)
"""How a file shows that it reads an environment variable."""


def variables(paths: Iterable[Path]) -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return {name for text in texts for way in READS for name in re.findall(way, text, flags=re.MULTILINE)}


def test_every_environment_variable_that_is_read_is_in_the_table():
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    own, around = (
        page.split(f"## {title}\n")[1].split("\n## ")[0] for title in ("Read by the package", "Read by its surroundings")
    )
    package = ROOT / "src/onthejob"
    read = variables([*package.rglob("*.py"), package / "models/catalogue.toml"])
    # Passed on to vLLM, whose own it is; and what only its test sets and takes away again.
    read = (read | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING"}) - {"ONTHEJOB_FAULT_SECRET"}
    assert set(re.findall(r"^\| `([A-Z0-9_]+)` \|", own, flags=re.MULTILINE)) == read
    others = [
        ROOT / "hatch_build.py",
        ROOT / ".ci/run",
        ROOT / "spaces/office/server/app.py",
        *(ROOT / "tests").rglob("*.py"),
    ]
    elsewhere = {name for name in variables(others) if name.startswith(("ONTHEJOB_", "MAX_"))} - read
    assert set(re.findall(r"^\| `([A-Z0-9_]+)` \|", around, flags=re.MULTILINE)) == elsewhere


def test_changelog_lines_are_short():
    for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("- "):
            assert len(line.split()) <= 26, line


def test_versions_agree():
    import onthejob

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == onthejob.__version__
    assert project["scripts"]["onthejob"] == "onthejob.cli:main"
