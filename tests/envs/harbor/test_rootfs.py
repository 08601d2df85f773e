"""`--env.rootfs`: another root file system stands for the tasks' images, in sandboxes and in what is said before they start."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.envs.claw.agent_messages import block
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.requirements import check_rootfs
from onthejob.envs.claw.sandbox.rootfs import find_program, inside
from onthejob.envs.harbor import base
from onthejob.envs.harbor.base import base_of
from onthejob.envs.harbor.folder import read
from onthejob.envs.harbor.harbor_work import Images
from onthejob.envs.harbor.packages import HERE, System
from onthejob.envs.harbor.proof import Finding, prove
from onthejob.envs.harbor.support import support_of
from onthejob.errors import ConfigError, SandboxError
from onthejob.interop.harbor import HarborRules
from onthejob.plugins import resolve
from onthejob.types import Split

from .rootfs import RELEASE, make_rootfs
from .tasks import as_task, environment, make


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("roots") / "small"
    make_rootfs(made)
    status = "Package: {0}\nStatus: install ok installed\nVersion: 1\n"
    (made / "var/lib/dpkg").mkdir(parents=True)
    (made / "var/lib/dpkg/status").write_text(status.format("libsmall"), encoding="utf-8")
    (made / COPY).mkdir(parents=True)
    (made / COPY / "claw.py").write_text("gold = 'secret'\n", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def images(root: Path) -> Iterator[Images]:
    with open_host(rootfs=root) as host:
        yield Images(host, HarborRules().sandbox, System(root))


COPY = "usr/lib/python3/dist-packages/onthejob"
"""This package in the root, which sandboxes may not see."""


def state(root: Path) -> str:
    """A digest of everything in a folder: names, modes, times, contents."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(f"{path}{status.st_mode}{status.st_mtime_ns}{status.st_size}".encode())
    return digest.hexdigest()


def test_the_system_is_that_of_the_root_and_is_never_written_to(images: Images, root: Path, tmp_path: Path):
    before = state(root)
    folder = make(tmp_path, dockerfile="FROM registry.example/small:1\nWORKDIR /app\n")
    env = environment(images)
    first = env.reset(as_task(folder, images.system))
    assert first.messages[1].content.endswith("Files:\n(none)")
    said = env.step(block("cat /etc/os-release /srv/tool/data.txt; ls /usr/bin | wc -l; id -u")).observation
    assert said is not None
    programs = len(list((root / "usr/bin").iterdir()))
    assert said.messages[0].content == f"exit code: 0\nstdout:\n{RELEASE}of the root\n{programs}\n0"
    assert env.step(block(f"ls -A /{COPY}")).facts["stdout_bytes"] == 0
    for command in ("touch /usr/bin/x", "rm /bin/ls", "mv /usr /usr2", "chmod 000 /usr"):
        assert "exit code: 1" in env.step(block(command)).facts["observation"], command
    changes = "echo x > /srv/tool/data.txt; rm /etc/passwd; mkdir /new && cat /srv/tool/data.txt"
    assert env.step(block(changes)).facts["exit_code"] == 0
    env.close()
    assert state(root) == before


def test_its_solution_passes_there(images: Images, tmp_path: Path):
    test = 'if [ "$(cat /app/answer.txt)" = small ] && grep -q small /etc/os-release; then echo 1; else echo 0; fi'
    folder = make(
        tmp_path,
        dockerfile="FROM registry.example/small:1\nRUN echo built > /srv/built.txt\nWORKDIR /app\n",
        test=f"{test} > /logs/verifier/reward.txt\n",
        solution=". /etc/os-release; cat /srv/built.txt && echo $ID > /app/answer.txt\n",
    )
    support = support_of(read(folder), system=images.system)
    assert support.refusals == ()
    assert support.notes == (f"{images.system.root} stands for registry.example/small:1",)
    proof = prove(read(folder), support, images)
    assert (proof.finding, proof.noop, proof.solution) == (Finding.RIGHT, (0.0, 0.0), (1.0, 1.0)), proof.why


