"""Trackers and spreadsheets: they read the record of a run from outside the loop, which cannot notice whether they fail."""

from onthejob.track.child import Trackers, start_trackers
from onthejob.track.place import check_trackers
from onthejob.track.tracker import Row, RunInfo, Tracker

__all__ = ["Row", "RunInfo", "Tracker", "Trackers", "check_trackers", "start_trackers"]
