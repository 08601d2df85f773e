"""A job of one role for TRL: its reward, the tool call that TRL reads, and recorded runs as datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from onthejob.compat.trl import KINDS, OfficeJob, OfficeSeat, as_tool_calls, dataset_rows, prompt_rows
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.prompt import system_text
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, ContractError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.office_players import scripted
from onthejob.record import Run
from onthejob.testing import tiny_model, tiny_tokenizer
from onthejob.types import Completion, Context, Group, Sampling, Split, StopReason, Task, Trajectory, Turn

ROW = {"scenario": "churn", "seed": 100_003, "days": 30, "skip": 4}
IDLE = '{"action_type":"IDLE"}'


def test_a_job_pays_what_the_office_pays():
    """Against the office itself: idle colleagues, so that the same episode can be played without the job."""
    idle = ScriptedPolicy(lambda observation, seed: IDLE, version="idle")
    job = OfficeJob(role="dev", decisions=3, ahead=0, teammates=dict.fromkeys([s for s in SEATS if s != "dev"], idle))
    said = job.begin(**{**ROW, "skip": 0})
    own = OfficeEnvironment()
    request = own.reset(
        Task(id="x", env="office", split=Split.TRAIN, seed=ROW["seed"], payload={"scenario": "churn", "days": 30})
    )
    # Before its first decision all are the heuristic, after it the colleagues are those that were asked for.
    while request.actor != "dev":
        (completion,) = scripted("heuristic").act([Context(observation=request)], Sampling())
        request = own.step(completion.text).observation
    total, texts = 0.0, []
    for number in range(3):
        texts.append(request.messages[-1].content)
        assert said == texts[-1]
        reply = request.view["legal"][number]
        said = job.reply(reply)
        step = own.step(reply)
        total += step.rewards["dev"]
        while step.observation.actor != "dev":
            step = own.step(IDLE)
            total += step.rewards["dev"]
        request = step.observation
    assert said == request.messages[-1].content
    assert job.over
    with pytest.raises(ContractError, match="nothing more to decide"):
        job.reply(IDLE)
    assert job.finish() == pytest.approx(total)


def test_equal_replies_are_worth_the_same_and_others_are_not():
    def worth(reply: str | None, ahead: int = 36) -> float:
        job = OfficeJob(role="sales", ahead=ahead)
        job.begin(**ROW)
        if reply is not None:
            job.reply(reply)
        return job.finish()

    job = OfficeJob(role="sales")
    assert "JSON:" in job.begin(**ROW)
    legal = job._env.legal_replies()
    values = {reply: worth(reply) for reply in legal}
    assert len(set(values.values())) > 2
    assert worth(legal[0]) == values[legal[0]]
    # Saying nothing usable is the same as not having said it, and costs a point more than doing nothing.
    assert worth("no action") == worth(None)
    assert worth(None, ahead=0) == pytest.approx(worth(IDLE, ahead=0) - 1.0)


def test_a_seat_is_reset_to_the_same_moment_every_time():
    seat = OfficeSeat(role="marketing", ahead=12)
    first = seat.reset(**ROW, prompt="is not read")
    seat.act("RESEARCH_MARKET", target="retail")
    one = seat.get_reward()
    assert seat.reset(**ROW) == first
    assert "Needs: retail" in seat.act("RESEARCH_MARKET", "retail", message="", parameters={})
    assert seat.get_reward() == one
    with pytest.raises(ContractError, match="nothing more"):
        seat.act("RESEARCH_MARKET", "retail")
    tools = [name for name in vars(OfficeSeat) if not name.startswith("_")]
    assert tools == ["reset", "act", "get_reward"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OfficeJob(decisions=0), "decisions >= 1 and ahead >= 0, got 0 and 36"),
        (lambda: OfficeJob(ahead=-1), "got 1 and -1"),
        (lambda: OfficeJob(role="boss"), "role must be one of ceo"),
        (lambda: OfficeSeat(teammates="genius"), "unknown player 'genius'"),
        (lambda: OfficeJob().begin(scenario="churn", seed=100_000, days=1, skip=9), "is over before decision 9 of sales"),
        (lambda: prompt_rows([], "boss"), "got 'boss'"),
        (lambda: prompt_rows(office_tasks(Split.DEV, seeds=1), "hr"), "is held out"),
        (lambda: as_tool_calls(type("T", (), {"get_vocab": dict})()), "no <|im_start|> or <|im_end|>".replace("|", r"\|")),
    ],
)
def test_what_cannot_work_is_refused(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_trl_reads_the_offices_json_as_a_call_of_act():
    from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

    tokenizer = as_tool_calls(tiny_tokenizer())
    assert supports_tool_calling(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    (row,) = prompt_rows(office_tasks(Split.TRAIN, seeds=1, scenarios=["viral"]), "sales", skips=(2,))
    assert row["prompt"][0]["content"] == system_text("sales", "compact")
    assert (row["scenario"], row["skip"]) == ("viral", 2)
    prefix = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False)
    reply = '{"action_type":"RUN_DEMO","target":"Acme","parameters":{"tier":"annual"}}'
    read = parse_response(tokenizer, tokenizer.encode(reply + "<|im_end|>"), prefix=prefix)
    (call,) = read["tool_calls"]
    assert call["function"]["name"] == "act"
    assert call["function"]["arguments"] == {"action_type": "RUN_DEMO", "target": "Acme", "parameters": {"tier": "annual"}}
    for unusable in ("Hello<|im_end|>", reply[:30], reply + " and so on<|im_end|>"):
        assert not parse_response(tokenizer, tokenizer.encode(unusable), prefix=prefix).get("tool_calls")
    # In a conversation the call is the action's JSON and nothing else.
    message = {"role": "assistant", "content": "", "tool_calls": read["tool_calls"]}
    shown = tokenizer.apply_chat_template([message], tokenize=False)
    assert shown == f"<|im_start|>assistant\n{reply.replace(':', ': ').replace(',', ', ')}<|im_end|>\n"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two groups of replies to known prompts; in the second all are worth the same."""

    def member(prompt: str, text: str, value: float) -> Trajectory:
        ids = tuple(tokenizer.encode(text + "<|im_end|>"))
        completion = Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))
        turn = Turn(prompt_ids=tuple(tokenizer.encode(prompt)), completion=completion, policy_version="sales@0000")
        return Trajectory(task_id="t", actor="sales", turns=(turn,), rewards=(value,), stop=StopReason.BRANCH)

    tokenizer = tiny_tokenizer()
    one = tuple(member("Say?", text, value) for text, value in (("good", 2.0), ("bad", -1.0), ("fair", 0.5)))
    two = tuple(member("And?", text, 1.0) for text in ("one", "two"))
    with Run.create(tmp_path / "runs", config={}, name="kept") as made:
        with made.iteration(0) as it:
            it.groups([Group(key=key, actor="sales", trajectories=members) for key, members in (("a", one), ("b", two))])
        yield made


