"""A buyer and a seller with private limits agree on a price, or do not. `onthejob train --env examples/negotiation.py`."""

from onthejob import Env, Next, Observation, Split, Task
from onthejob.keys import keyed_choice, keyed_seed


class Negotiation(Env):
    roles = ("buyer", "seller")
    max_turns, max_new_tokens = 4, 6
    headline = ("reward", "deal")
    highest: int = 20
    """Highest price that can be offered."""

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=200)

    def reset(self, task: Task) -> Next:
        spread = self.highest * 3 // 5
        # What the thing is worth to the buyer, and what it cost the seller. In some tasks no price suits both.
        self.limits = {"buyer": self.highest - task.draw("buyer") % spread, "seller": 1 + task.draw("seller") % spread}
        self.offer, self.left = 0, self.max_turns
        return self.asked(self.roles[task.draw("first") % 2])

    def asked(self, role: str) -> Next:
        limit, other, worth = self.limits[role], "seller" if role == "buyer" else "buyer", self.gain(role, self.offer)
        aim = f"Buy below {limit}." if role == "buyer" else f"Sell above {limit}."
        said = f"The {other} offers {self.offer}. " if self.offer else ""
        moves = f"Accept to gain {worth}, or offer N." if self.offer and worth > 0 else "Offer N."
        # All that is known is in the request, so each begins a context of its own, which is short.
        return self.ask(role, f"{aim} {said}{moves}", legal=self.legal(role), fresh=True)

    def gain(self, role: str, price: int) -> int:
        return self.limits[role] - price if role == "buyer" else price - self.limits[role]

    def legal(self, role: str) -> list[str]:
        prices = [price for price in range(1, self.highest + 1) if self.gain(role, price) > 0]
        return ["accept"] * (self.offer in prices) + [f"offer {price}" for price in prices]

    def step(self, reply: str) -> Next:
        reply, self.left = reply.strip(), self.left - 1
        legal = self.legal(self.role)
        usable = reply == "accept" or (reply.startswith("offer ") and reply[6:].isdecimal())
        if reply == "accept" and reply in legal:
            return self.end(rewards={role: float(self.gain(role, self.offer)) for role in self.roles}, metrics={"deal": 1.0})
        if not self.left:
            return self.end(rewards={} if usable else {self.role: -0.2}, metrics={"deal": 0.0}, valid=usable)
        if reply not in legal:
            # A move that is not possible now is a usable reply that costs a turn; anything else is unusable.
            return self.tell("Not possible.", reward=-0.2) if usable else self.invalid("Offer N or accept.", reward=-0.2)
        self.offer = int(reply.removeprefix("offer "))
        return self.asked("seller" if self.role == "buyer" else "buyer")

    def players(self):
        return {"easy": easy}


def easy(seen: Observation, seed: int) -> str:
    """Accepts every other offer that it can accept, and offers any price at which it gains."""
    legal = seen.view["legal"]
    return "accept" if legal[0] == "accept" and keyed_seed(seed, "accept") % 2 else keyed_choice(legal, seed, "offer")
