"""`mlflow`: a run of an experiment, in the store that $MLFLOW_TRACKING_URI names (MLflow's own default otherwise)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onthejob.track.tracker import Row, RunInfo, Tracker
from onthejob.types import Adapter

if TYPE_CHECKING:
    from mlflow import MlflowClient

ID, SENT = "onthejob.id", "onthejob.sent"
"""Tags of a run: which of ours it is, and its newest complete iteration."""
AT_ONCE, PARAMETERS_AT_ONCE = 900, 100
"""Metrics and parameters of one request; MLflow takes 1,000 entities."""
LONGEST_NAME, LONGEST_VALUE = 250, 6000
"""Characters that MLflow takes."""


def check(what: str) -> None:
    """Nothing is refused: an experiment's name is free."""


def tracker(what: str) -> Tracker:
    """The tracker of experiment `what`, default $MLFLOW_EXPERIMENT_NAME or `onthejob`."""
    return Mlflow(what or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "onthejob")


class Mlflow(Tracker):
    """One run of an experiment."""

    def __init__(self, experiment: str) -> None:
        self._experiment = experiment
        self._doubtful = False

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Find the run by its tag, or create it with the configuration as parameters."""
        from mlflow import MlflowClient

        self._client: MlflowClient = MlflowClient()
        found = self._client.search_runs([self._experiment_id()], filter_string=f"tags.`{ID}` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            tags, parameters = found[0].data.tags, found[0].data.params
        else:
            created = self._client.create_run(self._experiment_id(), tags={ID: run.id}, run_name=run.name)
            self._id, tags, parameters = created.info.run_id, {}, {}
        self._configure(run.config, known=parameters)
        # Of the iteration that follows, a kill may have left a part.
        self._doubtful = bool(found)
        return int(tags[SENT]) if SENT in tags else None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = [Metric(named_for_mlflow(name), value, now, step) for name, value in values.items()]
        if self._doubtful:
            self._doubtful = False
            named = [metric for metric in named if not self._holds(metric.key, step)]
        for part in _parts(named, AT_ONCE):
            self._client.log_batch(self._id, metrics=part, synchronous=True)
        self._newest = step

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        table = {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}
        self._client.log_dict(self._id, table, f"transcripts/{step:06d}.json")

    def adapter(self, step: int, adapter: Adapter) -> None:
        self._client.log_artifacts(self._id, str(adapter.path), artifact_path=f"adapters/{adapter.name}")

    def flush(self) -> None:
        """Note in the run itself what it holds."""
        self._client.set_tag(self._id, SENT, self._newest, synchronous=True)

    def finish(self) -> None:
        self._client.set_terminated(self._id, "FINISHED")

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        if (known := self._client.get_experiment_by_name(self._experiment)) is not None:
            return known.experiment_id
        try:
            return self._client.create_experiment(self._experiment)
        except MlflowException:
            # Another process has created it meanwhile.
            if (known := self._client.get_experiment_by_name(self._experiment)) is not None:
                return known.experiment_id
            raise

    def _configure(self, config: Mapping[str, Any], *, known: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        given = {named_for_mlflow(name): text[:LONGEST_VALUE] for name, text in _flat(config)}
        new = [Param(name, text) for name, text in given.items() if name not in known]
        for part in _parts(new, PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=part, synchronous=True)

    def _holds(self, name: str, step: int) -> bool:
        return any(metric.step == step for metric in self._client.get_metric_history(self._id, name))


def named_for_mlflow(name: str) -> str:
    """`name` with `_` in place of characters that MLflow refuses; a long one ends in a hash."""
    plain = re.sub(r"[^\w\-./ :]", "_", name, flags=re.ASCII)
    if len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Options by their dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
