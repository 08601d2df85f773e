"""Attacks on what is outside: files, processes, secrets, the network, the kernel."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from onthejob.envs.claw.sandbox.arguments import INTERPRETER
from onthejob.envs.claw.sandbox.faults.bench import SECRET, Bench, check, own_pid
from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.programs import PYTHONS

WRITABLE = {"/work", "/tmp", "/dev/shm"}
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/console")


def kill_everyone(bench: Bench) -> None:
    """2: `kill -9 -1` reaches only the command's own processes."""
    result = bench.run(bench.open(), "sleep 300 & kill -9 -1; echo survived")
    check(result.stdout == b"survived\n", f"the shell did not continue: {result}")


def stop_pid1(bench: Bench) -> None:
    """3: process 1 cannot be stopped, interrupted or killed."""
    command = "for s in STOP INT TERM HUP USR1 SEGV TSTP KILL; do kill -$s 1; kill -$s $PPID; done; echo survived"
    result = bench.run(bench.open(), command)
    check(b"survived" in result.stdout, f"the shell did not continue: {result}")


def read_outside(bench: Bench) -> None:
    """4: a file outside does not exist inside."""
    command = f"cat {bench.secret}; cat /etc/shadow; ls /root /home /var /sys /proc/1/root/usr; ls -A /mnt"
    result = bench.run(bench.open(), command)
    check(SECRET.encode() not in result.stdout, "a file outside was read")
    check(result.stdout == b"", f"something outside was listed: {result.stdout!r}")


LOOK = """
import os, sys
sys.path += PLACES
try:
    import onthejob.errors
    print("imported", onthejob.__path__)
except ImportError:
    pass
for place in HIDDEN:
    if os.path.isdir(place) and os.listdir(place):
        print("listed", place)
print("done")
"""


def read_package(bench: Bench) -> None:
    """78: nothing of the package that runs the sandbox is found inside: no task, no gold command, no data of tests."""
    package = Path(__file__).resolve().parents[4]
    hidden = [*hidden_folders(), str(package), str(package / "envs/claw")]
    # An empty folder of the package's name may be seen where it lies, and is a module with nothing in it.
    code = LOOK.replace("PLACES", repr([*hidden, str(package.parent)])).replace("HIDDEN", repr(hidden))
    sandbox = bench.open({"look.py": code.encode()})
    for python in dict.fromkeys(("python3", *(name for name in PYTHONS if Path(name).is_file()))):
        result = bench.run(sandbox, f'code=$(cat look.py); cd /; {python} -c "$code"')
        check(result.stdout == b"done\n", f"{python}: {result}")
    found = bench.run(sandbox, "find /etc /lib* /opt /run /usr -type d -name 'onthejob*' -not -empty 2> /dev/null")
    check(found.stdout == b"", f"found: {found.stdout!r}")


def write_outside(bench: Bench) -> None:
    """5: a file outside cannot be changed or deleted."""
    name = f"escaped-{own_pid()}"
    command = f"rm -f {bench.secret}; mkdir -p {bench.secret.parent}; echo x > {bench.secret}"
    bench.run(bench.open(), f"{command}; touch /usr/{name} /etc/{name} /{name}")
    # `after` compares the file's content.
    check(not any((Path(folder) / name).exists() for folder in ("/usr", "/etc", "/")), "a file was made outside")


def climb_out(bench: Bench) -> None:
    """6: nothing lies above the root."""
    up = "../" * 40
    result = bench.run(bench.open(), f"cat {up}{str(bench.secret)[1:]}; cd {up}; pwd; ls -d root home")
    check(result.stdout == b"/\n", f"the path led out: {result.stdout!r}")


