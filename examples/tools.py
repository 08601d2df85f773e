"""Look prices up and add them: an environment with a tool. `onthejob train --env examples/tools.py`."""

from onthejob import Env, Next, Split, Task
from onthejob.calls import write_call

GOODS = ("apple", "bread", "cheese", "dates", "eggs", "figs")


class Shop(Env):
    roles = ("clerk",)
    max_turns, max_new_tokens, bad_call_reward = 4, 32, -0.1

    def price(self, good: str) -> Next:
        """The price of a good, e.g. apple, in coins."""
        price = self.prices[good]  # an unknown good is answered with "Error: KeyError", and the model may call again
        if wanted := good in self.missing:
            self.missing, self.sum = [other for other in self.missing if other != good], self.sum + price
        return self.tell(str(price), view=self.seen(), reward=0.2 * wanted)

    tools = (price,)

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=200)

    def reset(self, task: Task) -> Next:
        self.prices, self.sum = {good: 1 + task.draw(good) % 5 for good in GOODS}, 0
        self.missing = [GOODS[task.draw("first") % 3], GOODS[3 + task.draw("second") % 3]]
        text = f"What do {' and '.join(self.missing)} cost? Look each price up, then reply with the sum in digits."
        legal = [*(write_call("price", good=good) for good in GOODS), *map(str, range(2, 11))]
        return self.ask("clerk", text, legal=legal, view=self.seen())

    def step(self, reply: str) -> Next:  # one without a call
        return self.end(reward=0.6 if not self.missing and reply.strip() == str(self.sum) else -0.1)

    def seen(self) -> dict[str, str]:
        return {"next": write_call("price", good=self.missing[0]) if self.missing else str(self.sum)}

    def players(self):
        return {"adder": lambda seen, seed: seen.view["next"]}
