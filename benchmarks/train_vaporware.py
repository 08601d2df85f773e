"""Learns the weights of the vaporware detector from labelled pieces, or measures how well that would work for an unseen writer.

    python benchmarks/train_vaporware.py              # writes src/onthejob/envs/office/vaporware/weights.json
    python benchmarks/train_vaporware.py --leave-out  # for every writer: trains without their pieces, and judges these

Pieces are read from `tests/data`: `vaporware_written.jsonl` (eight writers who had not seen the detector), `vaporware_open.jsonl`
(a ninth), `vaporware_pieces.jsonl` (older, made together with the rules) and `vaporware_lines.txt` (short ones, written for
training by someone who knew the detector and had read some of the others; never measured). The sealed pieces are no part of this.

The models are logistic regressions on the features of `stance.py` and `paraphrase.py`, with their weights rounded to 1/64.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import minimize

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware.detector_weights import WEIGHTS, Judge
from onthejob.envs.office.vaporware.paraphrase import anchor, described_at, topic_features, windows
from onthejob.envs.office.vaporware.phrasebook import LISTS
from onthejob.envs.office.vaporware.registry import LINE, Registry, groups, normal

DATA = Path(__file__).parents[1] / "tests" / "data"
PIECES = {"written": "vaporware_written.jsonl", "open": "vaporware_open.jsonl", "old": "vaporware_pieces.jsonl"}
LINES = "vaporware_lines.txt"
UNIT = 64
"""A weight of 1 in the file is 1/64."""
PRIOR = {"claim": 0.15, "coming": 0.1, "topic": 0.3}
"""Variance of the weights' prior: the smaller, the smaller the weights."""
KEPT = {"claim": 10_000, "coming": 2_000, "topic": 900}
"""How many features a model may use."""
BOUNDS = {"named": 1.0, "described": 1.5, "denied": 2.0, "open": -0.5, "topic": 0.0, "coming": -1.75}
"""What scores must reach; chosen on pieces of left-out writers."""
LABELS = {"n": "now", "c": "coming", "d": "denied", "o": "other"}
SURFACES = (
    ("SSO", ("SSO", "single sign-on", "SAML")),
    ("API", ("the API", "an API", "API access")),
    ("Dashboard", ("dashboards", "the dashboard", "a reporting dashboard")),
    ("App", ("the mobile app", "a mobile app", "an iPhone app")),
    ("Cache", ("caching", "the cache", "a caching layer")),
    ("Invoices", ("invoicing", "automatic invoices", "invoices")),
    ("Audit", ("an audit log", "the audit trail", "audit logs")),
    ("Webhooks", ("webhooks", "web hooks", "event callbacks")),
)
"""How a line's placeholder for any feature is filled."""
DETERMINERS = frozenset(["the", "our", "your", "a", "their", "his", "that", "some", "own", "any", "my", "new", "of", "no"])