def steal_environment(bench: Bench) -> None:
    """7: no variable of this process is visible inside."""
    os.environ["ONTHEJOB_FAULT_SECRET"] = SECRET
    try:
        result = bench.run(bench.open(), "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'")
    finally:
        del os.environ["ONTHEJOB_FAULT_SECRET"]
    check(SECRET.encode() not in result.stdout, "a secret of the environment was read")
    names = {line.partition("=")[0] for line in bench.run(bench.open(), "env").stdout.decode().split()}
    check(
        names <= {"PATH", "PYTHONPATH", "HOME", "PWD", "USER", "LANG", "TERM", "TZ", "SHLVL", "_"},
        f"unexpected variables: {names}",
    )


def connect_outside(bench: Bench) -> None:
    """8: neither a port nor an abstract socket outside can be reached."""
    name = f"onthejob-fault-{own_pid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        code = f"""
import socket
for family, address in ((2, ("127.0.0.1", {bench.port})), (1, "\\0{name}"), (2, ("1.1.1.1", 53))):
    try:
        socket.socket(family, 1).connect(address)
        print("connected", address)
    except OSError as error:
        print("refused")
"""
        result = bench.python_run(bench.open(), code)
    check(result.stdout == b"refused\n" * 3, f"connected: {result}")


def find_harness(bench: Bench) -> None:
    """9: processes outside are invisible and cannot be signalled."""
    command = f"kill -9 {bench.canary}; kill -9 {own_pid()}; ls /proc | grep -c '^[0-9]*$'"
    result = bench.run(bench.open(), command)
    # process 1, bash, ls and grep, and bash's subshells for a moment
    check(0 < int(result.stdout) <= 6, f"{result.stdout!r} processes are visible")


def delete_system(bench: Bench) -> None:
    """32: `rm -rf /` finds nothing that it may remove; tried only when every mount is proven read-only."""
    sandbox = bench.open({"mine.txt": b"x"})
    for line in bench.run(sandbox, "cat /proc/self/mountinfo").stdout.decode().splitlines():
        place, options = line.split(" ")[4:6]
        check("ro" in options.split(",") or place in WRITABLE or place in DEVICES, f"{place} is mounted {options}")
    probe = bench.run(sandbox, "for d in / /usr /usr/bin /etc /run /run/pid1 /dev /proc; do touch $d/x && echo $d; done")
    check(probe.stdout == b"", f"writable: {probe.stdout!r}")
    # It asks the kernel for every file below /usr; how long that takes is not the point.
    sandbox.run("rm -rf --no-preserve-root /work /tmp /dev /etc; rm -rf --no-preserve-root / 2> /dev/null", timeout_s=5)
    check(bench.run(sandbox, "ls /usr/bin/env && ls -A /work").stdout == b"/usr/bin/env\n", "the system was changed")


def use_privileges(bench: Bench) -> None:
    """33: no device, mount, root change or namespace."""
    attempts = ("mknod x c 1 3", "mount -t tmpfs t /tmp", "chroot / true")
    attempts += ("unshare -U true", "unshare -r true", "unshare -m true")
    attempts += ("mount -o remount,rw /usr", "umount /work", "setpriv --reuid 0 true", "chown 0:0 .", "hostname x", "dmesg")
    attempts += ("nsenter -t 1 -m true", "date -s 2001-01-01", "renice -20 $$", "ip link set lo down")
    sandbox = bench.open()
    for attempt in attempts:
        check(bench.run(sandbox, attempt).exit_code != 0, f"{attempt!r} succeeded")
    result = bench.python_run(sandbox, CALLS)
    check(result.stdout == b"done\n", f"a system call was allowed: {result}")


CALLS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": {"mount": 165, "unshare": 272, "clone3": 435, "bpf": 321, "io_uring_setup": 425, "keyctl": 250,
                      "userfaultfd": 323, "ptrace": 101, "perf_event_open": 298, "add_key": 248, "open_by_handle_at": 304,
                      "process_vm_readv": 310, "pidfd_getfd": 438, "fsopen": 430, "kexec_load": 246, "setns": 308},
           "aarch64": {"mount": 40, "unshare": 97, "clone3": 435, "bpf": 280, "io_uring_setup": 425, "keyctl": 219,
                       "userfaultfd": 282, "ptrace": 117, "perf_event_open": 241, "add_key": 217, "setns": 268}}
for name, number in numbers.get(platform.machine(), {}).items():
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    error = ctypes.get_errno()
    if result != -1 or error not in (1, 38):
        print(name, result, error)
if platform.machine() == "x86_64":
    # clone with CLONE_NEWUSER and SIGCHLD; a child must not run on
    result = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    if result != -1 or ctypes.get_errno() != 1:
        print("clone", result)
print("done")
"""


