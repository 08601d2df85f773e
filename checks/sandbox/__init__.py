"""Attacks on sandboxes beyond the fault list of the package: commands that confuse, floods, persistent shells, what is shared.

`onthejob sandbox doctor` tries them too when it runs from a checkout.
"""

from __future__ import annotations

from checks.sandbox import confusing, flooding, holding, persisting, planting, sharing
from onthejob.envs.claw.sandbox.faults.bench import Fault

ATTACKS = (
    Fault(number=17, title="command in the background", attack=flooding.background),
    Fault(number=18, title="200 MB of output", attack=flooding.much_output),
    Fault(number=19, title="endless output", attack=flooding.endless_output),
    Fault(number=20, title="invalid UTF-8", attack=confusing.invalid_utf8),
    Fault(number=21, title="NUL in the output", attack=confusing.nul_output),
    Fault(number=22, title="NUL in the command", attack=confusing.nul_command),
    Fault(number=23, title="lone surrogate in the command", attack=confusing.surrogate_command),
    Fault(number=24, title="reading stdin", attack=confusing.read_stdin),
    Fault(number=25, title="programs that want a terminal", attack=confusing.want_terminal),
    Fault(number=26, title="exit, exec, kill $$, traps, closed descriptors", attack=confusing.ends),
    Fault(number=27, title="forged answers", attack=confusing.forge_frames),
    Fault(number=28, title="heredocs and unfinished syntax", attack=confusing.unfinished),
    Fault(number=29, title="no state but files", attack=confusing.stateless),
    Fault(number=30, title="remove the workspace", attack=confusing.remove_root),
    Fault(number=31, title="chmod 000 the workspace", attack=confusing.lock_root),
    Fault(number=39, title="very deep tree, odd names", attack=flooding.deep_tree),
    Fault(number=40, title="command of a megabyte", attack=confusing.long_command),
    Fault(number=59, title="sandbox killed during a command", attack=confusing.killed_sandbox),
    Fault(number=64, title="FIFO, socket, links in the workspace", attack=confusing.special_files),
    Fault(number=65, title="files that interpreters look for", attack=planting.shadow_modules),
    Fault(number=67, title="terminal escapes, template tokens", attack=confusing.terminal_codes),
    Fault(number=71, title="hundreds of orphans", attack=flooding.orphans),
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
