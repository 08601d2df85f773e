"""`onthejob adapters push|pull` and `onthejob runs push`: share through the Hub what was trained and recorded.

Only what a reader needs is sent: of an adapter its three files, of a run its exported tables, and a card. Every file is listed
with its size before the first request, and files that hold a key of this machine's environment are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.runs import existing_run
from onthejob.commands.share_draft import check_license, check_new, check_places, drafted, place_of, refuse_secrets
from onthejob.commands.terminal import Output, Terminal, bytes_text, table
from onthejob.errors import ConfigError, HubError, ModelError

if TYPE_CHECKING:
    from onthejob.commands.share_card import Origin
    from onthejob.record import Run
    from onthejob.types import Adapter

CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """How a folder is uploaded."""

    private: bool = False
    """Make the repository private."""
    update: bool = False
    """The repository may hold an earlier push, which one new commit replaces."""
    revision: str = "main"
    """Branch of the commit; made when it is missing."""
    dry_run: bool = False
    """Write the folder that would be uploaded, print its path, and send nothing. Needs no token."""
    out: Path | None = None
    """With --dry-run: the folder, which must not exist; default: `shared/NAME`."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Upload):
    """Upload adapters as a model repository with a card. PEFT and vLLM load them from there; `adapters pull` brings them back.

    Several roles become folders of one repository; one role stands at its top.
    """

    what: tyro.conf.Positional[str]
    """A run, `RUN:best`, `RUN:ITERATION` or a folder of adapters; with `:ROLE` behind it that role alone."""
    repo: tyro.conf.Positional[str]
    """The repository, OWNER/NAME."""
    comparison: tuple[Path, ...] = ()
    """Files that `onthejob compare --json` printed or `compare --name` kept: their means, differences and intervals go into the
    card."""
    team: str = ""
    """The name of these adapters in --comparison; by default that of WHAT."""
    base: str = ""
    """Id of the base model on the Hub for the card; by default that of the run's model."""
    license: str = ""
    """The Hub's id of the adapters' license, e.g. apache-2.0; empty states none. The base's license may bind you."""

    def run(self, terminal: Terminal) -> int:
        """Check, list what is sent, send it, and print where it is."""
        from onthejob.commands.share_card import adapters_card, read_evaluation
        from onthejob.commands.share_hub import check_repo, check_token
        from onthejob.learn.adapter_files import CONFIG, META, WEIGHTS, read_object
        from onthejob.models.adapter_weights import read_log_logit_scale

        check_repo(self.repo, self.revision)
        check_places(self.repo, dry_run=self.dry_run, out=self.out)
        check_license(self.license)
        if self.team and not self.comparison:
            raise ConfigError("--team names a team of --comparison, which was not given. Add it, or leave --team out.")
        if not self.dry_run:
            check_token()
        adapters = chosen_adapters(self.what)
        candidates = list(dict.fromkeys((Path(self.what).name, self.what)))
        evaluations = [read_evaluation(path, self.team, candidates) for path in self.comparison]
        digests = {role: str(read_object(made.path / META)["base_digest"]) for role, made in adapters.items()}
        if len(set(digests.values())) > 1:
            stated = ", ".join(f"{role} {digest[:12]}" for role, digest in digests.items())
            raise ModelError(f"the adapters were trained on different bases ({stated}). Push each with `{self.what}:ROLE`.")
        origin = origin_of(adapters)
        base = self.base or origin.base
        if not base:
            terminal.warn("the card names no base model, because the run's is not on the Hub. Give its id with --base.")
        if not self.license:
            terminal.warn("the card states no license, so others may not use the adapters. Add e.g. --license apache-2.0.")
        places = {role: role if len(adapters) > 1 else "" for role in adapters}
        card = adapters_card(
            self.repo,
            adapters,
            places,
            origin,
            evaluations,
            base=base,
            base_digest=next(iter(digests.values())),
            license=self.license,
            scaled=[role for role, made in adapters.items() if read_log_logit_scale(made.path) is not None],
        )
        with drafted(self.repo, dry_run=self.dry_run, out=self.out) as folder:
            for role, made in adapters.items():
                (folder / places[role]).mkdir(exist_ok=True)
                for name in (WEIGHTS, CONFIG, META):
                    shutil.copyfile(made.path / name, folder / places[role] / name)
            (folder / CARD).write_text(card, encoding="utf-8")
            title = f"{', '.join(made.name for made in adapters.values())} with onthejob"
            data = sent(
                self, folder, terminal, kind="model", title=title, replaces=[f"*{name}" for name in (WEIGHTS, CONFIG, META)]
            )
        rows = [(role, made.name, places[role] or ".", made.digest) for role, made in adapters.items()]
        terminal.result(
            {**data, "adapters": adapters, "base": base or None},
            data["folder"] or f"{data['url']} at {data['commit'][:12]}",
            table(("role", "adapter", "folder", "sha256"), rows),
        )
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Download adapters that `adapters push` uploaded, into a folder that `--init`, `compare`, `play` and others take.

    Only the adapters' files and the card are downloaded; every digest is checked before the folder appears.
    """

    repo: tyro.conf.Positional[str]
    """The repository, OWNER/NAME."""
    revision: str = "main"
    """Branch, tag or commit."""
    out: Path | None = None
    """The folder, which must not exist; default: `adapters/NAME`."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Download, check, and show what came."""
        from onthejob.commands.share_hub import check_repo, download, listed, quiet_bars
        from onthejob.files import published, remove_abandoned
        from onthejob.learn.adapter_files import CONFIG, META, WEIGHTS
        from onthejob.stack import find_adapters

        check_repo(self.repo, self.revision)
        out = self.out or Path("adapters") / self.repo.split("/")[1]
        check_new(out)
        found = listed(self.repo, kind="model", revision=self.revision)
        wanted = {path: size for path, size in found.files.items() if Path(path).name in (WEIGHTS, CONFIG, META) or path == CARD}
        if not any(Path(path).name == META for path in wanted):
            foreign = any(Path(path).name == CONFIG for path in wanted)
            raise HubError(
                f"{self.repo} holds an adapter of another program. Download it with the Hub's own client, and take it in "
                "with `onthejob adapters import FOLDER --role ROLE`."
                if foreign
                else f"{self.repo} holds no adapter: {META} is in none of its folders. Check the name and --revision."
            )
        for path, size in wanted.items():
            terminal.progress(f"downloading {path} ({bytes_text(size)})")
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out.parent, out.name)
        with published(out) as draft:
            with quiet_bars(terminal.quiet or not terminal.err.is_terminal):
                download(self.repo, found.commit, list(wanted), draft)
            # What the client remembers about its downloads.
            shutil.rmtree(draft / ".cache", ignore_errors=True)
            check_pulled(draft, self.repo)
        adapters = find_adapters(out)
        terminal.result(
            {"folder": out, "commit": found.commit, "adapters": adapters},
            f"{out} holds {self.repo} at {found.commit[:12]}",
            table(("role", "adapter", "folder", "sha256"), [(r, a.name, str(a.path), a.digest) for r, a in adapters.items()]),
        )
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRun(Upload):
    """Upload a run's exported tables as a data set with a card: what `runs export` writes, and the newest metrics.

    Prompts and replies of every episode become readable by all who may read the repository.
    """

    path: tyro.conf.Positional[Path]
    """The run's folder, or its name in `runs/`."""
    repo: tyro.conf.Positional[str]
    """The repository, OWNER/NAME."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """JSON lines, or Parquet (needs the extra `onthejob[export]`), which the Hub shows even where facts differ between rows."""
    license: str = ""
    """The Hub's id of the data's license, e.g. cc-by-4.0; empty states none."""

    def run(self, terminal: Terminal) -> int:
        """Export, list what is sent, send it, and print where it is; exit code 1 when a damaged part is missing."""
        from onthejob.commands.share_card import run_card
        from onthejob.commands.share_hub import check_repo, check_token
        from onthejob.record import Run, export, show

        check_repo(self.repo, self.revision)
        check_places(self.repo, dry_run=self.dry_run, out=self.out)
        check_license(self.license)
        path = existing_run(self.path)
        if not self.dry_run:
            check_token()
        with drafted(self.repo, dry_run=self.dry_run, out=self.out) as folder:
            with Run.open(path, readonly=True, skip_damaged=True) as run:
                # Keys are looked for in the text, which Parquet compresses.
                lines = export(run, folder)
                rows = {name: _rows(file) for name, file in lines.items()}
                if self.format == "parquet":
                    refuse_secrets(folder, terminal)
                    export(run, folder, "parquet")
                    for file in lines.values():
                        file.unlink()
                details, damage, counts = show(run), run.damage, run.counts()
                origin = origin_of_run(run)
            sizes = {f"{name}.{self.format}": count for name, count in rows.items()}
            card = run_card(self.repo, origin, sizes, counts, details.metrics, license=self.license)
            (folder / CARD).write_text(card, encoding="utf-8")
            title = f"{origin.name} with onthejob"
            data = sent(self, folder, terminal, kind="dataset", title=title, replaces=["*.jsonl", "*.parquet"])
        if damage:
            terminal.warn(f"{len(damage)} damaged parts of {path} are missing. `onthejob runs check {path}` names them.")
        terminal.result(
            {**data, "rows": sizes, "missing": damage},
            data["folder"] or f"{data['url']} at {data['commit'][:12]}",
            table(("file", "rows"), list(sizes.items())),
        )
        return 1 if damage else 0


def chosen_adapters(what: str) -> dict[str, Adapter]:
    """Role -> adapter of WHAT: as `named_adapters`, and of one role alone where `:ROLE` follows."""
    from onthejob.commands.player_specs import named_adapters

    before, colon, role = what.rpartition(":")
    if not colon or role == "best" or role.isdigit() or Path(what).exists():
        return named_adapters(what)
    found = named_adapters(before)
    if role not in found:
        raise ConfigError(
            f"{before} has no adapter of {role!r}; its roles are {', '.join(found)}. Name one of them, `best` or a number."
        )
    return {role: found[role]}


def origin_of(adapters: Mapping[str, Adapter]) -> Origin:
    """The run in whose folder the adapters lie; an empty one where there is none, or they are of several."""
    from onthejob.commands.share_card import Origin
    from onthejob.record import Run

    runs = {
        next((folder for folder in made.path.resolve().parents if (folder / "run.sqlite").is_file()), None)
        for made in adapters.values()
    }
    folder = runs.pop()
    if folder is None or runs:
        return Origin()
    with Run.open(folder, readonly=True, skip_damaged=True) as run:
        return origin_of_run(run)


def origin_of_run(run: Run) -> Origin:
    """What a card states of a run."""
    from onthejob.commands.share_card import Origin
    from onthejob.commands.train import recorded_options

    try:
        recipe = recorded_options(run)._toml()
    except ConfigError:
        # Of an earlier version, of another command, or of an environment whose file is gone: its configuration is shown instead.
        recipe = ""
    newest = {metric.name: metric.value for metric in run.read_metrics("eval")}
    return Origin(name=run.name, config=run.config, recipe=recipe, metrics=newest, iterations=run.last_iteration() or 0)


def sent(
    options: Push | PushRun,
    folder: Path,
    terminal: Terminal,
    *,
    kind: Literal["model", "dataset"],
    title: str,
    replaces: list[str],
) -> dict[str, Any]:
    """List the files of `folder`, and upload them unless it is a dry run; the command's result."""
    from onthejob.commands.share_hub import quiet_bars, upload

    refuse_secrets(folder, terminal)
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    done = "is written for" if options.dry_run else "is sent to"
    for path, size in files.items():
        terminal.progress(f"{path} ({bytes_text(size)}) {done} {options.repo}")
    data: dict[str, Any] = {"repo": options.repo, "kind": kind, "files": files, "url": None, "commit": None, "folder": None}
    if options.dry_run:
        return data | {"folder": place_of(options.repo, options.out)}
    with quiet_bars(terminal.quiet or not terminal.err.is_terminal):
        made = upload(
            folder,
            options.repo,
            kind=kind,
            private=options.private,
            update=options.update,
            revision=options.revision,
            title=title,
            replaces=replaces,
        )
    return data | {"url": made.url, "commit": made.commit}


