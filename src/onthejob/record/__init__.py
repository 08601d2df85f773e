"""What happened: the run store, its checkpoints and its exports. Imports neither torch nor pyarrow until they are used."""

from onthejob.record.check import RunVerdict, check_run
from onthejob.record.checksums import Damage
from onthejob.record.curves import Series, series
from onthejob.record.export import export
from onthejob.record.from_rows import Event, Live, Metric, RecordedEpisode
from onthejob.record.listing import RunDetails, RunSummary, list_runs, show
from onthejob.record.store import Run

__all__ = [
    "Damage",
    "Event",
    "Live",
    "Metric",
    "RecordedEpisode",
    "Run",
    "RunDetails",
    "RunSummary",
    "RunVerdict",
    "Series",
    "check_run",
    "export",
    "list_runs",
    "series",
    "show",
]
