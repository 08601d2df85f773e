"""Checks of official tasks against the agent that they grade: programs that would write, read or end the check."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.claw import Claw
from onthejob.envs.claw.official import MARK, as_task
from onthejob.envs.claw.sandbox import SandboxHost, open_host
from onthejob.errors import ConfigError
from onthejob.types import Split

from .official import CHECK, end, make


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


STARTS = """
import json, subprocess, sys

done = subprocess.run([sys.executable, "tool.py"], cwd=sys.argv[1], capture_output=True, text=True, timeout=50)
scores = {"ends": float(done.returncode == 0), "right": 0.0, "kept": 0.0}
if done.stdout.strip() == "the sum is 7":
    scores["right"] = 1.0
with open(sys.argv[1] + "/input/numbers.txt") as file:
    scores["kept"] = float(file.read() == "3\\n4\\n" and scores["right"] == 1.0)
print(json.dumps(scores))
"""
FULL = '{"ends": 1.0, "right": 1.0, "kept": 1.0}'
HONEST = "cat > tool.py <<'E'\nprint('the sum is', sum(map(int, open('input/numbers.txt'))))\nE"
SHADOW = f"import os\nos.write(1, b'{FULL}')\nos._exit(0)\n"
PLANTED = {
    "prints the verdict": f"print('{FULL}')",
    "prints it on every descriptor": f"""
import os
for number in range(1, 64):
    try:
        os.write(number, b'{FULL}')
    except OSError:
        pass""",
    "writes it into the check's descriptors": f"""
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    for number in range(64):
        try:
            with open(f'/proc/{{pid}}/fd/{{number}}', 'w') as file:
                if not file.isatty() and number != 0 and int(pid) != os.getpid():
                    file.write('{FULL}')
        except OSError:
            pass""",
    "ends the check after printing": f"import os, signal\nos.write(1, b'{FULL}')\nos.kill(os.getppid(), signal.SIGKILL)",
    "reads the check": """
import os
paths = [f'/proc/{pid}/fd/{number}' for pid in ('self', os.getppid()) for number in range(64)]
paths += [f'/proc/{pid}/{name}' for pid in filter(str.isdigit, os.listdir('/proc')) for name in ('cmdline', 'environ', 'mem')]
for folder in ('/beside', '/tmp', '/dev/shm', '/run/pid1'):
    for place, _, files in os.walk(folder):
        paths += [os.path.join(place, name) for name in files]
found = b''
for path in paths:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        found += os.pread(file, 1 << 20, 0)
    except OSError:
        pass
if b'the sum' + b' is' in found or b'dGhlIHN1bSBpcy' in found:
    print('the sum', 'is 7')""",
    "changes what is imported": f"""
import pathlib
for name in ('json.py', 'sitecustomize.py', 'usercustomize.py', 'subprocess.py'):
    for folder in ('/tmp', '/work', '/beside', '/run/python'):
        try:
            pathlib.Path(folder, name).write_text({SHADOW!r})
        except OSError:
            pass
print('{FULL}')""",
    "ends at once after printing": f"import os\nos.write(1, b'{FULL}')\nos._exit(0)",
    "prints when it ends": f"import atexit\natexit.register(print, '{FULL}')",
    "changes what writes JSON": f"import json\njson.dumps = json.dump = lambda *_, **__: '{FULL}'\nprint(json.dumps({{}}))",
    "plants start-up files in the home": f"""
import os, pathlib, sys, sysconfig
site = pathlib.Path('/tmp', f'.local/lib/python{{sys.version_info[0]}}.{{sys.version_info[1]}}/site-packages')
for home in ('/tmp', '/work', '/root'):
    for name in ('.bashrc', '.profile', '.bash_profile', '.pythonrc.py', '.pdbrc', 'usercustomize.py'):
        try:
            pathlib.Path(home, name).write_text({SHADOW!r})
        except OSError:
            pass
site.mkdir(parents=True)
for name in ('usercustomize.py', 'sitecustomize.py', 'json.py'):
    (site / name).write_text({SHADOW!r})
(site / 'a.pth').write_text('import usercustomize\\n')""",
    "writes what is expected": f"""
import os
for folder in ('/beside', '/work', 'reward', '/tmp', '/run'):
    os.makedirs(folder, exist_ok=True) if folder == 'reward' else None
    for name in ('expected.txt', 'check.py', 'expected.json'):
        try:
            with open(os.path.join(folder, name), 'w') as file:
                file.write({SHADOW!r})
        except OSError:
            pass""",
    "reads the check's memory": """
