"""A buyer and a seller with private limits agree on a price, or do not. `onthejob train --env examples/negotiation.py`."""

from onthejob import Env, Next, Observation, Split, Task


class Negotiation(Env):
    roles = ("buyer", "seller")
    max_turns, max_new_tokens = 8, 6
    headline = ("reward", "deal")
    highest: int = 20
    """Highest price that can be offered."""

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=200)

    def reset(self, task: Task) -> Next:
        spread = self.highest * 3 // 4
        # Each role's limit: what the thing is worth to the buyer, and what it cost the seller. In some tasks no price suits both.
        self.limits = {"buyer": self.highest - task.draw("buyer") % spread, "seller": 1 + task.draw("seller") % spread}
        self.offer, self.left = 0, self.max_turns
        return self.asked(self.roles[task.draw("first") % 2])

    def asked(self, role: str) -> Next:
        limit, other = self.limits[role], "seller" if role == "buyer" else "buyer"
        aim = f"Buy below {limit}." if role == "buyer" else f"Sell above {limit}."
        said = f"The {other} offers {self.offer}: offer N or accept?" if self.offer else "Begin: offer N."
        view = {"limit": limit, "offer": self.offer, "left": self.left, "highest": self.highest}
        return self.ask(role, f"{aim} {said}", legal=self.legal(), view=view)

    def legal(self) -> list[str]:
        return ["accept"] * bool(self.offer) + [f"offer {price}" for price in range(1, self.highest + 1)]

    def step(self, reply: str) -> Next:
        self.left -= 1
        reply = reply.strip()
        if reply not in self.legal():
            return self.end(rewards={self.role: -1.0}, metrics={"deal": 0.0}, valid=False)
        if reply == "accept":
            gains = {role: float(gain(role, self.offer, limit)) for role, limit in self.limits.items()}
            return self.end(rewards=gains, metrics={"deal": 1.0})
        if not self.left:
            return self.end(reward=0.0, metrics={"deal": 0.0})
        self.offer = int(reply.removeprefix("offer "))
        return self.asked("seller" if self.role == "buyer" else "buyer")

    def players(self):
        return {"fair": fair}


def gain(role: str, price: int, limit: int) -> int:
    """Coins that a role with this limit gains by a deal at this price."""
    return limit - price if role == "buyer" else price - limit


def fair(seen: Observation, seed: int) -> str:
    """Asks for a gain that falls to nothing by the last turn, and accepts any offer that gives as much."""
    limit, offer, wanted = seen.view["limit"], seen.view["offer"], seen.view["left"] // 2
    if offer and gain(seen.actor, offer, limit) >= wanted:
        return "accept"
    return f"offer {max(1, limit - wanted) if seen.actor == 'buyer' else min(seen.view['highest'], limit + wanted)}"
