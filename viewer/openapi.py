"""Writes the API's description, from which `npm run types` makes the TypeScript types."""

import json
from pathlib import Path

from onthejob.api.app import openapi

if __name__ == "__main__":
    target = Path(__file__).parent / "openapi.json"
    target.write_text(json.dumps(openapi(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
