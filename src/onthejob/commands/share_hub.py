"""Upload of a folder to the Hub and download from it, through huggingface_hub, with each failure as one sentence.

The token is the client's: `HF_TOKEN`, or what `hf auth login` saved. `HF_ENDPOINT` names another Hub than huggingface.co.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from onthejob.errors import ConfigError, HubError, OnTheJobError
from onthejob.texts import secrets_of_environment, without

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["model", "dataset"]
_REPO = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9](?:[\w./-]*[\w-])?")
_FRESH = frozenset({".gitattributes", "README.md"})
"""Files that a repository may hold and is still empty: the Hub's page for new repositories writes them."""
MOST_NAME = 96
"""Characters that the Hub allows in an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An upload that the Hub has taken."""

    url: str
    """The repository's page."""
    commit: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The files of one commit of a repository."""

    commit: str
    private: bool
    files: dict[str, int]
    """Path -> size in bytes."""


def check_repo(repo: str, revision: str = "main") -> None:
    """Refuse what cannot be a repository or a revision."""
    if not _REPO.fullmatch(repo) or len(repo) > MOST_NAME or "--" in repo or ".." in repo or repo.endswith(".git"):
        raise ConfigError(
            f"{repo!r} is no repository of the Hub. Give OWNER/NAME: letters, digits, `-`, `_` and `.`, at most {MOST_NAME} "
            "characters."
        )
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ConfigError(f"{revision!r} is no revision. Give a branch, a tag or a commit, e.g. --revision main.")


def check_token() -> None:
    """Refuse to begin an upload without a token."""
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing is uploaded. Unset it, or add --dry-run.")
    if not get_token():
        raise ConfigError(
            "there is no token for the Hub. Set HF_TOKEN to one that may write, or run `hf auth login`; --dry-run needs none."
        )


def upload(
    folder: Path,
    repo: str,
    *,
    kind: Kind,
    private: bool,
    update: bool,
    revision: str,
    title: str,
    replaces: Sequence[str],
) -> Sent:
    """Make the repository when it is missing, and commit all files of `folder` at once.

    Args:
        folder: what is sent, all of it.
        repo: OWNER/NAME.
        kind: of the repository.
        private: make a new repository private; an existing one must be.
        update: add a commit to a repository that holds files already.
        revision: the branch; made from `main` when it is missing.
        title: of the commit.
        replaces: patterns of files of an earlier push, which this commit removes unless it holds them itself.

    Raises:
        ConfigError: the repository exists and `update` is not set, or it is public and `private` is set.
        HubError: the Hub cannot be reached, or refuses.
    """
    api = _api()
    with explained(repo, "upload"):
        new = _created(api, repo, kind=kind, private=private)
        before = _listed(api, repo, kind=kind, revision="main")
        if not new:
            _check_existing(before, repo, private=private, update=update)
        if revision != "main":
            api.create_branch(repo, repo_type=kind, branch=revision, exist_ok=True)
            before = _listed(api, repo, kind=kind, revision=revision)
        made = api.upload_folder(
            repo_id=repo,
            repo_type=kind,
            folder_path=folder,
            revision=revision,
            commit_message=title,
            delete_patterns=list(replaces),
            # Refused by the Hub when another commit came in between.
            parent_commit=before.commit,
        )
    place = f"{api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    return Sent(url=place, commit=made.oid, revision=revision)


def listed(repo: str, *, kind: Kind, revision: str) -> Listed:
    """The files of a repository at a revision, and the commit that it means now.

    Raises:
        HubError: the Hub cannot be reached, or has no such repository or revision.
    """
    with explained(repo, "reading"):
        return _listed(_api(), repo, kind=kind, revision=revision)


def download(repo: str, commit: str, files: Sequence[str], folder: Path) -> None:
    """Write these files of a model repository into `folder`, under their own paths.

    Raises:
        HubError: the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import snapshot_download

    literal = [re.sub(r"([*?[])", r"[\1]", path) for path in files]
    with explained(repo, "download"):
        snapshot_download(repo, revision=commit, local_dir=folder, allow_patterns=literal, endpoint=endpoint())


def endpoint() -> str | None:
    """Another Hub than the client's own, as `HF_ENDPOINT` names it."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


@contextmanager
def quiet_bars(quiet: bool) -> Iterator[None]:
    """Progress bars of the client only where they are wanted."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if not quiet or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _api() -> HfApi:
    from huggingface_hub import HfApi

    from onthejob import __version__

    return HfApi(endpoint=endpoint(), library_name="onthejob", library_version=__version__)


