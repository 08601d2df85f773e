"""Attacks on sandboxes beyond the fault list of the package: on process 1, on what sandboxes share, and by planted files.

`onthejob sandbox doctor` tries them too when it runs from a checkout.
"""

from __future__ import annotations

from checks.sandbox import holding, planting, sharing
from onthejob.envs.claw.sandbox.faults.bench import Fault

ATTACKS = (
    Fault(number=65, title="files that interpreters look for", attack=planting.shadow_modules),
    Fault(number=73, title="take the output away from process 1", attack=holding.steal_output),
    Fault(number=74, title="slow process 1 down", attack=holding.slow_pid1),
    Fault(number=75, title="segments, queues, files in memory", attack=holding.kernel_objects),
    Fault(number=76, title="start the core_pattern program", attack=holding.core_dumps),
    Fault(number=77, title="thousands of queued signals", attack=holding.queued_signals),
    Fault(number=79, title="hold what sandboxes share", attack=sharing.hold_what_is_shared),
    Fault(number=80, title="watch, lease and sync what others use", attack=sharing.watch_others),
    Fault(number=81, title="system calls newer than the filter", attack=sharing.newer_calls),
    Fault(number=82, title="run before process 1", attack=sharing.run_first),
)