def test_packages_and_programs_are_looked_for_in_the_root(root: Path, tmp_path: Path):
    system = System(root)
    assert system.missing_apt(["libsmall", "coreutils", "jq", "libother"]) == ["jq", "libother"]
    assert HERE.missing_apt(["libsmall"]) == ["libsmall"]
    assert (system.lacks_program("sort"), system.lacks_program("find"), system.lacks_program("/usr/bin/sort")) == (
        False,
        True,
        False,
    )
    # It has no Python, so that none of its packages is there.
    assert system.missing_pip(["requests", "numpy==2.0", "pip"]) == ["requests", "numpy"]
    assert system.is_safe()
    folder = make(tmp_path, dockerfile="FROM ubuntu:24.04\nRUN find / -name x\nRUN apt-get install -y libsmall libother\n")
    assert [one.detail for one in support_of(read(folder), system=system).refusals] == ["find", "libother"]
    tests = make(tmp_path, "tests", test="uvx pytest /tests/test_outputs.py\n")
    assert [one.detail for one in support_of(read(tests), system=system).refusals] == ["python3"]


def test_the_python_of_a_root_is_read_from_its_folders(root: Path, tmp_path: Path):
    made = tmp_path / "with-python"
    for path in ("usr/bin/python3.12", "usr/lib/python3.12/json/__init__.py", "usr/lib/python3.12/tomllib/__init__.py",
                 "usr/lib/python3/dist-packages/yaml/__init__.py", "usr/lib/python3/dist-packages/six.py",
                 "usr/local/lib/python3.12/dist-packages/fast.cpython-312-x86_64-linux-gnu.so",
                 "usr/lib/python3/dist-packages/PyYAML-6.0.dist-info/METADATA"):  # fmt: skip
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text("", encoding="utf-8")
        (made / path).chmod(0o755)
    (made / "etc/alternatives").mkdir(parents=True)
    (made / "etc/alternatives/python3").symlink_to("/usr/bin/python3.12")
    (made / "usr/bin/python3").symlink_to("/etc/alternatives/python3")
    system = System(made)
    assert system.missing_pip(["pyyaml", "six", "fast", "requests"]) == ["requests"]
    assert system.is_safe()
    assert not system.lacks_program("python3")
    older = Path(shutil.copytree(made, tmp_path / "older", symlinks=True))
    shutil.rmtree(older / "usr/lib/python3.12/tomllib")
    assert not System(older).is_safe()


def test_links_stay_in_the_root(root: Path, tmp_path: Path):
    made = tmp_path / "root"
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/tool").write_text("", encoding="utf-8")
    (made / "usr/bin/tool").chmod(0o755)
    for name, target in {
        "a": "/usr/bin/tool",
        "b": "../../../../usr/bin/tool",
        "c": "/etc/passwd",
        "d": "d",
        "e": "/bin/a",
    }.items():
        (made / "usr/bin" / name).symlink_to(target)
    (made / "bin").symlink_to("/usr/bin")
    assert {name: find_program(name, made) for name in "abcde"} == {
        "a": "/usr/bin/a", "b": "/usr/bin/b", "c": None, "d": None, "e": "/usr/bin/e",
    }  # fmt: skip
    assert inside(made, "/bin/e") == made / "usr/bin/tool"


def test_what_is_mounted_of_a_root_follows_no_link_out_of_it(tmp_path: Path):
    made = make_rootfs(tmp_path / "root")
    (made / "system").mkdir()
    (made / "usr").rename(made / "system/usr")
    # Of this machine's own, which has them all, nothing may be seen.
    (made / "usr").symlink_to("/system/usr")
    (made / "etc/alternatives").symlink_to("/var/lib")
    (made / "etc/ld.so.cache").symlink_to("/etc/nsswitch.conf")
    assert all(map(os.path.exists, ("/var/lib", "/etc/nsswitch.conf")))
    look = "ls -A /etc/alternatives; cat /etc/ld.so.cache; ls /usr/bin | wc -l"
    with open_host(rootfs=made) as host, host.open({}) as sandbox:
        assert sandbox.run(look, timeout_s=60.0).stdout == b"%d\n" % len(list((made / "system/usr/bin").iterdir()))
    # A link that stays in the root is followed.
    (made / "var/lib").mkdir(parents=True)
    (made / "var/lib/chosen").touch()
    with open_host(rootfs=made) as host, host.open({}) as sandbox:
        assert sandbox.run("ls -A /etc/alternatives", timeout_s=60.0).stdout == b"chosen\n"


