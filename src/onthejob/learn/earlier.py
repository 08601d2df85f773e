"""Settings of updates that earlier versions named otherwise: files, records and checkpoints have them."""

from __future__ import annotations

from collections.abc import Mapping

MOVED: Mapping[str, str] = {"learner.advantage": "advantage"}
"""Table of settings -> its name now, as on the command line of `train`."""
SAME: Mapping[tuple[str, str], str] = {("learner.loss.loss", "bnpo"): "dapo"}
"""A setting and a value that it no longer takes -> the value with the same numbers."""
