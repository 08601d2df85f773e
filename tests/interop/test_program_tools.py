"""Tools of agent programs: OpenAI's client and Agents SDK call functions in both protocols, whole and streamed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.calls import write_call, write_calls
from onthejob.envs.running import Running, running
from onthejob.interop.program import Program
from onthejob.interop.program_refusal import RequestRefused
from onthejob.interop.program_talk import answer, earlier, read_chat, read_response
from onthejob.plugins import resolve
from onthejob.types import Message, Split, ToolCall

TOOL = {"type": "function", "function": {"name": "price", "description": "Of a good.", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "?"}
BODY: dict[str, Any] = {"model": "agent", "messages": [USER], "tools": [TOOL]}
TWO = write_calls("So:", [ToolCall("price", {"good": "egg"}), ToolCall("price", {"good": "f\u00efg"})])


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    """Starts the first episode of a program's text."""
    made: list[Program] = []

    def start(text: str) -> Running:
        file = tmp_path / f"program{len(made)}.py"
        file.write_text(text, encoding="utf-8")
        env = resolve(f"program:{shlex.join([sys.executable, str(file)])}")()
        assert isinstance(env, Program)
        env.open()
        made.append(env)
        run = running(env)
        run.reset(env.tasks(Split.TRAIN)[0])
        return run

    yield start
    for env in made:
        env.close()


def seen(run: Running) -> list[tuple[str, str]]:
    """What the present request adds to its context, behind `fresh` where it begins one."""
    assert run._pending is not None
    told = [(message.role, message.content) for message in run._pending.messages]
    return [("fresh", ""), *told] if run._pending.fresh else told


CHAT = """
import json
from openai import OpenAI

client = OpenAI()
tool = {"type": "function", "function": {"name": "price", "description": "Of a good.", "strict": True, "parameters": {
    "type": "object", "properties": {"good": {"type": "string"}}, "required": ["good"], "additionalProperties": False}}}
talk = [{"role": "user", "content": "Egg and fig?"}]
whole = client.chat.completions.create(model="m", messages=talk, tools=[tool], tool_choice="auto", parallel_tool_calls=True)
choice = whole.choices[0]
assert choice.finish_reason == "tool_calls", choice
talk.append(choice.message)
for call in reversed(choice.message.tool_calls):
    good = json.loads(call.function.arguments)["good"]
    talk.append({"role": "tool", "tool_call_id": call.id, "content": f"{good} costs {len(good)}"})
with client.chat.completions.stream(model="m", messages=talk, tools=[tool]) as stream:
    for event in stream:
        pass
    choice = stream.get_final_completion().choices[0]
assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
call = choice.message.tool_calls[0]
assert call.function.parsed_arguments == {"good": "date"}, call
talk += [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}]},
    {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "none"}]},
]
choice = client.chat.completions.create(model="m", messages=talk, tools=[tool]).choices[0]
assert choice.finish_reason == "stop" and choice.message.tool_calls is None, choice
talk += [choice.message, {"role": "user", "content": "Without tools?"}]
print(len(client.chat.completions.create(model="m", messages=talk, tools=[tool], tool_choice="none").choices[0].message.content))
"""


@pytest.mark.slow
def test_the_client_of_openai_calls_functions_in_chat_completions(begin: Callable[[str], Running]):
    pytest.importorskip("openai")
    run = begin(CHAT)
    assert seen(run) == [("fresh", ""), ("user", "Egg and fig?")]
    assert run._pending is not None
    assert [tool.name for tool in run._pending.tools] == ["price"]
    run.step(TWO)
    # Results stand in the order of the calls, and the context continues.
    assert seen(run) == [("tool", "egg costs 3"), ("tool", "f\u00efg costs 3")]
    run.step('{"name": "price", "parameters": {"good": "date"}}')
    assert seen(run) == [("tool", "none")]
    run.step('{"name": "fly", "arguments": {}}')
    # The tools are hidden, so the context is another one.
    assert seen(run)[0] == ("fresh", "")
    assert seen(run)[-1] == ("user", "Without tools?")
    assert run.step("12345").rewards == {"agent": 5.0}


RESPONSES = """
import json
from openai import OpenAI

client = OpenAI()
tool = {"type": "function", "name": "price", "description": "Of a good.", "parameters": {"type": "object", "properties": {}}}
first = client.responses.create(model="m", input="Egg and fig?", tools=[tool])
calls = [item for item in first.output if item.type == "function_call"]
assert first.output_text == "So:" and [json.loads(call.arguments)["good"] for call in calls] == ["egg", "f\u00efg"], first
results = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
with client.responses.stream(model="m", input=results, previous_response_id=first.id, tools=[tool]) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed", kinds
(call,) = final.output
listed = [{"role": "user", "content": "Egg and fig?"}, *first.output, *results, call,
          {"type": "function_call_output", "call_id": call.call_id, "output": "4"}]
print(len(client.responses.create(model="m", input=listed, tools=[tool]).output_text))
"""


