"""Where an agent's commands run: one disposable sandbox per episode, bubblewrap with our own pid 1 inside.

    with open_host() as host:                         # once per process; probes, and refuses when it cannot isolate
        with host.open({"notes/a.txt": b"hello"}) as sandbox:
            result = sandbox.run("cat notes/a.txt", timeout_s=10.0)
            root = sandbox.collect()                  # kills everything inside; the grader reads below `root`

A host and its sandboxes may be used from several threads; one sandbox runs one command at a time.
"""

from onthejob.envs.claw.sandbox.opening import open_host
from onthejob.envs.claw.sandbox.sandbox_interface import CommandResult, HostReport, Layer, Limits, Sandbox, SandboxHost
from onthejob.errors import SandboxError

__all__ = ["CommandResult", "HostReport", "Layer", "Limits", "Sandbox", "SandboxError", "SandboxHost", "open_host"]
