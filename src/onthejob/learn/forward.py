"""Log-probabilities of a packed row's scored tokens, with gradients, from any causal language model.

The model's own forward runs with two things exchanged: positions restart at every branch, and attention sees the tree. The
language-model head runs on scored positions only. Models whose attention cannot be exchanged get the same row as ordinary
padded sequences, which costs more and gives the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import PeftModel
from peft.helpers import disable_input_dtype_casting
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from onthejob.errors import ModelError
from onthejob.learn.batch import Path, Row, pack
from onthejob.learn.lora import log_logit_scale
from onthejob.learn.lora_linear import folded
from onthejob.learn.native import native_scores
from onthejob.learn.tree import attention_blocks
from onthejob.learn.tree_attention import TreeBlock, attend_tree

log = logging.getLogger(__name__)

ATTENTION = "onthejob_tree"


class Layout(StrEnum):
    """How a row is given to the model."""

    TREE = "tree"
    """Shared prefixes once, attention by blocks of the tree."""
    PADDED = "padded"
    """One right-padded sequence per path: for any model that takes a 2-D attention mask."""


class Scores(NamedTuple):
    """Of the N terms of a row."""

    logprobs: Tensor
    """Natural log-probabilities at the sampling temperature and the adapter's logit scale, fp32, differentiable.  # (N,)"""
    entropy: Tensor
    """Entropy of the distribution each token was drawn from, nats, differentiable.  # (N,)"""


def score(model: nn.Module, row: Row, *, layout: Layout = Layout.TREE, head_rows: int = 1024) -> Scores:
    """Forward one row and return the log-probability of each term.

    Compiled code does it where it can (see `learn.native`), torch elsewhere. With a bf16 base torch runs the adapters' products
    in bf16 too, compiled code in fp32; the fp32 masters get fp32 gradients, and softmax is always fp32.

    Args:
        model: A causal LM or a PEFT model around one; the active adapter is used.
        row: From `pack` or `collate`.
        layout: From `choose_layout`.
        head_rows: Head positions computed at once; with more of them logits are recomputed in the backward pass, so that their
            memory stays bounded.

    Raises:
        ModelError: The model's attention cannot do what the layout needs.
        ContractError: A token id that the model does not have.
    """
    base = _base(model)
    device = base.get_input_embeddings().weight.device
    half = torch.autocast(device.type, base.dtype) if _is_mixed(model, base) else nullcontext()
    log_scale = log_logit_scale(model)
    term_pair = _tensor(row.term_pair, device)
    if layout is Layout.TREE:
        sharpness = 1 / _tensor(row.temperatures, device)
        found = native_scores(base, row, sharpness if log_scale is None else sharpness * log_scale.exp(), at_once=head_rows)
        if found is not None:
            return Scores(found.logprobs[term_pair], found.entropy[_tensor(row.pair_head, device)][term_pair])
    with scoring(model, layout=layout), half:
        hidden = _tree_hidden(base, row, device) if layout is Layout.TREE else _padded_hidden(base, row, device)
        pair_head, pair_token = _tensor(row.pair_head, device), _tensor(row.pair_token, device)
        temperatures = None if (row.temperatures == 1).all() else _tensor(row.temperatures, device)
        scale = None if log_scale is None else log_scale.exp()
        head = base.get_output_embeddings()
        logprobs, entropy = _head(head, hidden, temperatures, scale, pair_head, pair_token, size=head_rows)
    return Scores(logprobs[term_pair], entropy[pair_head][term_pair])


@contextmanager
def scoring(model: nn.Module, *, layout: Layout = Layout.TREE) -> Iterator[None]:
    """Prepare `model` for `score`, and put everything back.

    `score` does this by itself. With gradient checkpointing parts of the forward run again during `backward()`, which must
    therefore be inside a `with scoring(...)` block of the caller; blocks may be nested.
    """
    base = _base(model)
    config = base.get_decoder().config
    former = config._attn_implementation
    with ExitStack() as stack:
        if _is_mixed(model, base):
            stack.enter_context(disable_input_dtype_casting(model))
        stack.enter_context(folded(model))
        if layout is Layout.TREE:
            AttentionInterface.register(ATTENTION, attend_tree)  # Idempotent.
            config._attn_implementation = ATTENTION
            stack.callback(setattr, config, "_attn_implementation", former)
        yield