import os, re
found = b''
try:
    for line in open(f'/proc/{os.getppid()}/maps'):
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        memory = os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR)
        found += os.pread(memory, end - start, start)
except OSError:
    pass
if b'the sum' + b' is' in found:
    print('the sum', 'is 7')""",
    "traces the check": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):
    if libc.ptrace(request, os.getppid(), 0, 0) == 0:
        print('the sum', 'is 7')""",
    "copies the check's memory": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
space = ctypes.create_string_buffer(8)
ours, theirs = Part(ctypes.addressof(space), 8), Part(0x400000, 8)
for call in (libc.process_vm_readv, libc.process_vm_writev):
    if call(os.getppid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) != -1 or ctypes.get_errno() != 1:
        print('the sum', 'is 7')""",
    "takes the check's descriptors": f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, os.getppid()):
    handle = os.pidfd_open(pid)
    for number in range(64):
        if (taken := libc.syscall(438, handle, number, 0)) >= 0:
            os.write(taken, b'{FULL}')""",
    "writes to devices": f"""
import os
for name in ('/dev/stdout', '/dev/stderr', '/dev/fd/1', '/dev/tty', '/dev/console', '/proc/self/fd/1', '/proc/1/fd/1'):
    try:
        with open(name, 'w') as file:
            file.write('{FULL}')
    except OSError:
        pass""",
    "plants what tools look for": f"""
import os, pathlib, subprocess
for name in ('conftest.py', 'pytest.ini', 'setup.cfg', 'tox.ini', 'python3', 'python', 'git', 'sh', '.git/hooks/post-checkout'):
    path = pathlib.Path('/work', name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text({SHADOW!r})
    path.chmod(0o755)""",
    "plants a library": """
import os, pathlib
for name in ('/etc/ld.so.preload', '/etc/ld.so.cache', '/usr/lib/libc.so.6', 'libc.so.6'):
    try:
        pathlib.Path(name).write_bytes(b'./libc.so.6')
    except OSError:
        pass
os.environ['LD_PRELOAD'] = './libc.so.6'""",
    "plants a pickle": f"""
import pickle
class Planted:
    def __reduce__(self):
        return (exec, ({SHADOW!r},))
for name in ('answer.pkl', 'answer.txt', 'model.joblib'):
    with open('/work/' + name, 'wb') as file:
        pickle.dump(Planted(), file)""",
    "leaves a process that prints": f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        keep = os.dup(2)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for _ in range(200):
            os.write(keep, b'{FULL}')
            time.sleep(0.01)
    os._exit(0)
os.wait()""",
    "limits the check": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
none = (ctypes.c_uint64 * 2)(0, 0)
for number in range(16):
    if libc.prlimit(os.getppid(), number, none, None) == 0:
        print('the sum', 'is 7')""",
    "interrupts the check after printing": f"import os, signal\nos.write(1, b'{FULL}')\nos.kill(os.getppid(), signal.SIGINT)",
    "ends all after printing": f"import os, signal\nos.write(1, b'{FULL}')\nos.kill(-1, signal.SIGKILL)",
}
ENDING = {"ends the check after printing", "interrupts the check after printing", "ends all after printing"}
"""Kinds of which the check does not survive."""
QUICK = ("prints the verdict", "ends the check after printing", "reads the check")


