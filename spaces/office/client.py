"""The client for this server; needs `pip install 'onthejob[openenv]'`."""

from onthejob.compat.openenv import SeatAction, SeatObservation, SeatState
from onthejob.compat.openenv_client import SeatClient

__all__ = ["SeatAction", "SeatClient", "SeatObservation", "SeatState"]
