"""Does a text promise a feature that does not exist? `Registry` answers; the other files are what it reads a text with.

`registry` finds names, `paraphrase` what is described without a name, `stance` what the words around say; `denial` is the rules,
`detector_weights` the learned weights that decide; `phrasebook` is the lists of words that `stance` and `paraphrase` look for.
"""

from onthejob.envs.office.vaporware.registry import Reader, Registry

__all__ = ["Reader", "Registry"]
