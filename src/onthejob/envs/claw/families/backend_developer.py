"""Families of the backend developer: configuration, logs, migrations, services."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import HOSTS, RESULTS, SERVICES, file_in
from onthejob.envs.claw.keyed_choices import Draw

KEYS = ("PORT", "TIMEOUT", "WORKERS", "POOL_SIZE", "RETRIES", "CACHE_TTL", "PAGE_SIZE", "QUEUE_LIMIT")
LOG_MESSAGES = (
    "connection opened",
    "connection closed",
    "query took too long",
    "user not found",
    "token refreshed",
    "payload too large",
    "cache rebuilt",
    "upstream timed out",
    "job finished",
    "disk almost full",
)
TABLES = ("users", "orders", "invoices", "sessions", "products", "coupons", "audits", "addresses", "webhooks", "refunds")


def app_log(d: Draw, count: int) -> list[str]:
    """Lines such as `09:41:02 ERROR search: user not found`."""
    lines = []
    for _ in range(count):
        time = f"{d.number(8, 19):02}:{d.number(0, 59):02}:{d.number(0, 59):02}"
        lines.append(f"{time} {d.pick(('INFO', 'INFO', 'WARN', 'ERROR'))} {d.pick(SERVICES)}: {d.pick(LOG_MESSAGES)}")
    return lines


def set_env_value(s: Scene, d: Draw) -> None:
    """Change one value of an environment file."""
    keys = d.some(KEYS, d.number(3, 6))
    before = {key: d.number(10, 9000) for key in keys}
    key, new = d.pick(keys), d.number(10, 9000)
    while new == before[key]:
        new = d.number(10, 9000)
    path = d.pick((".env", file_in(d, ("config", "env"), ("settings", "app", "local"), "env")))
    s.text(path, [f"{name}={value}" for name, value in before.items()])
    s.say(
        f"Set {key} to {new} in {path}.",
        f"In {path}, change the value of {key} to {new}. Leave the other lines alone.",
        f"{path} must say {key}={new}. Please fix it.",
        f"The value of {key} in {path} is wrong. It should be {new}.",
    )
    s.do(f"sed -i 's/^{key}=.*/{key}={new}/' {path}")
    s.exact(path, [f"{name}={new if name == key else value}" for name, value in before.items()])


def error_lines(s: Scene, d: Draw) -> None:
    """Save the log lines of one level."""
    lines = app_log(d, d.number(10, 18))
    level = d.pick(("ERROR", "WARN"))
    log = file_in(d, ("logs", "var", "trace"), ("app", "server", "service", "worker"), "log")
    out = file_in(d, (), ("found", "problems", "alerts", "lines"), d.pick(("txt", "out")))
    hits = [line for line in lines if f" {level} " in line]
    if not hits:
        lines.append(f"19:59:59 {level} {d.pick(SERVICES)}: {d.pick(LOG_MESSAGES)}")
        hits = lines[-1:]
    s.text(log, lines)
    s.say(
        f"Save all lines of {log} that contain {level} to {out}.",
        f"Copy the {level} lines of {log} into {out}, in the same order.",
        f"I need every {level} line from {log} in a file {out}.",
        f"Make {out} from {log}: only the lines with {level}, all of them.",
    )
    s.do(f"grep '{level}' {log} > {out}")
    s.exact(out, hits)
    s.unchanged(log)


def register_route(s: Scene, d: Draw) -> None:
    """Append one route to the list of routes."""
    services = d.some(SERVICES, d.number(4, 6))
    lines = [f"GET /{name} {name}.index" for name in services[1:]]
    path = file_in(d, ("config", "api"), ("routes", "endpoints", "urls"), "txt")
    line = f"{d.pick(('POST', 'PUT', 'DELETE'))} /{services[0]} {services[0]}.{d.pick(('create', 'update', 'remove'))}"
    s.text(path, lines)
    s.say(
        f"Append the line '{line}' to {path}.",
        f"Add '{line}' at the end of {path}.",
        f"Register a route: {path} needs '{line}' as its last line.",
    )
    s.do(f"echo '{line}' >> {path}")
    s.exact(path, [*lines, line])


def switch_config(s: Scene, d: Draw) -> None:
    """Back up a JSON configuration and change three of its values."""
    host, other = d.some(HOSTS, 2)
    port, new_port = d.number(3000, 5999), d.number(6000, 9000)
    path = d.pick(("config.json", "server.json", "settings.json"))
    lines = ["{", f'  "host": "{host}",', f'  "port": {port},', '  "debug": true,', f'  "workers": {d.number(2, 9)}', "}"]
    content = s.text(path, lines)
    s.say(
        f"Copy {path} to {path}.bak. Then in {path} set host to {other}, port to {new_port} and debug to false.",
        f"Keep a backup of {path} as {path}.bak, and change {path}: host {other}, port {new_port}, debug false.",
        f"{path} has to name host {other} and port {new_port}, with debug false. Before you edit it, copy it to {path}.bak.",
    )
    s.do(f"cp {path} {path}.bak", f"cat {path}")
    s.do(
        f"sed -i 's/{host}/{other}/' {path}",
        f"sed -i 's/{port}/{new_port}/' {path}",
        f"sed -i 's/true/false/' {path}",
    )
    s.exact(f"{path}.bak", content)
    s.contains(path, f'"host": "{other}"')
    s.contains(path, f'"port": {new_port}')
    s.exact(path, content.replace(host, other).replace(str(port), str(new_port)).replace("true", "false"))


def status_counts(s: Scene, d: Draw) -> None:
    """Count requests per status code in an access log."""
    codes = d.some((200, 201, 301, 404, 429, 500, 503), 4)
    lines = [f"GET /{d.pick(SERVICES)} status={d.pick(codes)}" for _ in range(d.number(16, 28))]
    log, folder = file_in(d, ("logs", "var"), ("access", "requests", "traffic"), "log"), d.pick((*RESULTS, "counts", "status"))
    s.text(log, lines)
    asked = codes[:3]
    count = {code: sum(line.endswith(f"status={code}") for line in lines) for code in asked}
    names = ", ".join(f"{folder}/{code}.txt" for code in asked)
    s.say(
        f"Count the lines of {log} with status={asked[0]}, status={asked[1]} and status={asked[2]} "
        f"and write the numbers to {names}.",
        f"For the codes {asked[0]}, {asked[1]} and {asked[2]}, write how many lines of {log} have status=CODE "
        f"to {folder}/CODE.txt.",
        f"How often does {log} have status={asked[0]}, status={asked[1]} and status={asked[2]}? Three files should hold the "
        f"number of such lines, in this order: {names}.",
    )
    s.do(f"mkdir -p {folder}", *(f"grep -c 'status={code}' {log} > {folder}/{code}.txt" for code in asked))
    for code in asked:
        s.value(f"{folder}/{code}.txt", count[code])
    s.unchanged(log)


def number_migrations(s: Scene, d: Draw) -> None:
    """Give migrations their numbers and write them into the index."""
    first, second, third = d.some(TABLES, 3)
    start = d.number(11, 80)
    old = [f"migrations/{verb}_{table}.sql" for verb, table in (("create", first), ("alter", second), ("drop", third))]
    new = [path.replace("migrations/", f"migrations/{start + i:04}_") for i, path in enumerate(old)]
    bodies = [f"CREATE TABLE {first} (id INT);", f"ALTER TABLE {second} ADD note TEXT;", f"DROP TABLE {third};"]
    for path, body in zip(old, bodies, strict=True):
        s.text(path, [body])
    renames = ", ".join(f"{a} to {b}" for a, b in zip(old, new, strict=True))
    s.say(
        f"Rename {renames}. Then write the names of the files in migrations, sorted, to index.txt.",
        f"Number the migrations: rename {renames}. After that list the folder migrations into index.txt.",
        f"These migrations need numbers: {renames}. When they are renamed, index.txt should hold the sorted names of the files "
        f"in migrations.",
    )
    s.do(*(f"mv {a} {b}" for a, b in zip(old, new, strict=True)))
    s.do("ls migrations > index.txt")
    for path, body in zip(new, bodies, strict=True):
        s.exact(path, body)
    s.gone(old[0])
    s.exact("index.txt", [path.removeprefix("migrations/") for path in new])


def service_scaffold(s: Scene, d: Draw) -> None:
    """Set up a new service from a template."""
    name, other = d.some(SERVICES, 2)
    port, workers, owner = d.number(4000, 8999), d.number(2, 16), d.pick(HOSTS)
    template = ["name=NAME", "port=PORT", "workers=1", "log=info"]
    registry = [f"{other} {d.number(2000, 3999)}"]
    s.text("templates/service.conf", template)
    s.text("registry.txt", registry)
    base = f"{d.pick(('services', 'apps'))}/{name}"
    conf = f"{base}/config/service.conf"
    s.ask(
        (f"Set up the service {name}:", f"We get a new service called {name}:", f"Please scaffold {name}:"),
        (
            f"create the folders {base}/config and {base}/src",
            f"there should be two folders, {base}/src and {base}/config",
        ),
        f"copy templates/service.conf to {conf} and replace NAME by {name}, PORT by {port}, and workers=1 by workers={workers}",
        (
            f"write '# {name}' to {base}/README.md and add the line 'owner: {owner}' to it",
            f"make {base}/README.md with two lines, '# {name}' and 'owner: {owner}'",
        ),
        (
            f"append the line '{name} {port}' to registry.txt",
            f"registry.txt needs '{name} {port}' as its last line",
        ),
    )
    s.do(f"mkdir -p {base}/config {base}/src", f"cp templates/service.conf {conf}")
    s.do(
        f"sed -i 's/NAME/{name}/' {conf}",
        f"sed -i 's/PORT/{port}/' {conf}",
        f"sed -i 's/workers=1/workers={workers}/' {conf}",
    )
    s.do(f"echo '# {name}' > {base}/README.md", f"echo 'owner: {owner}' >> {base}/README.md")
    s.do(f"echo '{name} {port}' >> registry.txt")
    s.exists(f"{base}/src")
    s.exact(conf, [f"name={name}", f"port={port}", f"workers={workers}", "log=info"])
    s.exact(f"{base}/README.md", [f"# {name}", f"owner: {owner}"])
    s.exact("registry.txt", [*registry, f"{name} {port}"])
    s.unchanged("templates/service.conf")


def slow_endpoints(s: Scene, d: Draw) -> None:
    """Summarise a request log per endpoint."""
    names = d.some(SERVICES, d.number(3, 4))
    rows = [(f"/{d.pick(names)}", d.number(5, 900)) for _ in range(d.number(14, 22))]
    rows += [(f"/{name}", d.number(5, 900)) for name in names]
    log = file_in(d, ("data", "logs", "perf"), ("requests", "timings", "latency", "calls"), "csv")
    s.text(log, ["path,ms", *(f"{path},{ms}" for path, ms in rows)])
    limit, folder = d.number(15, 65) * 10, d.pick((*RESULTS, "slow"))
    slow = [f"{path},{ms}" for path, ms in rows if ms > limit]
    paths = sorted({path for path, _ in rows})
    total = [f"{path} {sum(ms for p, ms in rows if p == path)}" for path in paths]
    top = max(rows, key=lambda row: row[1])
    s.ask(
        (
            f"Summarise {log} (columns path and ms, with a header line):",
            f"I need numbers from {log} (path,ms; the first line is a header):",
            f"{log} has a header and lines path,ms. Work out:",
            f"Which endpoints are slow? Take {log} (header path,ms) and do this:",
        ),
        (
            f"write the different paths, sorted, to {folder}/paths.txt",
            f"{folder}/paths.txt gets each path once, in sorted order",
        ),
        f"write all data lines with more than {limit} ms to {folder}/slow.csv (same order, no header) "
        f"and their number to {folder}/n-slow.txt",
        f"write the sum of ms per path to {folder}/totals.txt, lines like '/name 1234', sorted by path",
        (
            f"write the largest ms value to {folder}/max.txt and the sum of all ms values to {folder}/sum.txt",
            f"put the sum of all ms values into {folder}/sum.txt and the highest one into {folder}/max.txt",
        ),
    )
    s.do(f"head -n 3 {log}", f"mkdir -p {folder}")
    s.do(f"tail -n +2 {log} | cut -d, -f1 | sort -u > {folder}/paths.txt")
    s.do(
        f"tail -n +2 {log} | awk -F, '$2 > {limit}' > {folder}/slow.csv",
        f"wc -l < {folder}/slow.csv > {folder}/n-slow.txt",
    )
    s.do(f"tail -n +2 {log} | awk -F, '{{s[$1]+=$2}} END {{for (k in s) print k, s[k]}}' | sort > {folder}/totals.txt")
    s.do(
        f"tail -n +2 {log} | cut -d, -f2 | sort -n | tail -n 1 > {folder}/max.txt",
        f"tail -n +2 {log} | awk -F, '{{s+=$2}} END {{print s}}' > {folder}/sum.txt",
    )
    s.exact(f"{folder}/paths.txt", paths)
    s.exact(f"{folder}/slow.csv", slow)
    s.value(f"{folder}/n-slow.txt", len(slow))
    s.exact(f"{folder}/totals.txt", total)
    s.value(f"{folder}/max.txt", top[1])
    s.value(f"{folder}/sum.txt", sum(ms for _, ms in rows))
    s.unchanged(log)


FAMILIES = (
    *easy("backend-developer", set_env_value, error_lines, register_route),
    *medium("backend-developer", switch_config, status_counts, number_migrations),
    *hard("backend-developer", service_scaffold, slow_endpoints),
)
