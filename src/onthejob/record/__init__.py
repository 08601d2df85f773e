"""What happened: the run store, its checkpoints and its exports. Imports neither torch nor pyarrow until they are used."""

from onthejob.record.check import Verdict, check_run
from onthejob.record.checksums import Damage
from onthejob.record.curves import Series, series
from onthejob.record.export import export
from onthejob.record.from_rows import Episode, Event, Live, Metric
from onthejob.record.listing import RunDetails, RunSummary, list_runs, show
from onthejob.record.store import Run

__all__ = [
    "Damage",
    "Episode",
    "Event",
    "Live",
    "Metric",
    "Run",
    "RunDetails",
    "RunSummary",
    "Series",
    "Verdict",
    "check_run",
    "export",
    "list_runs",
    "series",
    "show",
]
