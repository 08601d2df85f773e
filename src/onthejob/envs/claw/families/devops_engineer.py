"""Families of the DevOps engineer: logs, inventories, configuration, incidents."""

from __future__ import annotations

from onthejob.envs.claw.families.backend_developer import app_log
from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import CITIES, HOSTS, RESULTS, SERVICES, file_in
from onthejob.envs.claw.keyed_choices import Draw

REGIONS = tuple(f"{part}-{side}-{n}" for part in ("eu", "us", "ap") for side in ("west", "east") for n in (1, 2))


def delete_temporary(s: Scene, d: Draw) -> None:
    """Delete the files of one ending below a folder and keep the rest."""
    ending, kept = d.some(("tmp", "bak", "old", "cache", "swp", "part", "orig", "lock"), 2)
    folder = (
        f"{d.pick(('var', 'work', 'spool', 'uploads', 'srv', 'jobs'))}/{d.pick(SERVICES)}{d.pick(('', '', '-a', '-b', '-old'))}"
    )
    names = d.some(HOSTS, d.number(4, 6))
    below = d.pick(CITIES)
    doomed = [f"{folder}/{below if i % 2 else ''}/{name}.{ending}".replace("//", "/") for i, name in enumerate(names[:-2])]
    keep = [f"{folder}/{names[-2]}.{kept}", f"{folder}/{below}/{names[-1]}.conf"]
    for path in (*doomed, *keep):
        s.text(path, [f"{d.pick(CITIES)} {d.number(1, 999)}"])
    s.say(
        f"Delete all .{ending} files in {folder} and its subfolders, and keep everything else.",
        f"Clean up {folder} with its subfolders: remove every file that ends in .{ending}, nothing more.",
        f"Please remove the .{ending} files from the folder {folder} and the folders below it.",
        f"We no longer need the .{ending} files below {folder}; delete them at every depth and leave the rest.",
    )
    s.do(f"find {folder} -name '*.{ending}' -delete")
    s.gone(*doomed[:4])
    s.unchanged(*keep)


def bump_image(s: Scene, d: Draw) -> None:
    """Raise the version of one image in a compose file."""
    names = d.some(SERVICES, 3)
    tags = [f"{d.number(1, 9)}.{d.number(0, 20)}.{d.number(0, 9)}" for _ in names]
    name, old = names[0], tags[0]
    new = f"{int(old.split('.')[0]) + 1}.{d.number(0, 9)}.0"
    path = file_in(d, ("deploy", "stacks"), ("compose", "stack", "services"), d.pick(("yaml", "yml")))
    before = ["services:"]
    for service, tag in zip(d.shuffled(names), tags, strict=True):
        before += [f"  {service}:", f"    image: {service}:{tag}"]
    old = next(line.rpartition(":")[2] for line in before if f"image: {name}:" in line)
    s.text(path, before)
    s.say(
        f"In {path}, change the image {name}:{old} to {name}:{new}.",
        f"Update {name} in {path} from version {old} to {new}. Other services keep their versions.",
        f"{path} must use {name}:{new} in place of {name}:{old}.",
    )
    s.do(f"sed -i 's/{name}:{old}/{name}:{new}/' {path}")
    s.exact(path, [line.replace(f"{name}:{old}", f"{name}:{new}") for line in before])


def last_lines(s: Scene, d: Draw) -> None:
    """Save the end of a log."""
    lines, count = app_log(d, d.number(10, 20)), d.number(2, 8)
    log = file_in(d, ("logs", "var"), ("system", "daemon", "kernel", "boot"), "log")
    out = file_in(d, (), ("recent", "last", "ticket", "excerpt"), "txt")
    s.text(log, lines)
    s.say(
        f"Save the last {count} lines of {log} as {out}.",
        f"Copy the final {count} lines of {log} into {out}.",
        f"For the ticket I need the last {count} lines of {log} in {out}.",
        f"How does {log} end? Put its last {count} lines into {out}.",
    )
    s.do(f"tail -n {count} {log} > {out}")
    s.exact(out, lines[-count:])
    s.unchanged(log)


