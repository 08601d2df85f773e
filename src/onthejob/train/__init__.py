"""What surrounds the loop (`onthejob.loop`): options, setup and state, where a run begins, what it records and how it ends."""

from onthejob.train.config import TrainConfig
from onthejob.train.redo_update import replay_update
from onthejob.train.reports import IterationReport, RoleReport, TrainResult
from onthejob.train.state import Evaluate, Setup

__all__ = ["Evaluate", "IterationReport", "RoleReport", "Setup", "TrainConfig", "TrainResult", "replay_update"]
