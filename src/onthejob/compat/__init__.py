"""The workplaces behind other people's interfaces: thin, and nothing here is imported by the core.

`openenv` (a server; also of the claw), `pettingzoo` (AEC and parallel), `gymnasium` (one environment per trained role) and `trl`
need the extra of their name.
"""
