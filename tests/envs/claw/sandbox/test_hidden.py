"""Installed in a folder that sandboxes see, the package shows them nothing: tried in places where containers have it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.inside import find_python, missing_modules
from onthejob.envs.claw.sandbox.programs import PYTHONS
from onthejob.errors import ConfigError

from .conftest import Copy, bring_bubblewrap

PLACE = Path("/usr/src")
"""A folder that every Debian has, and that is replaced in a mount namespace of the test."""
ORDINARY = 65534
LOOK = """
import json, sys
from pathlib import Path
from onthejob.envs.claw.sandbox.faults import FAULTS, try_one
from onthejob.envs.claw.sandbox.host import BwrapHost
data = [Path(name) for name in sys.argv[1:]]
with BwrapHost(data=data) as host:
    outcome = try_one(host, next(fault for fault in FAULTS if fault.number == 78))
    with host.open({}) as sandbox:
        look = "find /usr/src -type f -path '*onthejob*'; find /usr/src -name secret; python3 -c 'print(1)'"
        seen = sandbox.run(look, timeout_s=120)
    layer = next(one.detail for one in host.report.layers if one.name == "hidden packages")
print(json.dumps([outcome.verdict, outcome.detail, seen.stdout.decode(), layer]))
"""
LAYOUTS = {
    "installed": ("lib/python3/site-packages", {"lib/python3/site-packages/other/tests/secret": "s"}, ()),
    "installed by Debian": ("lib/python3/dist-packages", {"lib/python3/dist-packages/onthejob-0.dist-info/METADATA": "m"}, ()),
    "environment in a checkout": ("app/.venv/lib/python3/site-packages", {"app/.venv/pyvenv.cfg": ""}, ()),
    "checkout": ("app/src", {"app/pyproject.toml": "", "app/tests/secret": "s", "app/secret": "s"}, ()),
    "folder": ("code", {}, ()),
    "folder with other files": ("code", {"code/onthejob/envs/claw/secret": "s", "code/other.py": ""}, ()),
    "packages of a user": (
        "home/.local/lib/python3/site-packages",
        {"home/.local/lib/python3/site-packages/other/test_data/secret": "s"},
        (),
    ),
    "checkout in a checkout": (
        "app/vendor/src",
        {"app/pyproject.toml": "", "app/vendor/pyproject.toml": "", "app/secret": ""},
        (),
    ),
    "tasks": ("lib/site-packages", {"tasks/clawgym_train/secret": "s", "tasks/secret": "s"}, ("tasks",)),
}
"""Where -> folder that holds the package, other files, folders named by the user; all below `PLACE`."""


def ended(copy: Copy, site: str, files: dict[str, str], *words: str, prepare: str = "true", ordinary: bool = False):
    """The process that runs Python with these words, the package below `PLACE` in `site`, next to `files`."""
    if os.geteuid() != 0:
        pytest.skip("only root may put something below /usr for the time of a test")
    python = sys.executable
    if ordinary:
        python = next(name for name in PYTHONS if Path(name).is_file())
        if subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False).returncode:
            pytest.skip(f"{python} is older than Python 3.11, and an ordinary user may not read this one")
    (copy.folder / "place").mkdir()
    for name, content in files.items():
        target = copy.folder / "place" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    bring_bubblewrap(copy.folder / "place" / site)
    user = f"setpriv --reuid {ORDINARY} --regid {ORDINARY} --clear-groups" if ordinary else "env"
    source, target = copy.folder / "onthejob", PLACE / site
    script = f"""
