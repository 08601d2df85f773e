import json

WANTED = {"north": 215, "south": 95, "west": 40}
try:
    with open("/app/totals.json") as file:
        found = json.load(file)
except (OSError, ValueError):
    found = {}
right = sum(found.get(region) == total for region, total in WANTED.items()) if isinstance(found, dict) else 0
print(json.dumps({"reward": right / len(WANTED), "regions": right}))
