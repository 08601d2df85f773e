"""The viewer's server: the same frames for what is happening and for what was recorded. Imports FastAPI, so nothing else does."""