def host_inventory(s: Scene, d: Draw) -> None:
    """Take the hosts of two roles out of an inventory."""
    roles = d.some(("web", "db", "cache", "queue"), 3)
    hosts = [(f"{name}{d.number(1, 40)}", d.pick(roles)) for name in d.some(HOSTS, d.number(7, 11))]
    hosts += [("nova7", roles[0]), ("onyx3", roles[1])]
    path = file_in(d, ("infra", "sites"), ("inventory", "hosts", "machines"), "txt")
    folder = d.pick((*RESULTS, "groups", "by-role"))
    s.text(path, [f"{host} {role}" for host, role in hosts])
    first, second = roles[:2]
    chosen = {role: [host for host, other in hosts if other == role] for role in (first, second)}
    s.say(
        f"{path} has lines 'HOST ROLE'. Write the host names with role {first} to {folder}/{first}.txt, those with role {second} "
        f"to {folder}/{second}.txt (in the same order), and the number of {first} hosts to {folder}/n-{first}.txt.",
        f"From {path} (lines 'HOST ROLE') make {folder}/{first}.txt and {folder}/{second}.txt with the host names of these "
        f"roles in file order, and write how many {first} hosts there are to {folder}/n-{first}.txt.",
        f"Which hosts of {path} (lines 'HOST ROLE') are {first}, which are {second}? List their names, in file order, in "
        f"{folder}/{first}.txt and {folder}/{second}.txt; {folder}/n-{first}.txt should hold the number of {first} hosts.",
    )
    s.do(f"mkdir -p {folder}", *(f"grep ' {role}$' {path} | cut -d' ' -f1 > {folder}/{role}.txt" for role in (first, second)))
    s.do(f"wc -l < {folder}/{first}.txt > {folder}/n-{first}.txt")
    s.exact(f"{folder}/{first}.txt", chosen[first])
    s.exact(f"{folder}/{second}.txt", chosen[second])
    s.value(f"{folder}/n-{first}.txt", len(chosen[first]))
    s.unchanged(path)


def rotate_logs(s: Scene, d: Draw) -> None:
    """Rotate a log by hand."""
    name = d.pick(SERVICES)
    current, previous = app_log(d, d.number(3, 6)), app_log(d, d.number(2, 5))
    log = f"{d.pick(('logs', 'var/log', 'journal', 'trace'))}/{name}.log"
    out = file_in(d, (), ("rotated", "moved", "lines"), "txt")
    s.text(log, current)
    s.text(f"{log}.1", previous)
    who = d.pick(HOSTS)
    s.say(
        f"Rotate {log}: rename {log}.1 to {log}.2 and {log} to {log}.1, then create {log} with the single line "
        f"'rotated by {who}'. Write the number of lines of {log}.1 to {out}.",
        f"Log rotation for {name}: {log}.1 becomes {log}.2, {log} becomes {log}.1, and a new {log} holds only "
        f"'rotated by {who}'. Put the line count of the new {log}.1 into {out}.",
        f"Please rotate the log of {name} by hand. First {log}.1 is renamed to {log}.2, then {log} to {log}.1. After that make "
        f"{log} again with one line, 'rotated by {who}', and tell me in {out} how many lines {log}.1 has.",
    )
    s.do(f"mv {log}.1 {log}.2", f"mv {log} {log}.1")
    s.do(f"echo 'rotated by {who}' > {log}", f"wc -l < {log}.1 > {out}")
    s.exact(f"{log}.2", previous)
    s.exact(f"{log}.1", current)
    s.exact(log, f"rotated by {who}")
    s.value(out, len(current))


def roll_out_config(s: Scene, d: Draw) -> None:
    """Make one configuration per region from a template."""
    regions, name, size = d.some(REGIONS, 2), d.pick(SERVICES), d.number(2, 64)
    template = [f"service={name}", "region=REGION", f"size={size}"]
    path = file_in(d, ("etc", "config"), ("template", "base", "default"), "conf")
    folder = d.pick(("rollout", "conf", "regions", "deploy", "targets"))
    s.text(path, template)
    targets = [f"{folder}/{region}.conf" for region in regions]
    s.say(
        f"Copy {path} to {targets[0]} and {targets[1]}, and in each copy replace REGION by {regions[0]} or {regions[1]}. "
        f"Keep {path} as it is.",
        f"Make {targets[0]} and {targets[1]} from {path}; REGION must become {regions[0]} in the first and {regions[1]} in "
        f"the second. Do not edit {path}.",
        f"Roll {path} out to {regions[0]} and {regions[1]}: the copies are {targets[0]} and {targets[1]}, each with its region "
        f"in place of REGION. {path} itself stays unchanged.",
    )
    s.do(f"mkdir -p {folder}", *(f"cp {path} {target}" for target in targets))
    s.do(*(f"sed -i 's/REGION/{region}/' {target}" for region, target in zip(regions, targets, strict=True)))
    for region, target in zip(regions, targets, strict=True):
        s.exact(target, [line.replace("REGION", region) for line in template])
    s.unchanged(path)


