"""Sampling on the training worker's machine: adapters go there as learner's states, prompts as ids, and sampled ids come back.

Takes the place of the sampler in the loop. A worker may be replaced while a run continues: an adapter that the new one does not
serve yet is sent again before it is asked for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import httpx
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from onthejob.errors import ConfigError, ContractError, ServeError
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE, read_log_logit_scale
from onthejob.models.chat import ChatEncoder
from onthejob.serve.messages import COMPLETIONS
from onthejob.serve.remote import GONE_S, Patience, connect, digest_of, packed, told_by
from onthejob.types import Adapter, Completion, Sampling

log = logging.getLogger(__name__)


class RemoteSampler:
    """The part of `models.sampler.Sampler` that the loop uses, on a worker with a model server."""

    def __init__(
        self,
        url: str,
        chat: ChatEncoder,
        *,
        base_digest: str,
        token: str,
        timeout_s: float = 3600.0,
        gone_s: float = GONE_S,
        wait_s: float = 5.0,
    ) -> None:
        """Connect.

        Args:
            url: of the worker, without a path.
            chat: of the same model.
            base_digest: of the base's weights; the worker must have the same.
            token: of the worker.
            timeout_s: seconds for one batch of replies.
            gone_s: seconds for which it is asked again when it is gone. What it sampled for a lost answer is not used.
            wait_s: seconds between two attempts.
        """
        self.chat = chat
        self._http = connect(url, token=token, timeout_s=timeout_s)
        self._url, self._base_digest, self._gone_s, self._wait_s = url, base_digest, gone_s, wait_s
        self._live: dict[str, Adapter] = {}
        self._digests: dict[str, str] = {}
        """Adapter -> sha256 of its weights as the worker keeps them."""

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that are live."""
        return tuple(adapter.name for adapter in self._live.values())

    def publish(self, adapter: Adapter) -> None:
        """Let an adapter go live on the worker's model server, in the place of its role's version before.

        Raises:
            ConfigError: the worker has no model server, or refuses the adapter.
            ServeError: it is gone.
        """
        tensors = load_file(adapter.path / "adapter_model.safetensors")
        log_scale = read_log_logit_scale(adapter.path)
        if log_scale is not None:
            tensors[LOG_LOGIT_SCALE] = torch.tensor(log_scale)
        state = packed({f"lora/{name}": tensor.float() for name, tensor in tensors.items()})
        digest = digest_of(state)
        body = {"role": adapter.role, "version": adapter.version, "parent": adapter.parent, "state": digest}
        done = self._ask("/hotload", body, states={digest: state})
        self._live[adapter.role] = adapter
        self._digests[adapter.name] = str(done.get("digest"))
        log.info("published %s on the worker in %.2f s", adapter.name, float(done.get("seconds", 0.0)))

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in order. As `VllmSampler.generate`: the seeds are not used.

        Raises:
            ContractError: empty prompts, or a different number of seeds.
            ServeError: the worker is gone, also after all attempts, or answers with something else.
        """
        if len(seeds) != len(prompts) or not all(prompts):
            raise ContractError(
                f"generate needs non-empty prompts and one seed for each, got {len(prompts)} and {len(seeds)} seeds."
            )
        if not prompts:
            return []
        body = {
            "base": self._base_digest,
            "adapter": adapter,
            "digest": self._digests.get(adapter) if adapter is not None else None,
            "prompts": [list(prompt) for prompt in prompts],
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_new_tokens,
        }
        answer = self._ask("/sample", body)
        try:
            replies = COMPLETIONS.validate_python(answer.get("completions"))
        except ValidationError as error:
            raise ServeError(
                f"the worker at {self._url} answered with something else than replies: {told_by(self._http, error)}"
            ) from error
        if len(replies) != len(prompts):
            raise ServeError(f"{len(prompts)} replies were asked for, {len(replies)} came back from {self._url}.")
        return replies

    def _ask(self, path: str, body: dict[str, Any], *, states: dict[str, bytes] | None = None) -> dict[str, Any]:
        """The answer to one request; what the worker misses is sent and the request repeated."""
        patience = Patience(self._gone_s, self._wait_s)
        while True:
            try:
                response, answer = self._exchange(path, body, states or {})
            except httpx.HTTPError as error:
                problem = type(error).__name__
            else:
                if response.status_code == 200:
                    return answer
                said = answer.get("error") or answer.get("detail") or f"status {response.status_code}"
                problem = told_by(self._http, said)
                if response.status_code < 500:
                    raise ConfigError(f"the worker at {self._url} refuses {path}: {problem}")
            log.warning("the worker gave no answer to %s (%s); it is asked again", path, problem)
            if not patience.pause():
                break
        raise ServeError(
            f"the worker at {self._url} gave no answer to {path} within {self._gone_s:g} s: {problem}. Start one, and then "
            "`onthejob train --resume`; --trainer-wait-s sets the time."
        )

    def _exchange(self, path: str, body: dict[str, Any], states: dict[str, bytes]) -> tuple[httpx.Response, dict[str, Any]]:
        """The last response, after what was missing was sent: at most an adapter, and the state that it needs."""
        for _ in range(2):
            response = self._http.post(path, json=body)
            answer = _object(response)
            if response.status_code != 409 or not self._sent(answer, states):
                return response, answer
        response = self._http.post(path, json=body)
        return response, _object(response)

    def _sent(self, refusal: dict[str, Any], states: dict[str, bytes]) -> bool:
        """Send what a worker says it misses; False when that is not ours."""
        for digest in refusal.get("unknown", []):
            if digest not in states:
                return False
            self._http.put(f"/states/{digest}", content=states[digest]).raise_for_status()
        name = refusal.get("not_live")
        if name is not None:
            known = next((adapter for adapter in self._live.values() if adapter.name == name), None)
            if known is None:
                return False
            self.publish(known)
        return True


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        value = json.loads(response.content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
