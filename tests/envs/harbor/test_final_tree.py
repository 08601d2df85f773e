"""What tests see of the tree that an agent left."""

from __future__ import annotations

from onthejob.envs.claw.sandbox.sandbox_interface import Item, Kind
from onthejob.envs.harbor.final_tree import Named, for_tests, links

BEFORE = {"etc/passwd": Item(data=b"root"), "app/a": Item(data=b"1"), "tmp": Item(kind=Kind.FOLDER, mode=0o1777)}


def seen(left: dict[str, bytes], *, request: str = "", tests: str = "", workdir: str = "/app") -> dict[str, bytes]:
    """Path -> content of the files that tests see where the agent left these besides what was there before."""
    items = {**BEFORE, **{path: Item(data=data) for path, data in left.items()}}
    found = for_tests(items, BEFORE, named=Named(request=request, tests=tests), workdir=workdir)
    return {path: item.data for path, item in found.items() if item.kind is Kind.FILE}


USUAL = {"etc/passwd": b"root", "app/a": b"1"}


def test_work_anywhere_is_seen():
    left = {"app/a": b"2", "srv/x": b"3", "data/new/y": b"4", "notes.txt": b"5"}
    assert seen(left) == {**USUAL, **left}


def test_the_verifiers_folders_and_the_systems_are_not_taken_over():
    left = {
        "logs/verifier/reward.txt": b"1",
        "tests/test.sh": b"x",
        "solution/solve.sh": b"x",
        "usr/bin/python3": b"x",
        "dev/x": b"",
    }
    assert seen(left) == USUAL


def test_start_up_files_are_what_they_were():
    names = ["etc/ld.so.preload", "etc/python3.11/sitecustomize.py", "etc/profile", "etc/bash.bashrc", "etc/ssl/openssl.cnf",
             "conftest.py",
             "pytest.ini", "pyproject.toml", "setup.cfg", "evil.pth", "root/.local/lib/python3.11/site-packages/x.pth",
             "home/a/.config/pip/pip.conf", "root/.gitconfig"]  # fmt: skip
    request = " ".join(f"/{name}" for name in names)
    assert seen(dict.fromkeys(names, b"x"), request=request, tests=request) == USUAL


def test_settings_are_seen_where_the_task_is_about_them():
    left = {"etc/passwd": b"changed", "etc/hosts": b"h", "root/.vimrc": b"v"}
    assert seen(left) == USUAL
    named = seen(left, request="Change /etc/hosts.", tests="open('/etc/passwd'); Path.home() / '.vimrc'")
    assert named == {**USUAL, **left}


def test_settings_in_the_home_of_the_tests_are_not_seen_where_the_task_is_worked_on_there():
    left = {"root/.jq": b"x", "root/.magic": b"x", "root/work/.env": b"y", "root/notes.txt": b"z"}
    assert seen(left, workdir="/root") == {**USUAL, "root/work/.env": b"y", "root/notes.txt": b"z"}
    other = {"home/a/.env": b"y"}
    assert seen(other, workdir="/home" + "/a") == {**USUAL, **other}


def test_temporary_files_are_seen_where_the_request_names_them():
    left = {"tmp/score.json": b"1", "var/tmp/x": b"2"}
    assert seen(left, tests="/tmp" + "/score.json") == USUAL
    assert seen(left, request="Write /tmp" + "/score.json.") == {**USUAL, "tmp/score.json": b"1"}
    assert seen(left, workdir="/tmp") == {**USUAL, "tmp/score.json": b"1"}


def test_a_file_in_the_place_of_a_folder():
    before = {"etc": Item(kind=Kind.FOLDER, mode=0o755), "etc/passwd": Item(data=b"root")}
    left = {"etc": Item(data=b"a file")}
    assert for_tests(left, before, named=Named(request="", tests=""), workdir="/app") == {"etc": Item(data=b"a file")}


def test_links_that_lead_to_the_tests_are_left_out():
    def link(target: str) -> Item:
        return Item(kind=Kind.LINK, data=target.encode())

    items = {
        "app/a": link("b"), "app/usr": link("/usr/bin/env"), "app/null": link("/dev/null"), "app/up": link("../etc/passwd"),
        "app/t": link("/tests/expected.json"), "app/t2": link("../../tests"),
        "app/p": link("/proc/self/cwd"), "app/l": link("/logs"),
        "app/way": link("/app/x"), "app/x": link("/tests"), "app/far": link("x/expected.json"), "app/round": link("round"),
    }  # fmt: skip
    kept = {path for path in items if links(path, items)}
    assert kept == {"app/a", "app/usr", "app/null", "app/up"}