def choose_layout(model: nn.Module) -> Layout:
    """The cheapest layout that gives the model's own log-probabilities.

    Decides by trying, which covers unforeseen architectures: sequences of random tokens with a common beginning are
    scored in both layouts and must agree on average, up to the rounding of the model's dtype.

    Raises:
        ModelError: Not a transformers model, or one that changes its logits after the head (soft-capping, scaling), so that
            scoring chosen positions only would be wrong.
    """
    base: Any = _base(model)
    if not isinstance(base, PreTrainedModel):
        raise ModelError(f"{type(base).__name__} is not a transformers causal LM; load one with AutoModelForCausalLM.")
    embeddings: Any = base.get_input_embeddings()
    vocabulary = embeddings.num_embeddings
    tokens = np.random.default_rng(0).integers(0, vocabulary, 60).tolist()
    # The first branch is long, so that wrong positions or a leak are far off in the second one.
    paths = [Path(ids=tuple(tokens[:40]), context=10), Path(ids=(*tokens[:10], *tokens[40:]), context=10)]
    (row,) = pack(paths, max_tokens=64)
    with torch.no_grad():
        _check_head(base, tokens)
        padded = score(model, row, layout=Layout.PADDED).logprobs
        try:
            tree = score(model, row, layout=Layout.TREE).logprobs
        except (ModelError, TypeError, ValueError, KeyError, AttributeError) as error:
            # Whatever a foreign attention raises when it meets our arguments means the same: it does not take them.
            log.info("%s cannot use the tree layout, padding instead: %s", type(base).__name__, error)
            return Layout.PADDED
    gap = float((tree - padded).abs().mean())
    if gap <= (0.25 if base.dtype in (torch.bfloat16, torch.float16) else 1e-3):
        return Layout.TREE
    log.info("%s differs by %.3g nats in the tree layout, padding instead", type(base).__name__, gap)
    return Layout.PADDED


def _check_head(base: Any, tokens: list[int]) -> None:
    ids = torch.tensor([tokens], device=base.get_input_embeddings().weight.device)
    logits = base(input_ids=ids, use_cache=False).logits
    hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    ours = base.get_output_embeddings()(hidden)
    if not torch.allclose(logits.float(), ours.float(), rtol=1e-2, atol=1e-2):
        raise ModelError(
            f"{type(base).__name__} gives other logits than its head on its last hidden state (by up to "
            f"{float((logits - ours).abs().max()):.3g}); models that cap or scale their logits are not supported."
        )


def _base(model: nn.Module) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _is_mixed(model: nn.Module, base: PreTrainedModel) -> bool:
    """fp32 adapters on a half-precision base: run them in the base's dtype; PEFT would cast every activation up instead."""
    return isinstance(model, PeftModel) and base.dtype in (torch.bfloat16, torch.float16)


def _tree_hidden(base: PreTrainedModel, row: Row, device: torch.device) -> Tensor:
    blocks = []
    depth = _tensor(row.tree.depth, device)
    for block in attention_blocks(row.tree):
        visible = _tensor(block.visible, device)
        # Half the minimum, so that adding a score to it cannot overflow.
        bias = torch.zeros(visible.shape, dtype=base.dtype, device=device)
        bias = bias.masked_fill(~visible, torch.finfo(base.dtype).min / 2)[None, None]
        keys = None if len(block.keys) == block.stop else _tensor(block.keys, device)
        blocks.append(TreeBlock(start=block.start, stop=block.stop, keys=keys, bias=bias, depth=depth))
    output = base.get_decoder()(
        input_ids=_tensor(row.tree.ids, device)[None],
        position_ids=depth[None],
        # A 4-D mask passes through transformers' mask code untouched; the blocks hold the real one.
        attention_mask=torch.zeros((1, 1, 1, 1), dtype=base.dtype, device=device),
        tree_blocks=blocks,
        tree_depth=int(row.tree.depth.max()) + 1,
        use_cache=False,
    )
    return output.last_hidden_state[0, _tensor(row.heads, device)]


