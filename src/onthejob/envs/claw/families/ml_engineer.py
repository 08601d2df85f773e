"""Families of the machine learning engineer: configurations, metrics, checkpoints, data."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import CITIES, NOTES, RESULTS, SENTENCES, TOPICS, file_in
from onthejob.envs.claw.keyed_choices import Draw

PARAMETERS = ("batch_size", "warmup_steps", "max_length", "num_layers", "hidden_size", "num_epochs", "eval_every", "save_every")
RATES = ("1e-3", "3e-4", "1e-4", "5e-5", "2e-5", "1e-5")


def set_parameter(s: Scene, d: Draw) -> None:
    """Change one parameter of a training configuration."""
    names = d.some(PARAMETERS, d.number(3, 6))
    values = d.some(range(2, 900), len(names))
    name, new = names[0], d.number(901, 4096)
    path = d.pick(("config.yaml", "train.yaml", "configs/base.yaml"))
    pairs = d.shuffled(list(zip(names, values, strict=True)))
    s.text(path, [f"{key}: {value}" for key, value in pairs])
    s.say(
        f"Set {name} to {new} in {path}.",
        f"Change {name} in {path} to {new}; nothing else may change.",
        f"The next run needs {name}: {new} in {path}.",
    )
    s.do(f"sed -i 's/^{name}: .*/{name}: {new}/' {path}")
    s.exact(path, [f"{key}: {new if key == name else value}" for key, value in pairs])


def prune_checkpoints(s: Scene, d: Draw) -> None:
    """Delete all checkpoints but one."""
    steps = d.some(range(1, 60), d.number(3, 5))
    folder, ending = d.pick(("checkpoints", "ckpt", "saved")), d.pick(("pt", "bin", "safetensors"))
    paths = [f"{folder}/step{100 * step}.{ending}" for step in steps]
    s.stub(*paths)
    doomed = paths[1:3]
    s.say(
        f"Delete the checkpoints {doomed[0]} and {doomed[1]}.",
        f"Remove {doomed[0]} and {doomed[1]}; keep all other files in {folder}.",
        f"We need disk space: {doomed[0]} and {doomed[1]} can be deleted.",
    )
    s.do(f"rm {doomed[0]} {doomed[1]}")
    s.gone(*doomed)
    s.unchanged(paths[0])


def last_loss(s: Scene, d: Draw) -> None:
    """Save the last loss line of a training log."""
    rows = []
    for step in range(d.number(4, 9)):
        rows.append(f"step {step} loss {d.number(1, 9)}.{d.number(100, 999)}")
        if d.below(3) == 0:
            rows.append(f"step {step} saved checkpoint")
    rows.append(d.pick(("training finished", "saved checkpoint", "writing summary")))
    log = file_in(d, ("logs", "runs", "jobs"), ("train", "output", "finetune", "pretrain"), "log")
    out = file_in(d, (), ("last", "final", "loss", "line"), "txt")
    s.text(log, rows)
    s.say(
        f"Write the last line of {log} that contains 'loss' to {out}.",
        f"Find the final 'loss' line of {log} and save this one line as {out}.",
        f"{out} should hold only the last line with 'loss' from {log}.",
        f"How did the run end? Put the last line of {log} with 'loss', and no other, into {out}.",
    )
    s.do(f"grep 'loss' {log} | tail -n 1 > {out}")
    s.exact(out, [row for row in rows if "loss" in row][-1])
    s.unchanged(log)


def best_checkpoint(s: Scene, d: Draw) -> None:
    """Find the step with the lowest loss and keep its checkpoint."""
    steps = sorted(d.some(range(1, 80), d.number(4, 6)))
    losses = d.some(range(1000, 9000), len(steps))
    metrics = file_in(d, ("logs", "runs"), ("metrics", "losses", "history", "curve"), "csv")
    saved, kind = d.pick(("ckpt", "checkpoints", "saved", "weights")), d.pick(("pt", "bin", "safetensors"))
    s.text(metrics, [f"{100 * step},{loss}" for step, loss in zip(steps, losses, strict=True)])
    s.stub(*(f"{saved}/{100 * step}.{kind}" for step in steps))
    best = 100 * steps[losses.index(min(losses))]
    folder = d.pick((*RESULTS, "best", "export"))
    s.say(
        f"{metrics} has lines STEP,LOSS. Write the step with the lowest loss to {folder}/step.txt and copy its "
        f"checkpoint {saved}/STEP.{kind} to {folder}/model.{kind}.",
        f"Find the STEP with the smallest LOSS in {metrics} (lines STEP,LOSS), write it to {folder}/step.txt and copy "
        f"{saved}/STEP.{kind} to {folder}/model.{kind}.",
        f"Which checkpoint {saved}/STEP.{kind} is the best? It is the one with the lowest LOSS in {metrics} (lines STEP,LOSS). "
        f"Copy it to {folder}/model.{kind} and put its step into {folder}/step.txt.",
    )
    s.do(f"sort -t, -k2 -n {metrics} | head -n 1", f"mkdir -p {folder}")
    s.do(f"echo '{best}' > {folder}/step.txt", f"cp {saved}/{best}.{kind} {folder}/model.{kind}")
    s.matches(f"{folder}/step.txt", rf"^\s*{best}\s*$")
    s.exists(f"{folder}/model.{kind}")
    s.unchanged(metrics, f"{saved}/{best}.{kind}")


def deduplicate(s: Scene, d: Draw) -> None:
    """Remove repeated examples from a data set and report how many are left."""
    examples = d.some(SENTENCES, d.number(5, 9))
    lines = d.shuffled([*examples, *(d.pick(examples) for _ in range(d.number(3, 7)))])
    path = file_in(d, (), ("train", "corpus", "prompts", "examples"), "txt")
    folder = d.pick((*RESULTS, "dedup", "unique", "clean"))
    s.text(path, lines)
    s.say(
        f"Write the lines of {path}, sorted and without duplicates, to {folder}/{path}. Write the number of lines before "
        f"to {folder}/before.txt and the number after to {folder}/after.txt.",
        f"Deduplicate {path}: sorted unique lines to {folder}/{path}, line count of {path} to {folder}/before.txt, "
        f"line count of the result to {folder}/after.txt.",
        f"{path} repeats itself. {folder}/{path} should have each of its lines once, in sorted order; {folder}/before.txt how "
        f"many lines {path} has, and {folder}/after.txt how many {folder}/{path} has.",
    )
    s.do(f"mkdir -p {folder}", f"sort -u {path} > {folder}/{path}")
    s.do(f"wc -l < {path} > {folder}/before.txt", f"wc -l < {folder}/{path} > {folder}/after.txt")
    s.exact(f"{folder}/{path}", sorted(set(lines)))
    s.value(f"{folder}/before.txt", len(lines))
    s.value(f"{folder}/after.txt", len(set(lines)))
    s.unchanged(path)


def sweep_configs(s: Scene, d: Draw) -> None:
    """Write one configuration per learning rate."""
    first, second, old = d.some(RATES, 3)
    name, steps = d.pick(TOPICS), d.number(2, 90) * 100
    lines = [f"name: {name}", f"lr: {old}", f"steps: {steps}"]
    base = file_in(d, ("conf", "setup"), ("base", "default", "start"), "yaml")
    folder = d.pick(("sweep", "runs", "configs", "grid", "rates"))
    s.text(base, lines)
    targets = {rate: f"{folder}/lr-{rate}.yaml" for rate in (first, second)}
    s.say(
        f"Make {targets[first]} and {targets[second]} as copies of {base} in which lr is {first} and {second}. "
        f"Leave {base} alone.",
        f"For a sweep, copy {base} to {targets[first]} with lr: {first} and to {targets[second]} with lr: {second}. "
        f"{base} stays unchanged.",
        f"Two variants of {base} are needed, and {base} must stay as it is: {targets[first]}, where lr is {first}, and "
        f"{targets[second]}, where lr is {second}.",
    )
    s.do(f"mkdir -p {folder}", *(f"cp {base} {target}" for target in targets.values()))
    s.do(*(f"sed -i 's/^lr: .*/lr: {rate}/' {target}" for rate, target in targets.items()))
    for rate, target in targets.items():
        s.exact(target, [lines[0], f"lr: {rate}", lines[2]])
    s.unchanged(base)


def archive_experiment(s: Scene, d: Draw) -> None:
    """Archive a finished experiment and clean up."""
    name, step, note = d.pick(TOPICS), 100 * d.number(1, 90), d.pick(NOTES)
    log = [f"step {i} loss {d.number(1, 9)}.{d.number(10, 99)}" for i in range(d.number(4, 8))]
    log.insert(d.number(1, 3), "WARN gradient clipped")
    log += ["WARN learning rate is zero", "done"] if d.below(2) else ["done"]
    config = [f"name: {name}", "status: running", f"steps: {step}"]
    s.text("run/train.log", log)
    s.text("run/config.yaml", config)
    s.stub(f"run/step{step}.pt", "run/optimizer.pt")
    folder = f"archive/{name}-{step}"
    losses = [line for line in log if "loss" in line]
    s.ask(
        (f"Archive the experiment {name}:", f"The run {name} is over. Please archive it:", f"Clean up after the run {name}:"),
        f"create {folder}",
        f"copy run/config.yaml into {folder}/ and change running to finished in the copy",
        (
            f"move run/step{step}.pt to {folder}/model.pt, and delete run/optimizer.pt",
            f"delete run/optimizer.pt, and move run/step{step}.pt to {folder}/model.pt",
        ),
        f"save the lines of run/train.log with 'loss' to {folder}/loss.txt and their number to {folder}/n-steps.txt",
        (
            f"write the number of lines of run/train.log with WARN to {folder}/warnings.txt",
            f"{folder}/warnings.txt: how many lines of run/train.log have WARN",
        ),
        (
            f"write '{note}' to {folder}/NOTE.txt",
            f"leave a file {folder}/NOTE.txt that says '{note}'",
        ),
    )
    s.do(f"mkdir -p {folder}", f"cp run/config.yaml {folder}/", f"sed -i 's/running/finished/' {folder}/config.yaml")
    s.do(f"mv run/step{step}.pt {folder}/model.pt", "rm run/optimizer.pt")
    s.do(
        f"grep 'loss' run/train.log > {folder}/loss.txt",
        f"wc -l < {folder}/loss.txt > {folder}/n-steps.txt",
        f"grep -c 'WARN' run/train.log > {folder}/warnings.txt",
    )
    s.do(f"echo '{note}' > {folder}/NOTE.txt")
    s.exact(f"{folder}/config.yaml", [line.replace("running", "finished") for line in config])
    s.exists(f"{folder}/model.pt")
    s.gone("run/optimizer.pt", f"run/step{step}.pt")
    s.exact(f"{folder}/loss.txt", losses)
    s.value(f"{folder}/n-steps.txt", len(losses))
    s.value(f"{folder}/warnings.txt", sum("WARN" in line for line in log))
    s.exact(f"{folder}/NOTE.txt", note)


def sweep_summary(s: Scene, d: Draw) -> None:
    """Rank the runs of a sweep and clean up the failed ones."""
    names = d.some(CITIES, d.number(5, 6))
    failed, good = names[0], names[1:]
    scores = dict(zip(good, d.some(range(500, 990), len(good)), strict=True))
    rates = {name: d.pick(RATES) for name in names}
    sweep, folder = d.pick(("sweep", "runs", "trials", "grid", "jobs")), d.pick(RESULTS)
    trash, metric = d.pick(("failed", "broken", "aborted", "lost")), d.pick(("accuracy", "score", "bleu", "reward", "f1"))
    for name in names:
        end = "status=failed" if name == failed else f"{metric}={scores[name]}"
        s.text(f"{sweep}/{name}.txt", [f"lr={rates[name]}", end])
    ranking = sorted(good, key=lambda name: -scores[name])
    best, count = ranking[0], d.number(2, 3)
    s.ask(
        (
            f"The files in {sweep}/ hold lr=VALUE and {metric}=NUMBER, or status=failed:",
            f"Summarise the runs in {sweep}/*.txt (lines lr=VALUE and {metric}=NUMBER):",
            f"Rank the runs in {sweep}/ by {metric}=NUMBER, their second line:",
        ),
        (
            f"move the file with status=failed into {trash}/",
            f"one of the files says status=failed: move it into the folder {trash}",
        ),
        (
            f"write one line 'NAME NUMBER' per other run to {folder}/ranking.txt, highest {metric} first (NAME has no .txt)",
            f"{folder}/ranking.txt gets one line 'NAME NUMBER' per other run (NAME without .txt), from the highest {metric} down",
        ),
        (f"save the first {count} lines of it as {folder}/top.txt", f"its first {count} lines also go to {folder}/top.txt"),
        (
            f"write the lr value of the best run to {folder}/lr.txt, and copy its file to {folder}/best.txt",
            f"copy the file of the best run to {folder}/best.txt, and write only its lr value to {folder}/lr.txt",
        ),
        (f"write the number of runs in the ranking to {folder}/n.txt", f"{folder}/n.txt: how many runs the ranking has"),
    )
    s.do(f"grep -l 'status=failed' {sweep}/*.txt", f"mkdir -p {trash} {folder}")
    s.do(f"mv {sweep}/{failed}.txt {trash}/", f"grep -H '^{metric}=' {sweep}/*.txt > {folder}/raw.tmp")
    s.do(
        f"sed 's#{sweep}/##; s#.txt:{metric}=# #' {folder}/raw.tmp | sort -k2 -n -r > {folder}/ranking.txt",
        f"rm {folder}/raw.tmp",
        f"head -n {count} {folder}/ranking.txt > {folder}/top.txt",
        f"cat {folder}/ranking.txt",
    )
    s.do(f"grep '^lr=' {sweep}/{best}.txt | cut -d= -f2 > {folder}/lr.txt", f"cp {sweep}/{best}.txt {folder}/best.txt")
    s.do(f"wc -l < {folder}/ranking.txt > {folder}/n.txt")
    ranked = [f"{name} {scores[name]}" for name in ranking]
    s.exists(f"{trash}/{failed}.txt")
    s.gone(f"{sweep}/{failed}.txt")
    s.exact(f"{folder}/ranking.txt", ranked)
    s.exact(f"{folder}/top.txt", ranked[:count])
    s.value(f"{folder}/lr.txt", rates[best])
    s.exact(f"{folder}/best.txt", s.files[f"{sweep}/{best}.txt"].content)
    s.value(f"{folder}/n.txt", len(good))
    s.unchanged(f"{sweep}/{best}.txt")


FAMILIES = (
    *easy("ml-engineer", set_parameter, prune_checkpoints, last_loss),
    *medium("ml-engineer", best_checkpoint, deduplicate, sweep_configs),
    *hard("ml-engineer", archive_experiment, sweep_summary),
)