def become_root(bench: Bench) -> None:
    """34: set-user-id bits, su and sudo gain nothing."""
    command = "cp /usr/bin/id . && chmod 6755 id; ./id -u; su -c 'id -u' root; sudo -n id -u; pkexec id -u"
    result = bench.run(bench.open(), command)
    check(result.stdout == b"1000\n", f"another user: {result}")


def open_pid1(bench: Bench) -> None:
    """35: memory, descriptors and environment of process 1 are closed to everyone inside."""
    code = """
import os, ctypes
for name, mode in (("mem", os.O_RDWR), ("mem", 0), ("environ", 0), ("maps", 0), ("fd", 0), ("auxv", 0), ("exe", 0), ("cwd", 0)):
    try:
        os.open("/proc/1/" + name, mode)
        print("opened", name)
    except OSError as error:
        pass
for descriptor in range(64):
    for mode in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.open(f"/proc/1/fd/{descriptor}", mode | os.O_NONBLOCK)
            print("opened descriptor", descriptor)
        except OSError as error:
            pass
if ctypes.CDLL(None).ptrace(16, 1, 0, 0) != -1:
    print("traced")
try:
    open("/run/pid1/INTERPRETER", "rb")
    print("read the interpreter")
except PermissionError:
    pass
print("done")
"""
    result = bench.python_run(bench.open(), code.replace("INTERPRETER", INTERPRETER))
    check(result.stdout == b"done\n", f"process 1 is open: {result}")


def set_kernel(bench: Bench) -> None:
    """36: kernel settings cannot be written."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text(encoding="utf-8")
    command = f"""
for f in sys/kernel/core_pattern sys/kernel/hostname sys/vm/drop_caches sysrq-trigger self/oom_score_adj self/uid_map; do
  (printf %s '{before.strip()}' > /proc/$f) 2>/dev/null && echo $f
done; true"""
    result = bench.run(bench.open(), command)
    check(result.stdout == b"", f"written: {result.stdout!r}")
    check(pattern.read_text(encoding="utf-8") == before, "core_pattern changed")


def open_odd_sockets(bench: Bench) -> None:
    """37: no netlink, packet, crypto or hypervisor sockets."""
    code = """
import socket
for family in (16, 17, 38, 40, 21, 29, 31, 44):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            print("opened", family, kind)
        except OSError as error:
            if error.errno != 97:
                print(family, kind, error)
print("done")
"""
    result = bench.python_run(bench.open(), code)
    check(result.stdout == b"done\n", f"a socket was opened: {result}")


def spy_on_neighbour(bench: Bench) -> None:
    """38: another sandbox's files and processes are invisible."""
    first, second = bench.open({"in-work": SECRET.encode()}), bench.open()
    bench.run(first, f"for d in /tmp /dev/shm; do echo {SECRET} > $d/in-there; done")
    look = "find / -name 'in-*' -not -path '/usr/*' 2>/dev/null"
    result = bench.run(second, f"cat in-work; cd /tmp; cat in-*; cd /dev/shm; cat in-*; {look}")
    check(b"in-" not in result.stdout and SECRET.encode() not in result.stdout, f"found: {result.stdout!r}")
    spaces = "readlink /proc/self/ns/pid /proc/self/ns/ipc /proc/self/ns/net /proc/self/ns/user"
    one, two = (bench.run(sandbox, spaces).stdout.split() for sandbox in (first, second))
    check(not set(one) & set(two), "two sandboxes share a namespace")
