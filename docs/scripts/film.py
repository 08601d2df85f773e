"""The README's animation: a recorded episode of the kept team, as the viewer's export shows it.

    make viewer && python docs/scripts/film.py docs/images/office.webp [EPISODE.html]

Without EPISODE.html the kept team plays the first two days of one: scenario `viral`, development seed 1001, greedily. Needs node,
`viewer/node_modules` and Chromium. The pictures are the viewer's own; only their size and the encoding are chosen here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
FIRST, SECONDS, FPS, SPEED = 0, 12, 6, 2
"""The film's first turn, its length, its pictures per second, and the turns per second of the page."""
TURNS = FIRST + SECONDS * SPEED
"""Turns that have to be played."""
WIDTH, QUALITY = 1000, 60
"""Width in pixels and quality of the WebP."""


def record(path: Path) -> None:
    """Let the kept team play an episode in a viewer, and write the viewer's export as soon as it has enough turns."""
    words = [sys.executable, "-m", "onthejob", "view", "--policy", "adapters/office", "--no-open", "--port", "0"]
    # From the repository's root, so that the pages show the adapters by this name.
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert server.stdout is not None
        address, token = server.stdout.readline().strip().split("/#token=")
        asked = {"scenario": "viral", "seed": 1_001, "days": 30, "pace_s": 0, "playing": True}
        headers = {"x-onthejob-token": token, "content-type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{address}/api/reset", json.dumps(asked).encode(), headers)).close()
        while json.load(urllib.request.urlopen(f"{address}/api/config"))["worlds"][0]["length"] <= TURNS:
            time.sleep(1)
        path.write_bytes(urllib.request.urlopen(f"{address}/api/export").read())
    finally:
        server.terminate()
        server.wait(timeout=60)


def film(episode: Path, target: Path) -> None:
    """Take the pictures of the episode and write them as one animated WebP."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(value) for value in (episode, folder, FIRST, SECONDS, FPS, SPEED)]
        subprocess.run(["node", str(ROOT / "viewer/tests/browser/film.mjs"), *words], check=True)
        pictures = [Image.open(path).convert("RGB") for path in sorted(Path(folder).glob("[0-9]*.png"))]
        size = (WIDTH, round(WIDTH * pictures[0].height / pictures[0].width))
        small = [picture.resize(size, Image.Resampling.LANCZOS) for picture in pictures]
        small[0].save(
            target, save_all=True, append_images=small[1:], duration=round(1000 / FPS), loop=0, quality=QUALITY, method=6
        )
    print(f"{target}: {len(small)} pictures, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    target, *given = map(Path, sys.argv[1:])
    episode = given[0] if given else target.with_suffix(".html")
    if not given:
        record(episode)
    film(episode.resolve(), target)
