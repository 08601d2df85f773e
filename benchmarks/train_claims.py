"""Trains the reader of claims (`onthejob.models.claims`): the embedded model with a LoRA adapter, on every labelled piece.

    python benchmarks/train_claims.py --left-out w14 [--epochs 3] [--rank 32] [--rate 1e-3] [--threads 2]
    python benchmarks/train_claims.py --left-out none --keep adapters/claims

The pieces of the held-out writer are judged at several bounds, next to the shipped linear weights on the same pieces; with `none`
all are trained on, and the reader is only kept. Texts are read with names in odd spellings as they are usually written
(`Registry.usual`), as the registry does before it asks a reader. `--rank 0` trains all weights, which shows what rank costs; such
a reader cannot be kept.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train_vaporware import DATA, Piece, bare_registry, figures, read_pieces

from onthejob.envs.office.simulator import DESCRIBED, FEATURE_ALIASES
from onthejob.envs.office.vaporware import Registry
from onthejob.models.base_model import load_base
from onthejob.models.claims import ANSWERS, COMING, NOW, Encoded, Encoder, answers
from onthejob.models.fetch import fetch

BATCH, MANY = 2048, 4096
"""Tokens, padding included, of a training batch and of one that is only judged."""
BOUNDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Example(NamedTuple):
    """One part of a text with the answer for every feature."""

    text: Encoded
    wanted: list[int]


class Student(nn.Module):
    """What is trained."""

    def __init__(self, name: str, rank: int) -> None:
        super().__init__()
        base = load_base(fetch(name), dtype="float32")
        self._name = name
        self.digest, self.encoder = base.digest, Encoder(base.tokenizer, DESCRIBED)
        self.model: Any = base.model
        if rank:
            self.model = get_peft_model(base.model, LoraConfig(r=rank, lora_alpha=32, target_modules="all-linear"))
        else:
            self.model.requires_grad_(True)
        self.body: Any = base.model.model
        self.head = nn.Linear(base.model.config.hidden_size, len(ANSWERS))
        self._registry = Registry(FEATURE_ALIASES, described=DESCRIBED)

    def encode(self, text: str) -> list[Encoded]:
        """The parts of a text, names in odd spellings as they are usually written."""
        return self.encoder.parts(self._registry.usual(text))

    def forward(self, batch: Sequence[Encoded]) -> Tensor:
        """Logits (texts, features, answers)."""
        with torch.autocast("cpu", torch.bfloat16):
            return answers(self.body, self.head, batch)

    def keep(self, folder: Path, bound: float) -> None:
        """Save as a `ClaimReader` loads it, weights of the adapter in bfloat16."""
        self.model.save_pretrained(folder)
        weights = load_file(folder / "adapter_model.safetensors")
        save_file({name: weight.bfloat16() for name, weight in weights.items()}, folder / "adapter_model.safetensors")
        (folder / "README.md").unlink(missing_ok=True)  # PEFT writes an empty model card.
        save_file({name: weight.detach().float() for name, weight in self.head.state_dict().items()}, folder / "head.safetensors")
        meta = {"base_digest": self.digest}
        (folder / "adapter_meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        settings = {"base": self._name, "features": list(DESCRIBED), "bound": bound}
        (folder / "reader.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


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


def train(student: Student, examples: Sequence[Example], epochs: int, rate: float) -> None:
    """AdamW, linearly falling rate."""
    texts = [example.text for example in examples]
    draw = random.Random(0)
    plan = []
    for _ in range(epochs):
        epoch = batches(texts, BATCH, draw.sample(range(len(texts)), len(texts)))
        draw.shuffle(epoch)
        plan += epoch
    weights = [weight for weight in student.model.parameters() if weight.requires_grad]
    groups = [{"params": weights}, {"params": student.head.parameters()}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    student.train()
    for step, batch in enumerate(plan):
        scale = min(1.0, (step + 1) / 50) * (1.0 - step / len(plan))
        for group, top in zip(optimizer.param_groups, (rate, 1e-3), strict=True):
            group["lr"] = top * scale
        wanted = torch.tensor([examples[i].wanted for i in batch])
        logits = student([texts[i] for i in batch])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / len(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*weights, *student.head.parameters()], 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} of {len(plan)}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", file=sys.stderr)


def chances(student: Student, texts: Sequence[Encoded]) -> Tensor:
    """Probabilities (texts, features, answers)."""
    found = torch.zeros(len(texts), len(DESCRIBED), len(ANSWERS))
    student.eval()
    with torch.no_grad():
        for batch in batches(texts, MANY, range(len(texts))):
            found[batch] = student([texts[i] for i in batch]).softmax(-1)
    return found


def counts(pieces: Sequence[Piece], broken: Sequence[set[str]]) -> tuple[int, int, int, int]:
    """Promises found, of how many, honest pieces accused, of how many."""
    promising = [bool(found & set(piece.promises)) for piece, found in zip(pieces, broken, strict=True) if piece.promises]
    honest = [bool(found) for piece, found in zip(pieces, broken, strict=True) if not piece.promises]
    return sum(promising), len(promising), sum(honest), len(honest)


def chances_of(student: Student, pieces: Sequence[Piece]) -> list[Tensor]:
    """Probabilities (features, answers) of each whole piece; of several parts the strongest claim counts, as in `ClaimReader`."""
    parts = [student.encode(piece.text) for piece in pieces]
    split = chances(student, [part for found in parts for part in found]).split([len(found) for found in parts])
    return [strongest(found) for found in split]


def strongest(found: Tensor) -> Tensor:
    """(parts, features, answers) -> (features, answers)."""
    claims = found[:, :, NOW] + found[:, :, COMING]  # (parts, features)
    return found[claims.argmax(0), torch.arange(found.shape[1])]


def broken_by(piece: Piece, row: Tensor, bound: float) -> set[str]:
    """Features that a piece promises and that are not there, where a claim is likelier than `bound`."""
    found = set()
    for name, answer in zip(DESCRIBED, row, strict=True):
        planned = name in piece.committed and answer[COMING] > answer[NOW]
        if name not in piece.shipped and not planned and answer[NOW] + answer[COMING] > bound:
            found.add(name)
    return found


def wanted(mentions: Mapping[str, str]) -> list[int]:
    """Labels of a piece's mentions as numbers of `ANSWERS`."""
    return [ANSWERS.index(mentions.get(name, "none")) for name in DESCRIBED]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2-135m", help="as for `onthejob model fetch`")
    parser.add_argument("--left-out", default="w14", metavar="WRITER")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3, help="1e-4 is right for --rank 0")
    parser.add_argument("--bound", type=float, default=0.5, help="kept with the reader")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only so many pieces to train on and to judge, to try it out")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="save the reader there")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    pieces = read_pieces(bare_registry())
    rows = map(json.loads, (DATA / "vaporware_natural.jsonl").read_text(encoding="utf-8").splitlines())
    pieces += [Piece(**{name: value for name, value in row.items() if name != "kind"}) for row in rows]
    writers = {piece.writer for piece in pieces}
    if given.left_out not in writers | {"none"}:
        parser.error(f"no piece is by {given.left_out}; writers are {', '.join(sorted(writers))}; `none` holds out no writer")
    if given.keep and not given.rank:
        parser.error("--keep needs --rank 1 or more: a reader is kept as a LoRA adapter")
    judged = [piece for piece in pieces if piece.writer == given.left_out]
    others = [piece for piece in pieces if piece.writer != given.left_out]
    if given.limit:
        judged, others = (random.Random(0).sample(part, min(len(part), given.limit)) for part in (judged, others))
    if len({bool(piece.promises) for piece in judged}) == 1:
        only = "promises" if judged[0].promises else "honest pieces"
        parser.error(f"the {len(judged)} pieces by {given.left_out} are all {only}, so one of the two shares is unknown")
    student = Student(given.base, given.rank)
    # Of a long piece only its beginning is trained on; few are longer than what is read at once.
    examples = [Example(student.encode(piece.text)[0], wanted(piece.mentions)) for piece in others]
    train(student, examples, given.epochs, given.rate)
    if given.keep:
        student.keep(given.keep, given.bound)
    if not judged:
        return 0
    found = chances_of(student, judged)
    registry = Registry(FEATURE_ALIASES, described=DESCRIBED)
    linear = [set(registry.violations([piece.text], piece.shipped, piece.committed)) for piece in judged]
    print(f"{len(others)} pieces to train on, {given.left_out} held out")
    print(f"shipped detector: {figures(counts(judged, linear))}")
    for bound in BOUNDS:
        by_model = [broken_by(piece, row, bound) for piece, row in zip(judged, found, strict=True)]
        print(f"model at {bound}: {figures(counts(judged, by_model))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
