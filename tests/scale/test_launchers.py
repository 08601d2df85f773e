"""The files for cluster launchers in `container/`: Ray's own schema, and a SLURM job whose programs are replaced by recorders."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CLUSTERS = ("ray-aws.yaml", "ray-gcp.yaml")


def cluster(repository: Path, name: str) -> dict[str, Any]:
    return yaml.safe_load((repository / "container" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_authenticates_and_has_no_dashboard(repository: Path, name: str):
    found = cluster(repository, name)
    assert found["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    (head,) = [line for line in found["head_start_ray_commands"] if "--head" in line]
    (worker,) = [line for line in found["worker_start_ray_commands"] if "--address" in line]
    assert head.startswith("RAY_AUTH_MODE=token ")
    assert worker.startswith("RAY_AUTH_MODE=token ")
    assert "--include-dashboard false" in head
    assert any("bubblewrap" in line for line in found["setup_commands"])
    assert found["head_node_type"] in found["available_node_types"]


@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray (make ray)")
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_fits_the_schema_of_ray(repository: Path, name: str):
    from jsonschema import ValidationError, validate

    # Not imported: Ray reads its way of authentication once, and other tests of this process set it first.
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    found = cluster(repository, name)
    validate(found, schema)
    with pytest.raises(ValidationError, match="max_wrokers"):
        validate({**found, "max_wrokers": 3}, schema)


def test_a_slurm_job_starts_ray_on_all_nodes_with_a_token_of_its_own(repository: Path, tmp_path: Path):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)

    def program(name: str, text: str) -> None:
        file = programs / name
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    program("hostname", "echo 10.1.2.3 fe80::1")
    program("srun", '"$@"')
    # What Ray does with it: everything behind -- runs on the head once all nodes are there.
    program(
        "ray", 'echo "ray $*" | head -1; cat "$RAY_AUTH_TOKEN_PATH" > token; while [ "$1" != -- ]; do shift; done; shift; "$@"'
    )
    program("onthejob", 'echo "onthejob $*"; [ "$2" != plan ] || exit ${PLAN:-0}')
    environ = {**os.environ, "SLURM_JOB_ID": "41234", "SLURM_JOB_NUM_NODES": "4"}
    words = ["bash", str(repository / "container" / "ray-slurm.sh"), "--env", "my env.py:Mine", "--iterations", "20"]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)
    where = "--scale.backend ray --scale.address 10.1.2.3:21234 --env my env.py:Mine --iterations 20"
    said = done.stdout.splitlines()
    assert said[0].startswith("ray symmetric-run --address 10.1.2.3:21234 --min-nodes 4 --include-dashboard false -- ")
    assert said[-2:] == [f"onthejob scale plan {where}", f"onthejob train {where}"]
    assert len((tmp_path / "token").read_text(encoding="ascii").strip()) == 64
    assert not list(tmp_path.glob(".ray-token-*"))
    refused = subprocess.run(
        words, cwd=tmp_path, env={**environ, "PLAN": "1"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    assert "onthejob train" not in [line for line in refused.stdout.splitlines() if line.startswith("onthejob")][-1]
    assert not list(tmp_path.glob(".ray-token-*"))
