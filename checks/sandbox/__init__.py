"""Attacks on sandboxes beyond the fault list of the package: persistent shells, process 1, what sandboxes share.

`onthejob sandbox doctor` tries them too when it runs from a checkout.
"""

from __future__ import annotations

from checks.sandbox import confusing, holding, persisting, planting, sharing
from onthejob.envs.claw.sandbox.faults.bench import Fault

ATTACKS = (
    Fault(number=59, title="sandbox killed during a command", attack=confusing.killed_sandbox),
    Fault(number=64, title="FIFO, socket, links in the workspace", attack=confusing.special_files),
    Fault(number=65, title="files that interpreters look for", attack=planting.shadow_modules),
    Fault(number=67, title="terminal escapes, template tokens", attack=confusing.terminal_codes),
    Fault(number=71, title="hundreds of orphans", attack=holding.orphans),
    Fault(number=73, title="take the output away from process 1", attack=holding.steal_output),
    Fault(number=74, title="slow process 1 down", attack=holding.slow_pid1),
    Fault(number=75, title="segments, queues, files in memory", attack=holding.kernel_objects),
    Fault(number=76, title="start the core_pattern program", attack=holding.core_dumps),
    Fault(number=77, title="thousands of queued signals", attack=holding.queued_signals),
    Fault(number=79, title="hold what sandboxes share", attack=sharing.hold_what_is_shared),
    Fault(number=80, title="watch, lease and sync what others use", attack=sharing.watch_others),
    Fault(number=81, title="system calls newer than the filter", attack=sharing.newer_calls),
    Fault(number=82, title="run before process 1", attack=sharing.run_first),
    Fault(number=83, title="state of a persistent shell", attack=persisting.state_lasts),
    Fault(number=84, title="end the persistent shell", attack=persisting.shell_ends),
    Fault(number=85, title="forged ends in the persistent shell", attack=persisting.forged_ends),
    Fault(number=86, title="jobs of a persistent shell", attack=persisting.jobs_stand_still),
)
