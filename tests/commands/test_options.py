"""Options from TOML files."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onthejob.commands.options import from_toml, overlay, to_toml
from onthejob.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ConfigError(f"rate must be > 0, got {self.rate}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str = "x"
    path: Path | None = None
    colour: Colour = Colour.RED
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_overrides_what_it_states_and_nothing_else(tmp_path: Path):
    file = write(tmp_path / "a.toml", 'path = "data"\ncolour = "blue"\n[inner]\nrate = 2\nsizes = [3]\n')
    got = from_toml(Outer(name="kept", flag=True), file)
    assert got == Outer(name="kept", flag=True, path=Path("data"), colour=Colour.BLUE, inner=Inner(rate=2.0, sizes=(3,)))
    assert isinstance(got.inner.rate, float)


@example(Outer(name='\x7f\t"\\😀'))
@given(
    st.builds(
        Outer,
        name=st.text(),
        path=st.none() | st.sampled_from([Path("a b"), Path('quo"te')]),
        colour=st.sampled_from(Colour),
        flag=st.booleans(),
        inner=st.builds(
            Inner,
            rate=st.floats(min_value=1e-300, allow_infinity=False, allow_nan=False),
            kind=st.sampled_from(["a", "b"]),
            sizes=st.lists(st.integers(-(2**31), 2**31)).map(tuple),
        ),
    )
)
def test_written_options_come_back_equal(options: Outer):
    import tomllib

    assert overlay(Outer(), tomllib.loads(to_toml(options)), where="test") == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names = 'x'", ["names", "Did you mean name?"]),
        ("[inner]\nraet = 1", ["[inner]", "raet", "rate"]),
        ("name = 3", ["name", "3"]),
        ("inner = 3", ["inner", "table"]),
        ("[inner]\nkind = 'c'", ["kind", "'c'"]),
        ("[inner]\nrate = 'fast'", ["rate", "'fast'"]),
        ("[inner]\nrate = -1.0", ["rate must be > 0"]),
        ("name = ", ["not TOML"]),
    ],
)
def test_malformed_files_say_what_is_wrong(tmp_path: Path, text: str, words: list[str]):
    with pytest.raises(ConfigError) as caught:
        from_toml(Outer(), write(tmp_path / "bad.toml", text))
    for word in [*words, "bad.toml"] if "must be > 0" not in words[0] else words:
        assert word in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        from_toml(Outer(), tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        from_toml(Outer(), tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        from_toml(Outer(), tmp_path)


def test_a_resumed_run_keeps_the_worker_that_is_named(runs_dir: Path):
    from onthejob.commands.train import Train
    from onthejob.record import Run

    for sampler in ("in-process", "worker"):
        with Run.create(runs_dir, config=Train(sampler=sampler)._settings(), name=sampler):
            pass
        again = Train(resume=runs_dir / sampler, trainer="https://gpu.example:8100", trainer_wait_s=1800.0)
        recorded = again._recorded(runs_dir / sampler)
        assert (recorded.trainer, recorded.trainer_wait_s) == ("https://gpu.example:8100", 1800.0)
    with pytest.raises(ConfigError, match="--trainer"):
        Train(resume=runs_dir / "worker")._recorded(runs_dir / "worker")


def test_choices_are_spelled_alike_on_the_command_line_and_in_files(capsys: pytest.CaptureFixture[str]):
    from onthejob.cli import main

    assert main(["train", "--learner.optimizer", "adamw_8bit", "--print-config"]) == 0
    assert 'optimizer = "adamw_8bit"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "correction"),
    [
        ("", "none"),
        ("--sampler vllm", "token_truncate"),
        ("--sampler worker --trainer http://127.0.0.1:1", "token_truncate"),
        ("--sampler vllm --learner.loss.loss reinforce", "token_truncate"),
        ("--sampler vllm --learner.loss.correction none", "none"),
        ("--sampler vllm --learner.loss.correction sequence_mask", "sequence_mask"),
        ("--learner.loss.correction sequence_mask", "sequence_mask"),
        ("--sampler vllm --learner.loss.loss expected", "none"),
    ],
)
def test_what_vllm_samples_is_corrected_unless_something_else_is_chosen(words: str, correction: str):
    from onthejob.cli import parse
    from onthejob.commands.terminal import Output, Terminal
    from onthejob.commands.train import Train
    from onthejob.commands.training import corrected

    asked = parse(Train, words.split(), prog="onthejob train")
    settled = corrected(asked, Terminal(Output(quiet=True)))
    assert settled.learner.loss.correction == correction, "what the run records"
    assert corrected(settled, Terminal(Output(quiet=True))) == settled, "a resumed run keeps it"


@pytest.mark.parametrize("name", ["office", "claw"])
def test_records_from_before_the_table_env_still_read(runs_dir: Path, repository: Path, name: str):
    from onthejob.claw import Claw
    from onthejob.commands.removed import TRAIN
    from onthejob.commands.train import Train, recorded_options
    from onthejob.office import Office
    from onthejob.record import Run
    from onthejob.train.settings import flat

    earlier = json.loads((repository / "tests/data/options_before_env_table.json").read_text(encoding="utf-8"))[name]
    with Run.create(runs_dir, config=earlier, name=name) as run:
        found = recorded_options(run)
    office = Office(seeds=200, days=7, scenarios=("churn", "viral"), partner="expert", prompt_budget=900, crisis_bonus=False)
    assert found.own == {"office": office, "claw": Claw(count=64, growth=0, seed=3)}[name]
    usual = Train.starting(name).train
    limit = earlier["train"]["sampling"]["max_new_tokens"]  # the office's has grown since
    usual = replace(usual, sampling=replace(usual.sampling, max_new_tokens=limit))
    assert (found.env, found.train) == (name, usual)
    again = found._settings()
    then, now = dict(flat(earlier["learner"])), dict(flat(again["learner"]))
    assert now == {option: then[option] for option in then if option in now}
    assert asdict(found.train.advantage) == {"estimator": "group", **{
        option: value for option, value in earlier["learner"]["advantage"].items() if option != "negative_weight"
    }}, "what was the learner's is the loop's, and a group's estimator came later"  # fmt: skip
    gone = {f"learner.{option}" for option in then.keys() - now.keys()}
    assert {option for option in gone if not option.startswith("learner.advantage.")} <= TRAIN.keys()
    assert again["env"]["ref"] == name


def test_files_from_before_the_table_env_still_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from onthejob.cli import main

    file = write(tmp_path / "office.toml", 'days = 3\nscenarios = ["churn"]\n[claw]\ncount = 64\n[train]\niterations = 7\n')
    for words, expected in (
        ([], ("office", "days", 3)),
        (["--env.days", "4"], ("office", "days", 4)),
        (["--env", "claw"], ("claw", "count", 64)),
    ):
        assert main(["train", "--config", str(file), *words, "--print-config"]) == 0
        printed = tomllib.loads(capsys.readouterr().out)
        ref, option, value = expected
        assert (printed["env"]["ref"], printed["env"][option], printed["train"]["iterations"]) == (ref, value, 7)
    # The environment's options stand in the table and nowhere else.
    mixed = write(tmp_path / "mixed.toml", 'days = 3\n[env]\nref = "office"\nseeds = 2\n')
    assert main(["train", "--config", str(mixed), "--print-config"]) == 2
    assert "unknown key 'days'" in capsys.readouterr().err
