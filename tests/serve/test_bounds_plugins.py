"""A job may name a function of the worker's machine; the worker neither imports nor calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.loss import LossConfig
from onthejob.serve.bounds import checked_config
from onthejob.serve.messages import LEARNER_CONFIG


def test_a_training_worker_imports_nothing_that_a_job_names(tmp_path: Path):
    file, trace = tmp_path / "theirs.py", tmp_path / "trace"
    file.write_text(f"open({str(trace)!r}, 'w').close()\n\ndef f(*given):\n    return given[0]\n", encoding="utf-8")
    job = LEARNER_CONFIG.dump_python(LearnerConfig(loss=LossConfig(loss=f"{file}:f")), mode="json")
    with pytest.raises(ConfigError, match="a training worker runs no function that a job names"):
        checked_config(job)
    assert not trace.exists()
