"""Families of the indie game developer: sprites, levels, dialogue, balance."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import ANIMALS, COLORS, FIRST_NAMES, RESULTS, SENTENCES, file_in
from onthejob.envs.claw.keyed_choices import Draw

JOBS = ("music", "art", "story", "testing", "voices", "sound", "animation", "levels")
STATS = ("player_speed", "jump_height", "enemy_count", "max_health", "gravity", "coin_value", "fire_rate", "lives")
LINES = (
    "Where is the lantern?",
    "I saw a light in the cave.",
    "Do not wake the bear.",
    "The bridge is broken.",
    "Take this key.",
    "We must hurry.",
    "It smells like rain.",
    "Nobody lives here any more.",
    "The map shows another door.",
    "Follow the river.",
)


def sort_sprites(s: Scene, d: Draw) -> None:
    """Move the loose images into the sprite folder."""
    kind = d.pick(("sprites", "tiles", "icons", "portraits", "images", "enemies"))
    tag = d.pick(("", "-new", "-2d", "-old", "-hd", "-v2", "-small", "-big"))
    folder = f"{d.pick(('', 'assets/', 'art/', 'game/', 'res/', 'media/'))}{kind}{tag}"
    animal, ending = d.pick(ANIMALS), d.pick(("png", "gif", "webp", "bmp", "svg"))
    images = [f"{name}.{ending}" for name in d.some(ANIMALS, d.number(2, 4))]
    s.stub(*images)
    s.text("story.txt", [f"The {animal} sleeps."])
    s.say(
        f"Create {folder} and move all .{ending} files of the main folder into it.",
        f"Move every .{ending} file that lies at the top into {folder}, which does not exist yet.",
        f"The .{ending} files belong into the new folder {folder}. Please move them there.",
        f"Please tidy up: {folder} should be a new folder with all the .{ending} files that lie around here.",
    )
    s.do(f"mkdir -p {folder}", f"mv *.{ending} {folder}/")
    s.exists(*(f"{folder}/{image}" for image in images[:3]))
    s.gone(*images[:2])
    s.unchanged("story.txt")


def tune_balance(s: Scene, d: Draw) -> None:
    """Change one number in the balance file."""
    stats = d.some(STATS, d.number(3, 5))
    values = d.some(range(2, 400), len(stats))
    name, new = stats[0], d.number(400, 999)
    path = d.pick(("balance.json", "game.json", "data/tuning.json"))
    pairs = d.shuffled(list(zip(stats, values, strict=True)))
    body = [f'  "{stat}": {value}{"," if i < len(pairs) - 1 else ""}' for i, (stat, value) in enumerate(pairs)]
    s.text(path, ["{", *body, "}"])
    s.say(
        f"In {path}, set {name} to {new} (it is {values[0]}).",
        f"Change {name} in {path} from {values[0]} to {new}.",
        f"Playtesters want {name} to be {new} in place of {values[0]}; edit {path}.",
    )
    line = f'"{name}": {values[0]}'
    s.do(f"sed -i 's/{line}/\"{name}\": {new}/' {path}")
    s.exact(path, ["{", *(text.replace(line, f'"{name}": {new}') for text in body), "}"])


def add_credit(s: Scene, d: Draw) -> None:
    """Add a person to the credits."""
    people = d.some(FIRST_NAMES, d.number(3, 5))
    lines = [f"{name} - {d.pick(JOBS)}" for name in people[1:]]
    new, path = f"{people[0]} - {d.pick(JOBS)}", file_in(d, ("data", "docs"), ("credits", "thanks", "team"), "txt")
    s.text(path, lines)
    s.say(
        f"Add the line '{new}' to the end of {path}.",
        f"{path} needs one more line at the end: '{new}'.",
        f"Please append '{new}' to {path}.",
    )
    s.do(f"echo '{new}' >> {path}")
    s.exact(path, [*lines, new])


def voice_script(s: Scene, d: Draw) -> None:
    """Make the voice scripts of two speakers out of a dialogue."""
    first, second, third = d.some(FIRST_NAMES, 3)
    said = [f"{d.pick((first, second, third))}: {line}" for line in d.some(LINES, d.number(6, 8))]
    said += [f"{first}: Hello.", f"{second}: Good night."]
    path = file_in(d, ("story", "text"), ("dialogue", "scene", "script"), "txt")
    folder = d.pick((*RESULTS, "voices", "recording", "speakers"))
    s.text(path, said)
    own = {name: [line for line in said if line.startswith(f"{name}:")] for name in (first, second)}
    s.say(
        f"{path} has lines 'NAME: text'. Save the lines of {first} to {folder}/{first}.txt and those of {second} to "
        f"{folder}/{second}.txt, and write how many lines {first} has to {folder}/count.txt.",
        f"Split {path} for the recording: {first}'s lines into {folder}/{first}.txt, {second}'s lines into "
        f"{folder}/{second}.txt, and the number of {first}'s lines into {folder}/count.txt.",
        f"{first} and {second} need their parts of {path} (lines 'NAME: text'), each in a file of their own: "
        f"{folder}/{first}.txt and {folder}/{second}.txt. Write to {folder}/count.txt how many lines {first} speaks.",
    )
    s.do(f"mkdir -p {folder}", *(f"grep '^{name}:' {path} > {folder}/{name}.txt" for name in (first, second)))
    s.do(f"wc -l < {folder}/{first}.txt > {folder}/count.txt")
    s.exact(f"{folder}/{first}.txt", own[first])
    s.exact(f"{folder}/{second}.txt", own[second])
    s.value(f"{folder}/count.txt", len(own[first]))
    s.unchanged(path)


def reorder_levels(s: Scene, d: Draw) -> None:
    """Swap two levels and update the level list."""
    first, second = d.some(range(1, 31), 2)
    folder, stem = d.pick(("levels", "maps", "stages", "worlds")), d.pick(("level", "map", "stage", "room"))
    a, b, log = f"{folder}/{stem}{first}.txt", f"{folder}/{stem}{second}.txt", f"{folder}/{d.pick(('notes', 'log', 'order'))}.txt"
    body = {path: [f"{d.pick(COLORS)} {d.pick(ANIMALS)} {d.number(1, 99)}" for _ in range(3)] for path in (a, b)}
    for path, lines in body.items():
        s.text(path, lines)
    note = f"swapped {first} and {second}"
    notes = s.text(log, [d.pick(SENTENCES)])
    s.say(
        f"Swap the files {a} and {b}, so that each has the other's content. Then append '{note}' to {log}.",
        f"The levels are in the wrong order: exchange {a} and {b}, and add the line '{note}' to {log}.",
        f"What is in {a} should be in {b}, and the other way round. Also add '{note}' as the last line of {log}.",
    )
    s.do(f"mv {a} {folder}/swap.tmp", f"mv {b} {a}", f"mv {folder}/swap.tmp {b}")
    s.do(f"echo '{note}' >> {log}")
    s.exact(a, body[b])
    s.exact(b, body[a])
    s.exact(log, [*notes.splitlines(), note])


def loot_table(s: Scene, d: Draw) -> None:
    """Sort a loot table by value and report its best items."""
    values = d.some(range(10, 900), d.number(6, 10))
    items = [f"{d.pick(COLORS)}-{d.pick(ANIMALS)}-{i}" for i in range(len(values))]
    rows = [f"{item},{value}" for item, value in zip(items, values, strict=True)]
    path, count = file_in(d, ("data", "balance"), ("loot", "items", "drops", "prices"), "csv"), d.number(2, 5)
    folder = d.pick((*RESULTS, "shop", "ranking"))
    s.text(path, rows)
    ranked = sorted(rows, key=lambda row: -int(row.split(",")[1]))
    s.say(
        f"Sort {path} (name,value) by value, highest first, into {folder}/sorted.csv. Save its first {count} lines as "
        f"{folder}/top.csv and write only the name of the best item to {folder}/best.txt.",
        f"Write the lines of {path} (name,value) to {folder}/sorted.csv ordered by value from high to low, the {count} best "
        f"lines to {folder}/top.csv, and the name of the most valuable item to {folder}/best.txt.",
        f"Rank the items of {path} (name,value): all its lines from the highest value to the lowest in {folder}/sorted.csv, the "
        f"first {count} of them in {folder}/top.csv, and in {folder}/best.txt just the name of the item that comes first.",
    )
    s.do(f"mkdir -p {folder}", f"sort -t, -k2 -n -r {path} > {folder}/sorted.csv")
    s.do(
        f"head -n {count} {folder}/sorted.csv > {folder}/top.csv",
        f"head -n 1 {folder}/sorted.csv | cut -d, -f1 > {folder}/best.txt",
    )
    s.exact(f"{folder}/sorted.csv", ranked)
    s.exact(f"{folder}/top.csv", ranked[:count])
    s.value(f"{folder}/best.txt", ranked[0].split(",")[0])
    s.unchanged(path)


def build_demo(s: Scene, d: Draw) -> None:
    """Put together a demo of the game."""
    version, hero, color = f"0.{d.number(1, 30)}", d.pick(ANIMALS), d.pick(COLORS)
    keep, drop = d.some(range(1, 9), 2)
    settings = ["title=My game", "demo=no", f"hero={hero}"]
    s.text("settings.cfg", settings)
    s.text(f"levels/level{keep}.txt", [f"{color} {hero}"])
    s.text(f"levels/level{drop}.txt", [f"{d.pick(COLORS)} boss"])
    s.stub(f"assets/{hero}.png", "assets/intro.ogg")
    s.text("debug.log", ["frame 1", "frame 2"])
    folder = f"{d.pick(('demo', 'dist', 'out'))}-{version}"
    s.ask(
        (f"Build demo {version}:", f"Put the demo {version} together:", f"Please prepare the {version} demo:"),
        f"create {folder}/assets and {folder}/levels",
        f"copy settings.cfg into {folder}/ and change demo=no to demo=yes in the copy",
        (
            f"copy levels/level{keep}.txt into {folder}/levels/, but not level{drop}",
            f"of the levels only levels/level{keep}.txt is copied into {folder}/levels/",
        ),
        f"copy assets/{hero}.png and assets/intro.ogg into {folder}/assets/",
        (
            f"write 'version {version}' to {folder}/version.txt and add the line 'hero {hero}' to it",
            f"make {folder}/version.txt with the lines 'version {version}' and 'hero {hero}'",
        ),
        (
            "delete debug.log",
            "debug.log is no longer needed: delete it",
        ),
    )
    s.do(f"mkdir -p {folder}/assets {folder}/levels", f"cp settings.cfg {folder}/")
    s.do(f"sed -i 's/demo=no/demo=yes/' {folder}/settings.cfg")
    s.do(
        f"cp levels/level{keep}.txt {folder}/levels/",
        f"cp assets/{hero}.png {folder}/assets/",
        f"cp assets/intro.ogg {folder}/assets/",
    )
    s.do(f"echo 'version {version}' > {folder}/version.txt", f"echo 'hero {hero}' >> {folder}/version.txt", "rm debug.log")
    s.exact(f"{folder}/settings.cfg", [line.replace("demo=no", "demo=yes") for line in settings])
    s.exact(f"{folder}/levels/level{keep}.txt", f"{color} {hero}")
    s.exists(f"{folder}/assets/{hero}.png", f"{folder}/assets/intro.ogg")
    s.exact(f"{folder}/version.txt", [f"version {version}", f"hero {hero}"])
    s.gone("debug.log")
    s.unchanged("settings.cfg", f"levels/level{drop}.txt")


def score_board(s: Scene, d: Draw) -> None:
    """Compute a score board from the played games."""
    players = d.some(FIRST_NAMES, 4)
    games = [(d.pick(players), d.number(10, 500)) for _ in range(d.number(11, 17))]
    games += [(player, 500 + 501 * i + d.number(1, 400)) for i, player in enumerate(players)]
    games = d.shuffled(games)
    scores = file_in(d, ("data", "saves"), ("scores", "games", "points", "matches"), "txt")
    folder = d.pick((*RESULTS, "board", "ranking"))
    s.text(scores, [f"{player} {points}" for player, points in games])
    sums = {player: sum(points for name, points in games if name == player) for player in players}
    best = {player: max(points for name, points in games if name == player) for player in players}
    one = d.pick(players)
    ranking = sorted(players, key=lambda player: (-sums[player], player))
    played = sum(name == one for name, _ in games)
    s.ask(
        (
            f"{scores} has lines 'NAME POINTS', one per game. Make a score board:",
            f"Evaluate {scores} (lines 'NAME POINTS'):",
            f"Who leads? {scores} has one line 'NAME POINTS' per game. Please do this:",
        ),
        (
            f"write the names of all players, sorted, to {folder}/players.txt, and their number to {folder}/n-players.txt",
            f"{folder}/players.txt gets each player's name once, sorted, and {folder}/n-players.txt how many they are",
        ),
        f"write a line 'NAME SUM' per player with the sum of the points to {folder}/totals.txt, highest sum first",
        (
            f"write a line 'NAME BEST' per player with the highest points of one game to {folder}/best.txt, sorted by name",
            f"{folder}/best.txt gets a line 'NAME BEST' per player, sorted by name; BEST are the most points in one game",
        ),
        f"write the number of games {one} has played to {folder}/games.txt",
        (
            f"write the name of the player with the highest sum to {folder}/champion.txt",
            f"put the name of the player who has the most points in all into {folder}/champion.txt",
        ),
    )
    s.do(f"head -n 3 {scores}", f"mkdir -p {folder}")
    s.do(
        f"cut -d' ' -f1 {scores} | sort -u > {folder}/players.txt",
        f"wc -l < {folder}/players.txt > {folder}/n-players.txt",
    )
    s.do(f"awk '{{s[$1]+=$2}} END {{for (k in s) print k, s[k]}}' {scores} | sort -k2 -n -r > {folder}/totals.txt")
    s.do(f"awk '$2>m[$1] {{m[$1]=$2}} END {{for (k in m) print k, m[k]}}' {scores} | sort > {folder}/best.txt")
    s.do(
        f"grep -c '^{one} ' {scores} > {folder}/games.txt",
        f"head -n 1 {folder}/totals.txt | cut -d' ' -f1 > {folder}/champion.txt",
    )
    s.exact(f"{folder}/players.txt", sorted(players))
    s.matches(f"{folder}/n-players.txt", rf"^\s*{len(players)}\s*$")
    s.exact(f"{folder}/totals.txt", [f"{player} {sums[player]}" for player in ranking])
    s.exact(f"{folder}/best.txt", [f"{player} {best[player]}" for player in sorted(players)])
    s.value(f"{folder}/games.txt", played)
    s.matches(f"{folder}/champion.txt", rf"^\s*{ranking[0]}\s*$")
    s.unchanged(scores)


FAMILIES = (
    *easy("indie-game-dev", sort_sprites, tune_balance, add_credit),
    *medium("indie-game-dev", voice_script, reorder_levels, loot_table),
    *hard("indie-game-dev", build_demo, score_board),
)
