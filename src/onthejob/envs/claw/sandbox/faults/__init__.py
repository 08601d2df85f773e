"""The fault list: attacks on what isolates and limits commands on this machine, each tried for real.

Run by `onthejob sandbox doctor` and by the tests. What needs a limit that is not proven active is not tried, and says so. Further
attacks, on what is the same on every machine, are in `checks/sandbox`, which only a checkout has.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from onthejob.checkout import checks_folder, from_checks
from onthejob.envs.claw.sandbox.faults import escapes, resources
from onthejob.envs.claw.sandbox.faults.bench import Bench, Fault, NotHeld, NotTried
from onthejob.envs.claw.sandbox.host import BwrapHost

__all__ = ["FAULTS", "Fault", "Outcome", "all_faults", "try_one"]

FAULTS = (
    Fault(number=1, title="fork bomb", attack=resources.fork_bomb),
    Fault(number=2, title="kill -9 -1", attack=escapes.kill_everyone),
    Fault(number=3, title="stop or kill process 1", attack=escapes.stop_pid1),
    Fault(number=4, title="read a file outside", attack=escapes.read_outside),
    Fault(number=5, title="write or delete a file outside", attack=escapes.write_outside),
    Fault(number=6, title="climb out with ..", attack=escapes.climb_out),
    Fault(number=7, title="secrets of the environment", attack=escapes.steal_environment),
    Fault(number=8, title="connect to this machine", attack=escapes.connect_outside),
    Fault(number=9, title="see or kill a process outside", attack=escapes.find_harness),
    Fault(number=10, title="fill the workspace", attack=resources.fill_workspace),
    Fault(number=11, title="thousands of files", attack=resources.many_files),
    Fault(number=12, title="fill /tmp and /dev/shm", attack=resources.fill_tmp),
    Fault(number=13, title="900 MB of memory", attack=resources.much_memory),
    Fault(number=14, title="endless loop", attack=resources.spin),
    Fault(number=15, title="timeout with grandchildren", attack=resources.grandchildren),
    Fault(number=16, title="daemon", attack=resources.daemon),
    Fault(number=32, title="rm -rf /", attack=escapes.delete_system),
    Fault(number=33, title="mknod, mount, chroot, unshare", attack=escapes.use_privileges),
    Fault(number=34, title="setuid copy, su, sudo", attack=escapes.become_root),
    Fault(number=35, title="memory and descriptors of process 1", attack=escapes.open_pid1),
    Fault(number=36, title="kernel settings", attack=escapes.set_kernel),
    Fault(number=37, title="vsock, netlink, packet sockets", attack=escapes.open_odd_sockets),
    Fault(number=38, title="another sandbox's files", attack=escapes.spy_on_neighbour),
    Fault(number=61, title="nothing left to write on", attack=resources.all_full),
    Fault(number=62, title="set the clock", attack=resources.set_clock),
    Fault(number=78, title="read the package and its tasks", attack=escapes.read_package),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one fault."""

    number: int
    title: str
    verdict: str
    """`held`, `FAILED` or `not tried`."""
    detail: str
    seconds: float


def try_one(host: BwrapHost, fault: Fault) -> Outcome:
    """Attack once.

    Any exception counts as a failure: a fault that cannot be checked is not held.
    """
    start = time.monotonic()
    verdict, detail = "held", ""
    try:
        with Bench(host) as bench:
            fault.attack(bench)
            bench.after()
    except NotTried as reason:
        verdict, detail = "not tried", str(reason)
    except NotHeld as reason:
        verdict, detail = "FAILED", str(reason)
    except Exception as error:
        verdict, detail = "FAILED", f"{type(error).__name__}: {error}"
    return Outcome(number=fault.number, title=fault.title, verdict=verdict, detail=detail, seconds=time.monotonic() - start)


def all_faults() -> list[Fault]:
    """`FAULTS`, and in a checkout the attacks of `checks/sandbox` too, by number."""
    more = from_checks("sandbox", what="attacks").ATTACKS if checks_folder() is not None else ()
    return sorted([*FAULTS, *more], key=lambda fault: fault.number)