def _created(api: HfApi, repo: str, *, kind: Kind, private: bool) -> bool:
    """Whether the repository was made now; False when it existed."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(repo, repo_type=kind, private=private)
    except HfHubHTTPError as error:
        if error.response.status_code == 409:
            return False
        if error.response.status_code in (402, 403):
            # The token may write to one repository only, and not make others.
            try:
                api.repo_info(repo, repo_type=kind)
            except HfHubHTTPError:
                raise error from None
            return False
        raise
    return True


def _check_existing(found: Listed, repo: str, *, private: bool, update: bool) -> None:
    if private and not found.private:
        raise ConfigError(f"{repo} exists and is public, and --private was given. Make it private on the Hub, or name another.")
    if not update and found.files.keys() - _FRESH:
        raise ConfigError(
            f"the repository {repo} exists and holds {len(found.files)} files. Add --update to commit this as its next state, or "
            "name another."
        )


def _listed(api: HfApi, repo: str, *, kind: Kind, revision: str) -> Listed:
    from huggingface_hub.hf_api import RepoFile

    info = api.repo_info(repo, repo_type=kind, revision=revision)
    if info.sha is None:
        raise HubError(f"the Hub states no commit of {repo} at {revision}. Check HF_ENDPOINT.")
    rows = api.list_repo_tree(repo, repo_type=kind, revision=info.sha, recursive=True)
    files = {row.path: row.size for row in rows if isinstance(row, RepoFile) and _is_plain(row.path)}
    return Listed(commit=info.sha, private=bool(info.private), files=files)


def _is_plain(path: str) -> bool:
    """True of a path that stays below the folder into which it is downloaded."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path


@contextmanager
def explained(repo: str, doing: str) -> Iterator[None]:
    """Failures inside the block as one sentence with its remedy, without the token."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except OnTheJobError:
        raise
    except (RuntimeError, ValueError, OSError, *_http_errors()) as error:
        # The client's threads wrap what happened to one file of several.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        if isinstance(cause, LocalEntryNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, HfHubHTTPError) and not isinstance(cause, LocalEntryNotFoundError):
            raise _refused(cause, repo, doing) from error
        if isinstance(cause, OfflineModeIsEnabled):
            raise ConfigError(f"HF_HUB_OFFLINE is set, so {repo} is not reached. Unset it.") from error
        if isinstance(cause, json.JSONDecodeError):
            raise HubError(f"{_where()} does not answer as the Hub does. Check HF_ENDPOINT and the network's proxy.") from error
        if isinstance(cause, (HFValidationError, ValueError)):
            raise ConfigError(f"the Hub does not accept this: {_line(cause)} Change it and repeat the command.") from error
        if isinstance(cause, (*_http_errors(), ConnectionError, LocalEntryNotFoundError)):
            raise HubError(
                f"the {doing} of {repo} at {_where()} was broken off: {_line(cause)} No file was published or kept. "
                "Check the network and HF_ENDPOINT, and repeat the command."
            ) from error
        if isinstance(cause, OSError):
            raise
        raise HubError(f"the {doing} of {repo} failed: {_line(cause)} Repeat the command.") from error


def _refused(error: Exception, repo: str, doing: str) -> HubError:
    """The sentence about an answer of the Hub that is an error."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    assert isinstance(error, HfHubHTTPError)
    status = error.response.status_code
    stated = error.response.headers.get("X-Error-Message") or error.server_message or ""
    if isinstance(error, GatedRepoError):
        text = f"{repo} is gated. Accept its conditions on its page, with the account of the token."
    elif isinstance(error, RevisionNotFoundError):
        text = f"{repo} has no such revision. Give a branch, a tag or a commit that its page shows."
    elif status == 401 and "Invalid credentials" in stated:
        text = "the token is not valid (401). Set HF_TOKEN to a valid one, or run `hf auth login` again."
    elif isinstance(error, RepositoryNotFoundError) or status == 404:
        text = (
            f"there is no repository {repo} that this token may read ({status}). Check its name, and HF_TOKEN when it is private."
        )
    elif status == 401:
        text = f"the {doing} of {repo} needs a token (401). Set HF_TOKEN, or run `hf auth login`."
    elif status in (402, 403):
        owner = repo.split("/")[0]
        text = f"the token may not write to {repo} ({status}). Use a token with write permission for {owner}, or another OWNER."
    elif status in (409, 412):
        text = f"{repo} was changed by another commit meanwhile ({status}). Look at it and repeat the command."
    elif status == 429:
        text = "too many requests to the Hub (429). Wait some minutes and repeat the command."
    elif status >= 500:
        text = (
            f"the Hub at {_where()} failed ({status}) in the {doing} of {repo}. No file was published or kept. Repeat it later."
        )
    else:
        text = f"the Hub refused the {doing} of {repo} ({status}): {stated or _line(error)} Change it and repeat the command."
    return HubError(_clean(text))


def _http_errors() -> tuple[type[Exception], ...]:
    """Errors of the HTTP client, which is httpx2 or, below huggingface_hub 2, httpx."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        try:
            found.append(importlib.import_module(name).HTTPError)
        except ImportError:
            continue
    return tuple(found)


def _where() -> str:
    from huggingface_hub import constants

    return endpoint() or constants.ENDPOINT


def _line(error: BaseException) -> str:
    """An error's message on one line, ended by a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return _clean(text if text.endswith((".", "!", "?")) else f"{text}.")


def _clean(text: str) -> str:
    from huggingface_hub import get_token

    return without(text, (*secrets_of_environment(os.environ), *filter(None, [get_token()])))
