"""`onthejob adapters import`: make an adapter from PEFT, TRL or Unsloth usable wherever ours are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from onthejob.commands.terminal import Output, Terminal, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Check an adapter of PEFT, TRL or Unsloth and write it as a role's adapter, which `play`, `train --init` and others read.

    Plain LoRA, rsLoRA, rank_pattern and alpha_pattern are taken; other kinds are refused.
    """

    folder: tyro.conf.Positional[Path]
    """Folder with `adapter_config.json` and `adapter_model.safetensors`, e.g. a checkpoint of TRL."""
    role: str
    """Role of the adapter, e.g. sales; `agent` in the claw."""
    out: Path = Path("adapters/imported")
    """Folder of the new adapter ROLE@VERSION; names that exist are never overwritten."""
    version: int = 0
    """Number of the new adapter."""
    model: str = "smollm2-135m"
    """Base model on which it was trained, as for `model fetch`; its digest is computed and kept with the adapter."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Check, convert, write, and show the result."""
        from onthejob.learn.adapter_files import read_spec
        from onthejob.learn.adapter_import import import_adapter
        from onthejob.models.fetch import fetch

        base = fetch(self.model, progress=terminal.progress)
        made = import_adapter(self.folder, self.out, role=self.role, base=base, version=self.version)
        spec = read_spec(made.path)
        rows = [
            ("adapter", made.name),
            ("folder", str(made.path)),
            ("rank", spec.rank),
            ("alpha", spec.alpha),
            ("targets", " ".join(spec.targets)),
        ]
        terminal.result({"adapter": made, "lora": spec}, table(("", "imported"), rows))
        return 0
