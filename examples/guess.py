"""Find a number: the whole of an environment. `onthejob train --env examples/guess.py`."""

from onthejob import Env, Next, Split, Task


class Guess(Env):
    roles = ("guesser",)
    max_turns, max_new_tokens = 3, 4
    highest: int = 9  # an option: --env.highest 20

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=200)

    def reset(self, task: Task) -> Next:
        self.low, self.high = 1, self.highest
        return self.ask("guesser", f"Guess my number: {self.low} to {self.high}. Digits only.", legal=self.numbers())

    def numbers(self) -> list[str]:
        return [str(number) for number in range(self.low, self.high + 1)]

    def step(self, reply: str) -> Next:
        if reply.strip() not in self.numbers():
            return self.invalid(f"Not a number from {self.low} to {self.high}.", reward=-0.2)
        if (guess := int(reply.strip())) == (secret := self.rng("secret").randint(self.low, self.high)):
            return self.end(reward=1.0, metrics={"found": 1.0})
        self.low, self.high = (guess + 1, self.high) if guess < secret else (self.low, guess - 1)
        return self.tell(f"It is one of {self.low} to {self.high}.", legal=self.numbers())

    def players(self):
        return {"halving": lambda seen, seed: seen.view["legal"][len(seen.view["legal"]) // 2]}