def test_what_is_looked_for_in_a_root_follows_no_link_out_of_it(tmp_path: Path):
    made, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (outside / "python3/dist-packages/onthejob", made / "srv/lib/python3.11/site-packages/onthejob"):
        folder.mkdir(parents=True)
    (outside / "dpkg").mkdir()
    (outside / "dpkg/status").write_text("Package: libhost\nStatus: install ok installed\n", encoding="utf-8")
    (outside / "module").mkdir()
    for link, target in {
        "usr/lib": outside, "var/lib": outside, "usr/local/lib": "/srv/lib", "srv/lib/python3.11/outside": outside / "module",
        "usr/bin/python3": "/usr/bin/python3.11",
    }.items():  # fmt: skip
        (made / link).parent.mkdir(parents=True, exist_ok=True)
        (made / link).symlink_to(target)
    assert hidden_folders((), made) == [str(made / "srv/lib/python3.11/site-packages/onthejob")]
    assert System(made).missing_apt(["libhost"]) == ["libhost"]


def test_what_is_no_root_is_refused(root: Path, tmp_path: Path):
    def refused(folder: Path, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            check_rootfs(folder)

    refused(tmp_path / "missing", "has no folder usr")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/usr").symlink_to("/usr")
    refused(tmp_path / "linked", "has no folder usr")
    refused(Path("/"), "is this machine's own root")
    (tmp_path / "empty/usr").mkdir(parents=True)
    refused(tmp_path / "empty", "has no /bin/bash")
    refused(make_rootfs(tmp_path / "no-perl", perl=False), "has neither Perl nor Python 3")
    closed = make_rootfs(tmp_path / "closed")
    if os.geteuid() == 0:
        closed.chmod(0o700)
        refused(closed, "is closed to the user of sandboxes")
    with pytest.raises(ConfigError, match="lies in the root file system"):
        open_host(rootfs=root, data=[root / "srv"])
    with pytest.raises(ConfigError, match="Leave rootfs or unsafe out"):
        open_host(rootfs=root, unsafe=True)


def test_a_root_whose_libraries_are_missing_is_said_to_be_unfit(tmp_path: Path):
    made = make_rootfs(tmp_path / "broken")
    for library in made.rglob("libc.so*"):
        library.unlink()
    with pytest.raises(SandboxError, match="may be made for another processor, or lack libraries"):
        open_host(rootfs=made)


def test_too_much_besides_the_system_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch):
    base_of.cache_clear()
    monkeypatch.setattr(base, "MOST_FILES", 22)
    with pytest.raises(ConfigError, match=r"has more than 22 files .* has \d of them: remove it, or move it below /usr"):
        base_of(root)
    base_of.cache_clear()


def test_with_too_many_bytes_the_folder_with_most_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(9):
        (tmp_path / "srv/many").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"srv/many/{number}").touch()
    (tmp_path / "srv/large").mkdir()
    for name in ("a", "b"):
        (tmp_path / "srv/large" / name).write_bytes(bytes(700_000))
    monkeypatch.setattr(base, "MOST_BYTES", 1 << 20)
    read_ones: list[Path] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read_ones.append(path) or read_bytes(path))
    with pytest.raises(ConfigError, match=r"has more than 1 MiB besides .* /srv/large has 1\.3 MiB of them: remove it"):
        base_of(tmp_path)
    assert len(read_ones) == len(set(read_ones)), "a file is read more than once"


def test_the_option_reaches_tasks_and_commands(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make(tmp_path / "train", "own-image", dockerfile="FROM registry.example/small:1\nWORKDIR /app\n")
    make(tmp_path / "train", "needs-find", dockerfile="FROM registry.example/small:1\nRUN find /\nWORKDIR /app\n")
    kind: Any = resolve(f"harbor:{tmp_path}")
    with pytest.raises(ConfigError, match="no task that can be played here"):
        kind().check_options()
    env = kind(rootfs=root)
    assert [one.id for one in env.tasks(Split.TRAIN)] == ["train-own-image"]
    assert env.anchored() == {"rootfs": str(root)}
    words = ["play", f"harbor:{tmp_path}", "--policy", "gold", "--env.rootfs", str(root)]
    assert main(words) == 0
    assert "1" in capsys.readouterr().out
    assert main(["tasks", "validate", "--env", f"harbor:{tmp_path}", "--rootfs", str(root), "--runs", "1"]) == 0
    assert main(["tasks", "validate", "--rootfs", str(root)]) == 2
    assert "--rootfs has no effect without --env" in capsys.readouterr().err
