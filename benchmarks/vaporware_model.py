"""Would the embedded language model judge promises better than the detector's linear weights? Fine-tunes it and measures.

    python benchmarks/vaporware_model.py [--left-out w14] [--epochs 2] [--rate 1e-4] [--threads 2] [--limit N]

The model reads a text, then the names of the eight features one after the other; the hidden state behind each name goes into one
linear layer with five answers (not mentioned, there now, coming, denied, something else). All weights are trained on every
labelled piece of `tests/data` but those of the writer left out, whose pieces are then judged at several bounds, beside the
shipped detector on the same pieces. Nothing is kept: this measures whether a detector of that kind would be worth its price.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from train_vaporware import DATA, Piece, bare_registry, figures, read_pieces
from transformers import AutoModel, AutoTokenizer

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry
from onthejob.models.fetch import fetch

ANSWERS = ("none", "now", "coming", "denied", "other")
NOW, COMING = 1, 2
LONGEST = 160
"""Tokens of a text that are read."""
BATCH, MANY = 2048, 4096
"""Tokens, padding included, of a training batch and of one that is only judged."""
BOUNDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Encoded(NamedTuple):
    """A text followed by the features' names."""

    ids: list[int]
    places: list[int]
    """Of the last token of each name."""
    answers: list[int]


class Reader(nn.Module):
    """The model's body with one linear layer on the hidden states of the names."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.body = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.head = nn.Linear(self.body.config.hidden_size, len(ANSWERS))
        self._question = self.tokenizer.encode("\n\nOur product:")
        self._names = [self.tokenizer.encode(f" {name}") for name in DESCRIBED]

    def encode(self, text: str, mentions: Mapping[str, str]) -> Encoded:
        """The text's tokens and the labels of its mentions."""
        ids = self.tokenizer.encode(text)[:LONGEST] + self._question
        places = []
        for name in self._names:
            ids = ids + name
            places.append(len(ids) - 1)
        answers = [ANSWERS.index(mentions[name]) if name in mentions else 0 for name in DESCRIBED]
        return Encoded(ids, places, answers)

    def forward(self, texts: Sequence[Encoded]) -> Tensor:
        """Logits (texts, features, answers)."""
        size = max(len(text.ids) for text in texts)
        ids, mask = torch.zeros(len(texts), size, dtype=torch.long), torch.zeros(len(texts), size, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)], mask[row, : len(text.ids)] = torch.tensor(text.ids), 1
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return self.head(torch.stack([hidden[row, text.places] for row, text in enumerate(texts)]).float())


def batches(texts: Sequence[Encoded], size: int, order: Sequence[int]) -> list[list[int]]:
    """Indices in batches of at most `size` tokens; of every 512 neighbours in `order` those of similar length are together."""
    found: list[list[int]] = []
    for first in range(0, len(order), 512):
        batch: list[int] = []
        for index in sorted(order[first : first + 512], key=lambda i: len(texts[i].ids)):
            if batch and len(texts[index].ids) * (len(batch) + 1) > size:
                found.append(batch)
                batch = []
            batch.append(index)
        found.append(batch)
    return found


def train(reader: Reader, texts: Sequence[Encoded], epochs: int, rate: float) -> None:
    """AdamW over all weights, linearly falling rate."""
    draw = random.Random(0)
    plan = []
    for _ in range(epochs):
        epoch = batches(texts, BATCH, draw.sample(range(len(texts)), len(texts)))
        draw.shuffle(epoch)
        plan += epoch
    groups = [{"params": reader.body.parameters()}, {"params": reader.head.parameters()}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    reader.train()
    for step, batch in enumerate(plan):
        scale = min(1.0, (step + 1) / 50) * (1.0 - step / len(plan))
        for group, top in zip(optimizer.param_groups, (rate, 1e-3), strict=True):
            group["lr"] = top * scale
        answers = torch.tensor([texts[i].answers for i in batch])
        logits = reader([texts[i] for i in batch])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum") / len(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} of {len(plan)}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", file=sys.stderr)


def chances(reader: Reader, texts: Sequence[Encoded]) -> Tensor:
    """Probabilities (texts, features, answers)."""
    found = torch.zeros(len(texts), len(DESCRIBED), len(ANSWERS))
    reader.eval()
    with torch.no_grad():
        for batch in batches(texts, MANY, range(len(texts))):
            found[batch] = reader([texts[i] for i in batch]).softmax(-1)
    return found


def counts(pieces: Sequence[Piece], broken: Sequence[set[str]]) -> tuple[int, int, int, int]:
    """Promises found, of how many, honest pieces accused, of how many."""
    promising = [bool(found & set(piece.promises)) for piece, found in zip(pieces, broken, strict=True) if piece.promises]
    honest = [bool(found) for piece, found in zip(pieces, broken, strict=True) if not piece.promises]
    return sum(promising), len(promising), sum(honest), len(honest)


def broken_by(piece: Piece, row: Tensor, bound: float) -> set[str]:
    """Features that a piece promises and that are not there, where a claim is likelier than `bound`."""
    found = set()
    for name, answer in zip(DESCRIBED, row, strict=True):
        planned = name in piece.committed and answer[COMING] > answer[NOW]
        if name not in piece.shipped and not planned and answer[NOW] + answer[COMING] > bound:
            found.add(name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left-out", default="w14", metavar="WRITER")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only so many pieces to train on and to judge, to try it out")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    pieces = read_pieces(bare_registry())
    rows = map(json.loads, (DATA / "vaporware_natural.jsonl").read_text(encoding="utf-8").splitlines())
    pieces += [Piece(**{name: value for name, value in row.items() if name != "kind"}) for row in rows]
    if given.left_out not in {piece.writer for piece in pieces}:
        parser.error(f"no piece is by {given.left_out}; writers are {', '.join(sorted({piece.writer for piece in pieces}))}")
    judged = [piece for piece in pieces if piece.writer == given.left_out]
    others = [piece for piece in pieces if piece.writer != given.left_out]
    if given.limit:
        judged, others = (random.Random(0).sample(part, given.limit) for part in (judged, others))
    reader = Reader(str(fetch()))
    train(reader, [reader.encode(piece.text, piece.mentions) for piece in others], given.epochs, given.rate)
    found = chances(reader, [reader.encode(piece.text, {}) for piece in judged])
    registry = Registry(FEATURE_ALIASES, described=DESCRIBED)
    linear = [set(registry.violations([piece.text], piece.shipped, piece.committed)) for piece in judged]
    print(f"{len(others)} pieces to train on, {given.left_out} left out")
    print(f"shipped detector: {figures(counts(judged, linear))}")
    for bound in BOUNDS:
        by_model = [broken_by(piece, row, bound) for piece, row in zip(judged, found, strict=True)]
        print(f"model at {bound}: {figures(counts(judged, by_model))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