def _padded_hidden(base: PreTrainedModel, row: Row, device: torch.device) -> Tensor:
    longest = max(len(nodes) for nodes in row.tree.paths)
    ids = torch.zeros((len(row.tree.paths), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    place = np.zeros((len(row.tree), 2), dtype=np.int64)  # Any path through a node can stand for it.
    for index, nodes in enumerate(row.tree.paths):
        ids[index, : len(nodes)] = torch.from_numpy(row.tree.ids[nodes])
        mask[index, : len(nodes)] = 1
        place[nodes] = np.stack([np.full(len(nodes), index), np.arange(len(nodes))], axis=1)
    output = base.get_decoder()(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
    heads = _tensor(place[row.heads], device)
    return output.last_hidden_state[heads[:, 0], heads[:, 1]]


def _head(
    head: nn.Module,
    hidden: Tensor,
    temperatures: Tensor | None,
    scale: Tensor | None,
    pair_head: Tensor,
    pair_token: Tensor,
    *,
    size: int,
) -> tuple[Tensor, Tensor]:
    def chunk(
        rows: Tensor, temperature: Tensor | None, scale: Tensor | None, pairs: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _PairLogprobs.apply(head(rows), temperature, scale, pairs, tokens)

    if len(hidden) <= size:
        return chunk(hidden, temperatures, scale, pair_head, pair_token)
    parts = []
    for start in range(0, len(hidden), size):
        stop = min(start + size, len(hidden))
        here = (pair_head >= start) & (pair_head < stop)  # Pairs are sorted by head, so parts concatenate in order.
        temperature = None if temperatures is None else temperatures[start:stop]
        arguments = (hidden[start:stop], temperature, scale, pair_head[here] - start, pair_token[here])
        parts.append(checkpoint(chunk, *arguments, use_reentrant=False))
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _PairLogprobs(torch.autograd.Function):
    """log softmax(scale * logits / temperature)[head, token] for chosen pairs, and each head's entropy; keeps only the logits.

    Passes over (rows, vocabulary) are what the head costs besides its product, so temperature 1 (None) is not divided by, and the
    entropy's gradient is computed only where a loss has an entropy term.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, temperature: Tensor | None, scale: Tensor | None, pair_head: Tensor, pair_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        every = _scaled(logits, temperature, scale).log_softmax(1, dtype=torch.float32)  # (R, V)
        logprobs = every[pair_head, pair_token]
        entropy = -every.exp().mul_(every).sum(dim=1)
        ctx.save_for_backward(logits, temperature, scale, pair_head, pair_token, entropy)
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, Tensor | None, None, None]:
        of_logprobs, of_entropy = grads
        if of_logprobs is None and of_entropy is None:
            return None, None, None, None, None
        logits, temperature, scale, pair_head, pair_token, entropy = ctx.saved_tensors
        gradient = _scaled(logits, temperature, scale).softmax(1, dtype=torch.float32)
        # Each gradient is p times a factor, -sum of dL/dlogprob or -(log p + H) dL/dH; chosen tokens have a part of their own.
        factor = gradient.new_zeros(len(gradient), 1)
        if of_logprobs is not None:
            factor[:, 0].index_add_(0, pair_head, of_logprobs, alpha=-1)
        if of_entropy is not None:
            factor = factor - (gradient.clamp(min=_TINY).log_() + entropy[:, None]) * of_entropy[:, None]
        gradient.mul_(factor)
        if of_logprobs is not None:
            gradient.index_put_((pair_head, pair_token), of_logprobs, accumulate=True)
        if temperature is not None:
            gradient.div_(temperature[:, None])
        of_scale = None
        if scale is not None:
            of_scale = (gradient * logits).sum() if ctx.needs_input_grad[2] else None
            gradient.mul_(scale)
        return gradient.to(logits.dtype), None, of_scale, None, None


_TINY = torch.finfo(torch.float32).tiny
"""Probabilities below have no logarithm; times themselves they are 0 anyway."""


def _scaled(logits: Tensor, temperature: Tensor | None, scale: Tensor | None) -> Tensor:
    scaled = logits if temperature is None else logits.float() / temperature[:, None]
    return scaled if scale is None else scaled.float() * scale


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