mount -t tmpfs none {PLACE} && cp -r {copy.folder}/place/. {PLACE} && mkdir -p {target} && cp -r {source} {target} &&
chmod -R go+rX {PLACE} && cd / && {prepare} && exec {shlex.join([*user.split(), python, "-s", *words])}"""
    return subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def seen(copy: Copy, layout: str, *, ordinary: bool = False, prepare: str = "true") -> list[str]:
    """Verdict, detail, what a sandbox found below `PLACE`, and the layer, with the package there."""
    site, files, data = LAYOUTS[layout]
    words = ("-c", LOOK, *(str(PLACE / name) for name in data))
    done = ended(copy, site, files, *words, prepare=prepare, ordinary=ordinary)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("ordinary", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["root", "ordinary user"])
@pytest.mark.parametrize(
    "layout", [name if name == "installed" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def test_the_package_is_not_seen_where_it_is_installed(copy: Copy, layout: str, ordinary: bool):
    verdict, detail, found, layer = seen(copy, layout, ordinary=ordinary)
    assert (verdict, detail) == ("held", "")
    assert found == "1\n"
    assert str(PLACE) in layer


@pytest.mark.slow
def test_the_package_is_not_seen_behind_a_link(copy: Copy):
    site = PLACE / LAYOUTS["installed"][0]
    prepare = f"mv {site}/onthejob {PLACE}/store && ln -s {PLACE}/store {site}/onthejob"
    verdict, detail, found, layer = seen(copy, "installed", prepare=prepare)
    assert (verdict, detail, found) == ("held", "", "1\n")
    assert str(site) in layer
    assert f"{PLACE}/store" in layer


@pytest.mark.slow
@pytest.mark.skipif(sys.base_prefix == "/usr/local", reason="this Python's library is in the folder that is replaced")
def test_the_copy_of_another_interpreter_is_not_seen(copy: Copy):
    other = "/usr/local/lib/python3.99/dist-packages"
    prepare = (
        f"mount -t tmpfs none /usr/local/lib && mkdir -p {other}/onthejob-9.dist-info && "
        f"touch {other}/onthejob-9.dist-info/METADATA && cp -r {PLACE}/code/onthejob {other}"
    )
    verdict, detail, found, layer = seen(copy, "folder", prepare=prepare)
    assert (verdict, detail, found) == ("held", "", "1\n")
    assert f"{other}/onthejob," in layer


def test_in_an_archive_sandboxes_are_refused_by_name(copy: Copy):
    archive = PLACE / "code.zip"
    pack = f"import shutil; shutil.make_archive({str(archive.with_suffix(''))!r}, 'zip', {str(PLACE / 'code')!r})"
    prepare = f"{sys.executable} -c {shlex.quote(pack)} && rm -r {PLACE}/code && export PYTHONPATH={archive}"
    done = ended(copy, "code", {}, "-c", LOOK, prepare=prepare)
    assert done.returncode == 1
    assert f"sandboxes need the files of onthejob, which is in the archive {archive}. Install it with pip." in done.stderr


@pytest.mark.parametrize("folder", ["/usr/lib", "/usr/local", "/usr/share", "/usr/src"])
def test_a_working_folder_that_sandboxes_need_is_not_hidden(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    hidden = hidden_folders()
    with BwrapHost() as host, host.open({}) as sandbox:
        said = sandbox.run("python3 -c 'import json; print(json.dumps(1))'", timeout_s=120)
    assert said.stdout == b"1\n", said
    assert (folder in hidden) == (folder in ("/usr/share", "/usr/src") or (folder == "/usr/local" != sys.base_prefix))


def test_what_is_hidden_is_no_module_that_checks_may_use(tmp_path: Path):
    assert missing_modules({"colorsys"}, provided=(), hidden=[str(tmp_path)]) == set()
    words = [find_python() or "", "-I", "-c", "import colorsys; print(colorsys.__file__)"]
    library = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()).parent
    assert missing_modules({"colorsys"}, provided=(), hidden=[str(library)]) == {"colorsys"}


def test_folders_that_hold_what_sandboxes_need_are_refused():
    for folder in ("/usr", "/usr/bin", "/", "/usr/lib"):
        with pytest.raises(ConfigError, match=r"holds tasks.*files that they need\. Move the tasks"):
            hidden_folders([Path(folder)])


def test_outside_of_the_system_nothing_need_be_hidden(tmp_path: Path):
    assert str(tmp_path) not in hidden_folders([tmp_path])