def test_a_record_becomes_rows_of_every_kind(run: Run):
    tokenizer = tiny_tokenizer()
    rows = {kind: list(dataset_rows(run, kind, decode=tokenizer.decode)) for kind in KINDS}
    assert rows["prompt"] == [{"prompt": "Say?"}, {"prompt": "And?"}]
    assert rows["preference"] == [{"prompt": "Say?", "chosen": "good<|im_end|>", "rejected": "bad<|im_end|>"}]
    assert rows["prompt-completion"][0] == {"prompt": "Say?", "completion": "good<|im_end|>"}
    assert [row["label"] for row in rows["unpaired-preference"]] == [True, False, False]  # nothing of the tied group
    assert len(rows["tokens"]) == 5
    for tokens, text in zip(rows["tokens"], rows["prompt-completion"], strict=True):
        assert tokenizer.decode(tokens["input_ids"]) == text["prompt"] + text["completion"]
        kept = [i for i, m in zip(tokens["input_ids"], tokens["completion_mask"], strict=True) if m]
        assert tokenizer.decode(kept) == text["completion"]
    assert list(dataset_rows(run, "tokens", actor="dev")) == []
    with pytest.raises(ConfigError, match=r"kind must be one of tokens, .* got 'dpo'"):
        dataset_rows(run, "dpo")
    with pytest.raises(ConfigError, match=r"preference rows are text.*decode=tokenizer\.decode"):
        dataset_rows(run, "preference")