@pytest.mark.slow
def test_the_client_of_openai_calls_functions_in_responses(begin: Callable[[str], Running]):
    pytest.importorskip("openai")
    run = begin(RESPONSES)
    assert seen(run) == [("fresh", ""), ("user", "Egg and fig?")]
    run.step(TWO)
    assert seen(run) == [("tool", "3"), ("tool", "3")]
    run.step(write_call("price", good="date"))
    assert seen(run) == [("tool", "4")]
    assert run.step("four").rewards == {"agent": 4.0}


AGENTS = """
import asyncio
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

@function_tool
def price(good: str) -> str:
    '''The price of a good.'''
    return str(len(good))

model = OpenAIChatCompletionsModel("m", AsyncOpenAI()) if CHAT else "m"
agent = Agent(name="Clerk", instructions="You shop.", model=model, tools=[price])

async def main():
    whole = await Runner.run(agent, "Egg?")
    streamed = Runner.run_streamed(agent, "And a fig?")
    async for event in streamed.stream_events():
        pass
    print(float(whole.final_output) + float(streamed.final_output))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True], ids=["responses", "chat completions"])
def test_the_agents_sdk_with_a_function_tool_whole_and_streamed(begin: Callable[[str], Running], chat: bool):
    pytest.importorskip("agents", reason="openai-agents is not installed")
    run = begin(AGENTS.replace("CHAT", str(chat)))
    assert seen(run) == [("fresh", ""), ("system", "You shop."), ("user", "Egg?")]
    run.step(f"Let me look.\n{write_call('price', good='egg')}")
    assert seen(run) == [("tool", "3")]
    run.step("3")
    assert seen(run) == [("fresh", ""), ("system", "You shop."), ("user", "And a fig?")]
    run.step(TWO)
    assert seen(run) == [("tool", "3"), ("tool", "3")]
    assert run.step("4").rewards == {"agent": 7.0}


def test_a_program_is_given_calls_and_sends_results_in_any_order():
    message = answer(read_chat(BODY, ["agent"]), TWO, 3)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in message["tool_calls"]]
    asked = read_chat({**BODY, "messages": [USER, message, *results[::-1]]}, ["agent"])
    assert asked.messages[1:] == (Message("assistant", TWO), Message("tool", "c00030000"), Message("tool", "c00030001"))


def test_a_reply_with_a_call_of_another_function_is_text():
    for reply in ('{"name": "fly", "arguments": {}}', f"{write_call('price')}{write_call('fly')}", "<tool_call>{"):
        choice = answer(read_chat(BODY, ["agent"]), reply, 0)["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", reply)
        assert "tool_calls" not in choice["message"]
    hidden = read_chat({**BODY, "tool_choice": "none"}, ["agent"])
    assert (hidden.tools, answer(hidden, TWO, 0)["choices"][0]["message"]["content"]) == ((), TWO)
    assert read_chat({**BODY, "tool_choice": "required"}, ["agent"]).ignored == ("tool_choice",)


CALL = {"id": "a", "type": "function", "function": {"name": "price", "arguments": "{}"}}
MADE = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": [{"type": "web_search"}]}, "only functions are offered"),
        ({"tools": "price"}, "tools must be a list"),
        ({"tools": [{"type": "function", "function": {}}]}, "needs a name"),
        ({"tools": [TOOL, TOOL]}, "two functions of one name"),
        ({"functions": [{"name": "f"}]}, "Pass them as tools"),
        ({"messages": [USER, MADE, USER]}, "the call 'a' has no result"),
        ({"messages": [USER, MADE]}, "the call 'a' has no result"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "b", "content": ""}]}, "'b' is no call of the reply before it"),
        ({"messages": [USER, {**MADE, "tool_calls": [{"id": "a"}]}]}, "an object with id and function"),
        (
            {"messages": [USER, {**MADE, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "["}}]}]},
            "as JSON text",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(RequestRefused, match=said) as refused:
        read_chat({**BODY, **changes}, ["agent"])
    assert refused.value.status == 400


def test_a_response_continues_with_the_results_of_its_calls():
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    first = read_response({"model": "m", "input": "?", "tools": [tool]}, ["agent"], {})
    known = {"resp_0": earlier(first, TWO, 0)}
    items = [item for item in answer(first, TWO, 0)["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "3"} for item in items]
    body = {"model": "m", "previous_response_id": "resp_0", "tools": [tool]}
    asked = read_response({**body, "input": results}, ["agent"], known)
    assert asked.messages == (Message("user", "?"), Message("assistant", TWO), Message("tool", "3"), Message("tool", "3"))
    with pytest.raises(RequestRefused, match="has no result"):
        read_response({**body, "input": results[:1]}, ["agent"], known)
    with pytest.raises(RequestRefused, match="has no result"):
        read_response({**body, "input": "And?"}, ["agent"], known)
    assert json.loads(items[1]["arguments"]) == {"good": "f\u00efg"}
