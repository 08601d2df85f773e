"""The viewer's pages as one file that opens from disk: it asks for nothing, and holds what a server would answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from onthejob.errors import RecordError
from onthejob.texts import encodable

PAGES = Path(__file__).parent.parent / "_viewer"
"""Where the build puts the pages; see `viewer/`."""
SINGLE_FILE = "replay.html"
PHASER = "phaser.js"
"""The library that draws the office, which a file holds only with an office."""
PLACE = '<script type="application/json" id="onthejob-episode">'
NOT_BUILT = "the viewer's pages are not built, so there is nothing to put the record into. Run `make viewer`."


def is_built(pages: Path = PAGES) -> bool:
    """Whether there are pages to write such a file with."""
    return (pages / SINGLE_FILE).is_file()


def single_file(held: Mapping[str, Any], pages: Path = PAGES) -> str:
    """The viewer as one file with these answers: pydantic objects, lists of them and plain JSON.

    Raises:
        RecordError: the pages are not built.
    """
    try:
        text = (pages / SINGLE_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(NOT_BUILT) from error
    said = json.dumps(held, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
    # In a script element only `<` could end it; JSON may write it as an escape.
    data = encodable(said).replace("<", "\\u003c")
    before, _, rest = text.partition(PLACE)
    _, closing, after = rest.partition("</script>")
    if not closing:
        raise RecordError(f"{SINGLE_FILE} has no place for a record. Build the viewer again: `make viewer`.")
    drawing = held.get("part") or (held.get("run") or {}).get("offices")
    return f"{before}{_phaser(pages) if drawing else ''}{PLACE}{data}{closing}{after}"


def _phaser(pages: Path) -> str:
    """The import map by which the pages find the library: it must stand before their script."""
    code = base64.b64encode((pages / PHASER).read_bytes()).decode("ascii")
    return f'<script type="importmap">{{"imports":{{"phaser":"data:text/javascript;base64,{code}"}}}}</script>\n    '


def _plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json")