def test_rows_hold_whole_conversations(tmp_path: Path):
    """Two turns in one context, and then one in a new context; the other trajectory has a single turn."""
    tokenizer = tiny_tokenizer()

    def turn(prompt: str, text: str) -> Turn:
        ids = tuple(tokenizer.encode(text))
        completion = Completion(text=text, token_ids=ids, logprobs=(-1.0,) * len(ids))
        return Turn(prompt_ids=tuple(tokenizer.encode(prompt)), completion=completion, policy_version="agent@0000")

    end, result = "<|im_end|>", "\n<|im_start|>user\nok<|im_end|>"
    long = (turn("Go", f"one{end}"), turn(f"Goone{end}{result}", f"two{end}"), turn("New", f"three{end}"))
    members = [
        Trajectory(task_id="t", actor="agent", turns=long, rewards=(0.0, 0.0, 1.0), stop=StopReason.DONE),
        Trajectory(task_id="t", actor="agent", turns=(turn("Go", f"none{end}"),), rewards=(0.0,), stop=StopReason.MAX_TURNS),
    ]
    assert [[t.completion.text for t in turns] for turns in members[0].conversations] == [
        [f"one{end}", f"two{end}"], [f"three{end}"],
    ]  # fmt: skip
    with Run.create(tmp_path / "runs", config={}, name="long") as run:
        with run.iteration(0) as it:
            it.groups([Group(key="a", actor="agent", trajectories=tuple(members))])
        rows = {kind: list(dataset_rows(run, kind, decode=tokenizer.decode)) for kind in KINDS}
    whole = f"one{end}{result}two{end}"
    assert rows["prompt"] == [{"prompt": "Go"}]
    assert rows["preference"] == [{"prompt": "Go", "chosen": whole, "rejected": f"none{end}"}]
    assert rows["prompt-completion"] == [
        {"prompt": "Go", "completion": f"one{end}"},
        {"prompt": f"Goone{end}{result}", "completion": f"two{end}"},
        {"prompt": "New", "completion": f"three{end}"},
        {"prompt": "Go", "completion": f"none{end}"},
    ]
    assert rows["unpaired-preference"] == [
        {"prompt": "Go", "completion": whole, "label": True},
        {"prompt": "New", "completion": f"three{end}", "label": True},
        {"prompt": "Go", "completion": f"none{end}", "label": False},
    ]
    first = rows["tokens"][0]
    assert tokenizer.decode(first["input_ids"]) == f"Go{whole}"
    trained = [i for i, mask in zip(first["input_ids"], first["completion_mask"], strict=True) if mask]
    assert tokenizer.decode(trained) == f"one{end}two{end}", "not the environment's answer"
    assert len(rows["tokens"]) == 3


@pytest.mark.filterwarnings("ignore")
def test_trl_trains_on_the_rows_of_a_record(run: Run, tmp_path: Path):
    """SFTTrainer takes the tokens as they are: its loss is the model's own on exactly the sampled tokens."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tiny = tiny_model()
    rows = list(dataset_rows(run, "tokens"))
    with torch.no_grad():
        nll, count = 0.0, 0
        for row in rows:
            ids = torch.tensor([row["input_ids"]])
            labels = torch.tensor([[i if m else -100 for i, m in zip(row["input_ids"], row["completion_mask"], strict=True)]])
            trained = sum(row["completion_mask"])
            nll, count = nll + float(tiny.model(input_ids=ids, labels=labels).loss) * trained, count + trained
    config = SFTConfig(
        output_dir=str(tmp_path / "sft"),
        use_cpu=True,
        bf16=False,
        completion_only_loss=True,  # without it TRL ignores the mask of rows that are tokens already
        per_device_train_batch_size=len(rows),
        max_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model=tiny.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tiny.tokenizer)
    trainer.train()
    (loss,) = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert loss == pytest.approx(nll / count, rel=1e-3)


def test_a_job_answers_an_unusable_reply_with_feedback():
    """Corrections are no decisions and cost nothing; one that is not corrected is the decision that a job without them made."""

    def worth(*replies: str, retries: int) -> tuple[list[str | None], float]:
        job = OfficeJob(role="sales", decisions=2, ahead=0, retries=retries)
        job.begin(**ROW)
        said = [job.reply(reply) for reply in replies]
        assert job.over
        return said, job.finish()

    job = OfficeJob(role="sales", retries=2)
    job.begin(**ROW)
    first, second = job._env.legal_replies()[0], IDLE
    said, straight = worth(first, second, retries=0)
    answers, corrected = worth("no", '{"action_type":"BUILD_FEATURE"}', first, "{", second, retries=2)
    one, two, three, four, five = map(str, answers)
    assert one.startswith("Your reply was not usable: The reply holds no JSON object.")
    assert "BUILD_FEATURE belongs to dev; you are sales." in two
    assert len(two.splitlines()) == len(one.splitlines()) + 1
    assert "cut off" in four
    assert [three, five] == list(map(str, said))
    assert corrected == straight
    assert worth("no", "no", first, retries=1)[1] == worth("no", first, retries=0)[1]


@pytest.mark.parametrize("begun", [(), ("no",)])
def test_a_job_that_ends_among_its_corrections_counts_as_one_unusable_reply(begun: tuple[str, ...]):
    def worth(retries: int, *replies: str) -> float:
        job = OfficeJob(role="sales", decisions=2, retries=retries)
        job.begin(**ROW)
        for reply in replies:
            assert "not usable" in str(job.reply(reply))
        value = job.finish()
        assert job.over
        return value

    assert worth(3, *begun) == worth(0)


def test_a_seat_tells_the_model_what_was_wrong_with_its_call():
    seat = OfficeSeat(role="marketing", ahead=0, retries=1)
    seat.reset(**ROW)
    assert "Your reply was not usable: RESEARCH_MARKET cannot have the target" in seat.act("RESEARCH_MARKET", "the moon")
    assert "Needs: retail" in seat.act("RESEARCH_MARKET", "retail")


def test_retries_of_a_job_have_a_range():
    with pytest.raises(ConfigError, match=r"retries must be in 0\.\.8, got 9"):
        OfficeJob(retries=9)