@pytest.mark.parametrize("kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in PLANTED])
def test_a_program_that_a_check_starts_cannot_write_its_own_grade(host: SandboxHost, tmp_path: Path, kind: str):
    task = as_task(make(tmp_path, check=STARTS), Split.TRAIN)
    assert "checks_run_agent_code" not in task.payload
    state = end(host, task, f"cat > tool.py <<'E'\n{PLANTED[kind]}\nE").state()
    passed = {v["path"] for v in state["verdicts"] if v["passed"]}
    # The check ran to its end, unless it was killed.
    assert passed == (set() if kind in ENDING else {"ends"}), state["verdicts"]
    assert state["metrics"]["assertion_rate"] <= 1 / 3


def test_a_check_that_starts_programs_scores_honest_work_as_before(host: SandboxHost, tmp_path: Path):
    task = as_task(make(tmp_path, check=STARTS), Split.TRAIN)
    state = end(host, task, HONEST).state()
    assert {v["path"]: v["reason"] for v in state["verdicts"]} == {"ends": "", "right": "", "kept": ""}
    assert end(host, task, None).state()["metrics"]["assertion_rate"] == 0.0


def test_a_check_that_only_reads_is_not_reached_by_what_was_planted(host: SandboxHost, tmp_path: Path):
    """All kinds run as the agent's own commands, and everything that they leave is in the workspace that is checked."""
    task = as_task(make(tmp_path), Split.TRAIN)
    assert MARK not in task.payload
    kinds = [kind for kind in PLANTED if kind not in ENDING]
    command = "\n".join(f"python3 -c {shlex.quote(PLANTED[kind])} > said{number}" for number, kind in enumerate(kinds))
    assert len(kinds) >= 20
    state = end(host, task, f"{command}\ncat said* > tool.py; cd /tmp; cp -r .local $OLDPWD").state()
    assert {v["path"]: v["passed"] for v in state["verdicts"]} == {"exists": False, "right": False, "polite": False}


IMPORTS = """
import importlib.util, json, sys
from pathlib import Path

scores, tool = {"there": 0.0, "right": 0.0}, Path(sys.argv[1]) / "tool.py"
if tool.is_file():
    scores["there"] = 1.0
    spec = importlib.util.spec_from_file_location("tool", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scores["right"] = float(module.total() == 7)
print(json.dumps(scores))
"""


CALLS_TOOL = """
import json, sys
from pathlib import Path

scores, tool = {{"there": 0.0, "right": 0.0}}, Path(sys.argv[1]) / "tool.py"
if tool.is_file():
    scores["there"] = 1.0
    {call}
print(json.dumps(scores))
"""
CALLED = {
    "imports a file": "import importlib.machinery as m; m.SourceFileLoader('tool', str(tool)).load_module()",
    "imports a module": "sys.path.insert(0, sys.argv[1]); import tool as made",
    "executes a file": "import runpy; runpy.run_path(str(tool))",
    "executes text": "exec(tool.read_text())",
    "unpickles": "import pickle; pickle.loads(b'cbuiltins\\nexec\\n(V' + tool.read_bytes().replace(b'\\n', b';') + b'\\ntR.')",
    "compiles": "import types; types.FunctionType(compile(tool.read_text(), 'tool.py', 'exec'), globals())()",
    "interprets": "import code; code.InteractiveInterpreter().runcode(compile(tool.read_text(), 'tool.py', 'exec'))",
}
"""Kind -> what a check does with the agent's file in its own process."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLED)
def test_planted_code_gets_full_marks_only_where_the_task_is_marked(host: SandboxHost, tmp_path: Path, kind: str):
    task = as_task(make(tmp_path, check=CALLS_TOOL.format(call=CALLED[kind])), Split.TRAIN)
    planted = 'import os\nos.write(1, b\'{"there": 1, "right": 1}\')\nos._exit(0)'
    assert end(host, task, f"cat > tool.py <<'E'\n{planted}\nE").state()["metrics"]["assertion_rate"] == 1.0
    assert MARK in task.payload


def test_a_report_without_the_names_of_the_untouched_files_is_none(host: SandboxHost, tmp_path: Path):
    task = as_task(make(tmp_path, check=IMPORTS), Split.TRAIN)
    assert task.payload["checks_run_agent_code"] == "check.py imports a file (spec_from_file_location)"
    planted = "cat > tool.py <<'E'\nimport os\nprint('{}', flush=True)\nos._exit(0)\nE"
    state = end(host, task, planted.format('{"a": 1}')).state()
    assert state["metrics"]["assertion_rate"] == 0.0
    assert state["verdicts"][0]["reason"] == "the report lacks 'right'"
    assert end(host, task, "echo 'def total(): return 7' > tool.py").state()["metrics"]["assertion_rate"] == 1.0


def test_marked_tasks_are_trained_on_only_when_asked_for_and_shown_apart(tmp_path: Path, caplog):
    for number, check in enumerate((CHECK, IMPORTS, STARTS)):
        make(tmp_path / "clawgym_train", check=check, number=number)
    place = Claw(official=tmp_path)
    assert [task.id[-4:] for task in place.tasks(Split.TRAIN)] == ["0000", "0002"]
    assert "1 of 3 official training tasks are skipped" in caplog.text
    assert "clawgym_train-task_0001: check.py imports a file (spec_from_file_location)" in caplog.text
    everything = Claw(official=tmp_path, checks_run_agent_code=True).tasks(Split.TRAIN)
    shown = [place.groupings()["checks"](task) for task in everything]
    apart, own = "checks apart from the agent's code", "checks that run the agent's code"
    assert shown == [apart, own, apart]
    with pytest.raises(ConfigError, match=r"no effect without --env\.official"):
        Claw(checks_run_agent_code=True).check_options()