def incident_bundle(s: Scene, d: Draw) -> None:
    """Collect what is known about an incident in one folder."""
    number, service, host = d.number(1000, 9999), d.pick(SERVICES), d.pick(HOSTS)
    lines = app_log(d, d.number(9, 15))
    lines.insert(d.below(len(lines)), f"12:00:00 ERROR {service}: out of memory")
    s.text("logs/app.log", lines)
    s.text("etc/app.conf", [f"host={host}", f"memory={d.number(256, 4096)}"])
    s.text("status.txt", ["all systems normal"])
    s.stub("core.dump")
    folder, count = f"incidents/{number}", d.number(2, 4)
    errors = [line for line in lines if "ERROR" in line]
    s.ask(
        (f"Open incident {number}:", f"We have an incident, number {number}. Please do this:", f"Bundle incident {number}:"),
        f"create {folder} and copy etc/app.conf into it",
        (
            f"move core.dump into {folder}/",
            f"core.dump belongs into {folder}/ too; move it there",
        ),
        f"save the ERROR lines of logs/app.log to {folder}/errors.log and their number to {folder}/n-errors.txt",
        (
            f"save the last {count} lines of logs/app.log to {folder}/tail.log",
            f"{folder}/tail.log gets the last {count} lines of logs/app.log",
        ),
        f"write '{service} on {host}' to {folder}/summary.txt and add the line 'status: open' to it",
        (
            f"replace the text of status.txt by 'incident {number}'",
            f"status.txt should say 'incident {number}' and nothing else",
        ),
    )
    s.do(f"mkdir -p {folder}", f"cp etc/app.conf {folder}/", f"mv core.dump {folder}/")
    s.do(
        f"grep 'ERROR' logs/app.log > {folder}/errors.log",
        f"wc -l < {folder}/errors.log > {folder}/n-errors.txt",
        f"tail -n {count} logs/app.log > {folder}/tail.log",
    )
    s.do(f"echo '{service} on {host}' > {folder}/summary.txt", f"echo 'status: open' >> {folder}/summary.txt")
    s.do(f"echo 'incident {number}' > status.txt")
    s.exact(f"{folder}/app.conf", s.files["etc/app.conf"].content)
    s.exists(f"{folder}/core.dump")
    s.exact(f"{folder}/errors.log", errors)
    s.value(f"{folder}/n-errors.txt", len(errors))
    s.exact(f"{folder}/tail.log", lines[-count:])
    s.exact(f"{folder}/summary.txt", [f"{service} on {host}", "status: open"])
    s.exact("status.txt", f"incident {number}")
    s.gone("core.dump")


def port_conflicts(s: Scene, d: Draw) -> None:
    """Find ports that two services share, and give one of them a new port."""
    names = d.some(SERVICES, d.number(5, 8))
    ports = d.some(range(3000, 7000), len(names))
    ports[4] = ports[1]
    twin_a, twin_b = sorted((names[1], names[4]))
    free = d.number(8000, 9000)
    conf_dir, folder = d.pick(("services", "units", "sites", "apps")), d.pick((*RESULTS, "audit"))
    for name, port in zip(names, ports, strict=True):
        s.text(f"{conf_dir}/{name}.conf", [f"name={name}", f"port={port}", f"zone={d.pick(CITIES)}"])
    s.ask(
        (
            f"Each file in {conf_dir}/ has a line port=NUMBER. Two services use the same port:",
            f"Check the ports in {conf_dir}/*.conf:",
            f"Two of the files {conf_dir}/*.conf have the same port=NUMBER. Find and settle this:",
        ),
        (
            f"write all port numbers, one per line and sorted, with repeats, to {folder}/ports.txt",
            f"{folder}/ports.txt gets every port number, also the repeated one twice, sorted, one per line",
        ),
        (
            f"write the port that occurs twice to {folder}/conflict.txt",
            f"put the port that two files share into {folder}/conflict.txt",
        ),
        f"write the names of the two files that have it, like {conf_dir}/NAME.conf, sorted, to {folder}/files.txt",
        f"give the second of these two files the port {free} and leave the first as it is",
        (
            f"write the number of different ports that are now in use to {folder}/n-ports.txt",
            f"put how many different ports are in use after that into {folder}/n-ports.txt",
        ),
    )
    conf = f"{conf_dir}/{twin_b}.conf"
    s.do(f"mkdir -p {folder}", f"grep -h '^port=' {conf_dir}/*.conf | cut -d= -f2 | sort > {folder}/ports.txt")
    s.do(f"sort {folder}/ports.txt | uniq -d > {folder}/conflict.txt", f"cat {folder}/conflict.txt")
    s.do(f"grep -l 'port={ports[1]}' {conf_dir}/*.conf | sort > {folder}/files.txt", f"cat {folder}/files.txt")
    s.do(f"sed -i 's/port={ports[1]}/port={free}/' {conf}")
    s.do(f"grep -h '^port=' {conf_dir}/*.conf | sort -u | wc -l > {folder}/n-ports.txt")
    s.exact(f"{folder}/ports.txt", sorted(str(port) for port in ports))
    s.value(f"{folder}/conflict.txt", ports[1])
    s.exact(f"{folder}/files.txt", [f"{conf_dir}/{twin_a}.conf", conf])
    s.exact(conf, s.files[conf].content.replace(f"port={ports[1]}", f"port={free}"))
    s.value(f"{folder}/n-ports.txt", len(names))
    s.unchanged(f"{conf_dir}/{twin_a}.conf", f"{conf_dir}/{names[0]}.conf")


FAMILIES = (
    *easy("devops-engineer", delete_temporary, bump_image, last_lines),
    *medium("devops-engineer", host_inventory, rotate_logs, roll_out_config),
    *hard("devops-engineer", incident_bundle, port_conflicts),
)
