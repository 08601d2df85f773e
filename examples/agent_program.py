"""An agent program as it would run against a hosted model: it asks until the sum is right, at most three times.

onthejob train --env 'program:python examples/agent_program.py' --name sums
"""

import os
import random
from typing import Any

from openai import OpenAI

ROUNDS = 3


def main() -> None:
    """Ask for a sum, say what is wrong, and print the reward: 1 at once, less after a hint, 0 without the sum."""
    client = OpenAI()  # address and key from OPENAI_BASE_URL and OPENAI_API_KEY
    draw = random.Random(int(os.environ.get("ONTHEJOB_SEED", "0")))
    first, second = draw.randint(2, 9), draw.randint(2, 9)
    messages: list[Any] = [{"role": "user", "content": f"{first} + {second} = ? Reply with the number."}]
    for number in range(ROUNDS):
        reply = client.chat.completions.create(model="agent", messages=messages).choices[0].message.content or ""
        if reply.strip() == str(first + second):
            print(1 - number / ROUNDS)
            return
        hint = "more" if reply.strip().isdecimal() and int(reply.strip()[:9]) < first + second else "not that"
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"It is {hint}. Try again."}]
    print(0.0)


if __name__ == "__main__":
    main()