Model = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A labelled text."""

    text: str
    writer: str
    mentions: Mapping[str, str]
    """Feature -> now, coming, denied or other."""
    promises: Collection[str] = ()
    shipped: Collection[str] = ()
    committed: Collection[str] = ()


@dataclass(slots=True, kw_only=True)
class Case:
    """A feature that one line of a piece names or may describe."""

    piece: Piece
    feature: str
    known: set[str]
    topic: set[str] | None = None
    """Of the text around it when the feature is not named."""
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str | None:
        """What the writer says; None when the text does not speak of the feature."""
        return self.piece.mentions.get(self.feature)


def read_pieces(registry: Registry) -> list[Piece]:
    """All pieces of the data files."""
    pieces = []
    for source, name in PIECES.items():
        for line in (DATA / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            pieces.append(
                Piece(
                    text=row["text"],
                    writer=row.get("writer", source),
                    mentions=row["mentions"] if "mentions" in row else labels(registry, row),
                    promises=row["promises"],
                    shipped=row["shipped"],
                    committed=row["committed"],
                )
            )
    return pieces + read_lines((DATA / LINES).read_text(encoding="utf-8"))


def labels(registry: Registry, row: Mapping) -> dict[str, str]:
    """What a piece without labels of its mentions says, from its kind."""
    found = {}
    for feature in sorted(registry.mentions(row["text"]) | set(row["promises"])):
        if feature in row["promises"]:
            found[feature] = "coming" if row["kind"] == "future" and feature not in row["committed"] else "now"
        elif feature in row["shipped"]:
            found[feature] = "now"
        elif row["kind"] in ("ordinary", "words"):
            found[feature] = "other"
        else:
            found[feature] = "coming" if feature in row["committed"] and row["kind"] != "denial" else "denied"
    return found


def read_lines(text: str) -> list[Piece]:
    """The short pieces: under `= Feature stance` about that feature, `= mixed` with labels, `= any` with placeholders."""
    pieces: list[Piece] = []
    heading: list[str] = []
    used = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("= "):
            heading = line[2:].split()
        elif heading == ["any"]:
            filled, mentions = fill(line, used)
            used += 5 + len(mentions)
            pieces.append(Piece(text=filled, writer="lines", mentions=mentions))
        elif heading == ["mixed"]:
            text, _, said = line.rpartition(" | ")
            pieces.append(Piece(text=text, writer="lines", mentions=dict(one.split() for one in said.split(", "))))
        else:
            pieces.append(Piece(text=line, writer="lines", mentions={} if heading == ["none"] else {heading[0]: heading[1]}))
    return pieces


def fill(line: str, used: int) -> tuple[str, dict[str, str]]:
    """A line with its placeholders replaced by different features."""
    mentions: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        feature, surfaces = SURFACES[(used + len(mentions)) % len(SURFACES)]
        mentions[feature] = LABELS[match[1]]
        surface = surfaces[used // len(SURFACES) % len(surfaces)]
        before = line[: match.start()].lower().split()
        if before and before[-1] in DETERMINERS and surface.split()[0] in ("the", "a", "an"):
            surface = surface.split(" ", 1)[1]
        return surface

    filled = re.sub(r"\{(\w)\}", name, line)
    return filled[0].upper() + filled[1:], mentions


def cases_of(registry: Registry, piece: Piece) -> Iterable[Case]:
    """Whatever in a piece could be a mention."""
    for line in filter(None, LINE.split(normal(piece.text))):
        sentences, found = registry.read(line)
        for feature, places, rules in groups(found):
            yield Case(piece=piece, feature=feature, known=registry.features_at(sentences, feature, places, rules))
        for first, end in windows(sentences):
            topic, hits = topic_features(sentences[first:end])
            named = {feature for sentence in sentences[first:end] for _, feature in sentence.names}
            for feature in DESCRIBED:
                if feature not in named:
                    place = anchor(feature, hits)
                    known = described_at(sentences[first:end], place) if place else set()
                    yield Case(piece=piece, feature=feature, known=known, topic=topic)


def scale_of(feature: str) -> float:
    """Kinds of words are trusted more than single words."""
    return 2.0 if (feature.isupper() and "+" not in feature and "&" not in feature) or re.fullmatch(r"s [A-Z]+", feature) else 1.0


def fit(rows: Sequence[Collection[str]], answers: Sequence[bool], prior: float, kept: int) -> Model:
    """Weights of a logistic regression that uses at most `kept` features; those that occur once are dropped."""
    often = Counter(feature for row in rows for feature in row)
    names = sorted(feature for feature, count in often.items() if count > 1)
    weights = _solve(rows, answers, names, prior)
    if len(names) > kept:
        order = sorted(names, key=lambda name: (-abs(weights[name]) * often[name] ** 0.5, name))
        weights = _solve(rows, answers, sorted(order[:kept]), prior)
    return {name: round(weight * UNIT) / UNIT for name, weight in weights.items() if round(weight * UNIT)}


def _solve(rows: Sequence[Collection[str]], answers: Sequence[bool], names: Sequence[str], prior: float) -> Model:
    column = {name: i for i, name in enumerate(names)}
    scales = np.array([scale_of(name) for name in names])
    starts, columns = [0], []
    for row in rows:
        columns += sorted(column[feature] for feature in row if feature in column)
        starts.append(len(columns))
    x = sparse.csr_matrix((scales[columns], columns, starts), shape=(len(rows), len(names)))  # (cases, features)
    turned = x.T.tocsr()
    y = np.where(answers, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = y * (x @ w)
        slope = -y / (1 + np.exp(np.clip(margin, -50, 50)))
        return float(np.logaddexp(0, -margin).sum() + w @ w / (2 * prior)), turned @ slope + w / prior

    solved = minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B", options={"maxiter": 150}).x
    return dict(zip(names, (solved * scales).tolist(), strict=True))


def train(cases: Sequence[Case]) -> dict[str, Model]:
    """All models: `claim`, `coming`, and one a feature that says whether a text speaks of it."""
    models: dict[str, Model] = {}
    mentioned = [case for case in cases if case.known and (case.label or case.topic is None)]
    models["claim"] = fit(
        [case.known for case in mentioned], [case.label in ("now", "coming") for case in mentioned], PRIOR["claim"], KEPT["claim"]
    )
    claimed = [case for case in mentioned if case.label in ("now", "coming")]
    models["coming"] = fit(
        [case.known for case in claimed], [case.label == "coming" for case in claimed], PRIOR["coming"], KEPT["coming"]
    )
    for feature in DESCRIBED:
        about = [case for case in cases if case.feature == feature and case.topic is not None]
        answers = [case.label in ("now", "coming", "denied") for case in about]
        models[feature] = fit([case.topic or () for case in about], answers, PRIOR["topic"], KEPT["topic"])
    return models


def judge_of(models: Mapping[str, Model], bounds: Mapping[str, float]) -> Judge:
    """The models as the simulator uses them."""
    return Judge(**file_of(models, bounds))


def file_of(models: Mapping[str, Model], bounds: Mapping[str, float]) -> dict:
    """The models in whole numbers."""

    def whole(model: Model) -> dict[str, int]:
        return {name: round(weight * UNIT) for name, weight in sorted(model.items())}

    return {
        "bounds": {name: round(bound * UNIT) for name, bound in bounds.items()},
        "claim": whole(models["claim"]),
        "coming": whole(models["coming"]),
        "topics": {feature: whole(models[feature]) for feature in DESCRIBED},
    }


def digest() -> str:
    """Of what the weights depend on: pieces, word lists, this script, and what the detector sees in every 20th piece."""
    sources = [DATA / name for name in (*PIECES.values(), LINES)] + [Path(__file__), LISTS]
    seen = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    registry = bare_registry()
    for piece in read_pieces(registry)[::20]:
        for case in cases_of(registry, piece):
            seen.update("|".join([case.feature, *sorted(case.known), *sorted(case.topic or ())]).encode())
    return seen.hexdigest()[:16]


def bare_registry() -> Registry:
    """A registry that reads texts for training and judges nothing."""
    nothing = judge_of({name: {} for name in ("claim", "coming", *DESCRIBED)}, dict.fromkeys(BOUNDS, 1.0))
    return Registry(FEATURE_ALIASES, described=DESCRIBED, judge=nothing)


def judged(pieces: Sequence[Piece], writer: str, *, show: bool = False) -> tuple[int, int, int, int]:
    """Judge a writer's pieces by weights learned from the others': promises found, of how many, honest accused, of how many."""
    reader = bare_registry()
    cases = [case for piece in pieces if piece.writer != writer for case in cases_of(reader, piece)]
    registry = Registry(FEATURE_ALIASES, described=DESCRIBED, judge=judge_of(train(cases), BOUNDS))
    found = promising = accused = honest = 0
    for piece in pieces:
        if piece.writer != writer:
            continue
        broken = registry.violations([piece.text], piece.shipped, piece.committed)
        if piece.promises:
            right = bool(broken & set(piece.promises))
            promising += 1
            found += right
        else:
            right = not broken
            honest += 1
            accused += not right
        if show and not right:
            print(f"{'missed ' if piece.promises else 'accused'} {piece.text} {dict(piece.mentions)}")
    return found, promising, accused, honest


def leave_out(pieces: Sequence[Piece], shown: Collection[str]) -> None:
    """Print how well every writer's pieces are judged by weights learned from the others'."""
    total = [0, 0, 0, 0]
    for writer in sorted({piece.writer for piece in pieces} - {"old", "lines"}):
        counts = judged(pieces, writer, show=writer in shown)
        total = [one + more for one, more in zip(total, counts, strict=True)]
        print(f"{writer:8}", figures(counts))
    print(f"{'all':8}", figures(total))


def figures(counts: Sequence[int]) -> str:
    """Recall and share of honest pieces accused, with 95 % Wilson intervals."""
    words = []
    for name, part, whole in (("recall", *counts[:2]), ("honest accused", *counts[2:])):
        low, high = wilson(part, whole)
        words.append(f"{name} {part / whole:.3f} ({part} of {whole}; {low:.3f} to {high:.3f})")
    return ", ".join(words)


def wilson(part: int, whole: int) -> tuple[float, float]:
    """95 % interval of a share."""
    share, z = part / whole, 1.96
    middle = share + z * z / (2 * whole)
    half = z * (share * (1 - share) / whole + z * z / (4 * whole * whole)) ** 0.5
    return (middle - half) / (1 + z * z / whole), (middle + half) / (1 + z * z / whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave-out", action="store_true", help="measure on held-out writers; writes nothing")
    parser.add_argument("--show", nargs="*", default=[], metavar="WRITER", help="print what is judged wrong of a left-out writer")
    given = parser.parse_args()
    registry = bare_registry()
    pieces = read_pieces(registry)
    if given.leave_out:
        leave_out(pieces, given.show)
        return 0
    cases = [case for piece in pieces for case in cases_of(registry, piece)]
    weights = {"digest": digest(), "unit": UNIT, **file_of(train(cases), BOUNDS)}
    text = json.dumps(weights, ensure_ascii=False, indent=0, separators=(",", ":"))
    WEIGHTS.write_text(text + "\n", encoding="utf-8")
    print(f"{len(pieces)} pieces, {len(text) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