def check_pulled(folder: Path, repo: str) -> None:
    """Compare downloaded adapters with their own digests and with those of the card.

    Raises:
        ModelError: a digest or a file's content is wrong; every adapter is read.
        HubError: the card names other adapters.
    """
    import yaml
    from huggingface_hub import ModelCard

    from onthejob.learn.adapter_files import META, read_object
    from onthejob.stack import adapter_folders, find_adapters

    find_adapters(folder)
    if not (folder / CARD).is_file():
        return
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
        stated = ModelCard(text, ignore_metadata_errors=True).data.to_dict().get("onthejob") or {}
        named = {str(entry["folder"]): str(entry["digest"]) for entry in stated.get("adapters", {}).values()}
        base = stated.get("base_digest")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise HubError(f"the card of {repo} cannot be read ({error!r}). Pull another --revision.") from error
    for place in adapter_folders(folder):
        meta = read_object(place / META)
        where = place.relative_to(folder).as_posix()
        if named and named.get(where) != meta["digest"]:
            expected = named.get(where, "no adapter")
            raise HubError(
                f"the card of {repo} states {expected[:12]} in {where}, found is {meta['digest'][:12]}. Pull another --revision."
            )
        if base is not None and base != meta["base_digest"]:
            raise HubError(f"the card of {repo} states another base than the adapter in {where}. Pull another --revision.")


def _rows(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
