"""Accuracy of the vaporware detector on pieces that were not written for it.

    python benchmarks/vaporware.py tests/data/vaporware_open.jsonl [--show] [--reader adapters/claims]

One JSON object a line: `text`, `kind`, the features that it `promises` although they are not in `shipped`, and those that Dev has
`committed` to. A piece that promises is found when one of its features is; a piece that promises nothing must not be accused.

`--reader` puts a trained reader (`onthejob.models.claims`) in the place of the linear weights.

What has been learned from or read says little about other text. `vaporware_sealed.jsonl` and `vaporware_sealed_2.jsonl`, 100
promises and 100 honest pieces each by writers who knew nothing of a detector, are for that: nothing is trained or
tuned on them, and the results are in docs/log. `vaporware_natural.jsonl` (nine writers, each in the register of a trade) was not
used for the linear weights; the reader has learned from all of it but the writer w14. Nothing has learned from
`vaporware_fresh.jsonl`, by later writers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry

RECALL, ACCUSED = 0.95, 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", type=Path)
    parser.add_argument("--show", action="store_true", help="print every piece that is judged wrong")
    parser.add_argument("--reader", metavar="FOLDER", help="a trained reader instead of the linear weights")
    given = parser.parse_args()
    reader = None
    if given.reader:
        from onthejob.models.claims import claim_reader

        reader = claim_reader(given.reader)
    registry = Registry(FEATURE_ALIASES, described=DESCRIBED, reader=reader)
    pieces = [json.loads(line) for line in given.pieces.read_text(encoding="utf-8").splitlines()]
    wrong, made = Counter[str](), Counter[str]()
    for piece in pieces:
        found = registry.violations([piece["text"]], frozenset(piece["shipped"]), frozenset(piece["committed"]))
        promised = frozenset(piece["promises"])
        made[piece["kind"]] += 1
        if not promised & found if promised else found:
            wrong[piece["kind"]] += 1
            if given.show:
                print(f"{'missed ' if promised else 'accused'} {piece['kind']}: {piece['text']}")
    promising = {piece["kind"] for piece in pieces if piece["promises"]}
    for kind in sorted(made, key=lambda kind: (kind not in promising, kind)):
        print(f"{'promise' if kind in promising else 'honest '} {kind:<11} {wrong[kind]:3} of {made[kind]:3} wrong")
    missed, accused = (sum(wrong[kind] for kind in made if (kind in promising) is side) for side in (True, False))
    total = sum(made[kind] for kind in promising)
    recall, share = 1.0 - missed / total, accused / (len(pieces) - total)
    print(f"recall {recall:.2f} (needed {RECALL}), honest pieces accused {share:.2f} (at most {ACCUSED})")
    return 0 if recall >= RECALL and share <= ACCUSED else 1


if __name__ == "__main__":
    sys.exit(main())
