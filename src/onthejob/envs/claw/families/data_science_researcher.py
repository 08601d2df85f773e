"""Families of the data science researcher: tables, labels, summaries."""

from __future__ import annotations

from onthejob.envs.claw.draw import Draw
from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import ANIMALS, CITIES

COLUMNS = tuple(["mass", "length", "height", "speed", "depth", "score", "weight", "volume", "angle", "rate"])


def csv_column(s: Scene, d: Draw) -> None:
    """Extract one column of a table."""
    columns = ["id", *d.some(COLUMNS, 3)]
    rows = [[str(i + 1), *(str(d.number(10, 999)) for _ in range(3))] for i in range(d.number(5, 12))]
    table, out = d.pick(("data.csv", "trial.csv", "data/sample.csv")), d.pick(("column.txt", "values.txt", "out.txt"))
    s.text(table, [",".join(row) for row in [columns, *rows]])
    index = d.number(2, 4)
    name = columns[index - 1]
    s.say(
        f"Extract column {index} ({name}) of {table}, header included, into {out}.",
        f"Write the {name} column, which is column {index} of {table}, to {out}. Keep the header line.",
        f"Put column {index} of the comma-separated file {table} into {out}.",
    )
    s.do(f"cut -d, -f{index} {table} > {out}")
    s.exact(out, [name, *(row[index - 1] for row in rows)])
    s.unchanged(table)


def count_rows(s: Scene, d: Draw) -> None:
    """Count the data rows of a table without its header."""
    count = d.number(9, 40)
    table, out = d.pick(("survey.csv", "answers.csv", "data/runs.csv", "trials.csv")), d.pick(("rows.txt", "n.txt", "size.txt"))
    s.text(table, ["id,city,score", *(f"{i + 100},{d.pick(CITIES)},{d.number(1, 99)}" for i in range(count))])
    s.say(
        f"Count the data rows of {table} (without the header line) and write the number to {out}.",
        f"How many rows does {table} have after its header? Write only the number to {out}.",
        f"Write the number of lines of {table}, not counting the first one, to {out}.",
    )
    s.do(f"tail -n +2 {table} | wc -l > {out}")
    s.value(out, count)
    s.unchanged(table)


def unique_labels(s: Scene, d: Draw) -> None:
    """List the different labels of an annotation file."""
    chosen = d.some(ANIMALS, d.number(3, 6))
    labels = d.shuffled([*chosen, *(d.pick(chosen) for _ in range(d.number(6, 14)))])
    source, out = (
        d.pick(("labels.txt", "annotations.txt", "classes/all.txt")),
        d.pick(("unique.txt", "labels-set.txt", "kinds.txt")),
    )
    s.text(source, labels)
    s.say(
        f"Write the different lines of {source}, sorted and without repeats, to {out}.",
        f"Sort {source}, remove duplicates, and save the result as {out}.",
        f"{out} should list every label of {source} once, in alphabetical order.",
    )
    s.do(f"sort -u {source} > {out}")
    s.exact(out, sorted(set(labels)))
    s.unchanged(source)


def clean_missing(s: Scene, d: Draw) -> None:
    """Drop the rows with missing values, keep them apart and count them."""
    rows = [
        f"{i + 1},{d.pick(CITIES)},{d.pick((str(d.number(10, 99)), str(d.number(10, 99)), 'NA'))}" for i in range(d.number(9, 16))
    ]
    rows = [*rows, f"{len(rows) + 1},{d.pick(CITIES)},NA"]
    raw, folder = d.pick(("raw.csv", "measured.csv", "input.csv")), d.pick(("clean", "processed", "tidy"))
    lines = ["id,city,value", *rows]
    s.text(raw, lines)
    bad = [row for row in rows if row.endswith("NA")]
    s.say(
        f"Save the lines of {raw} without NA to {folder}/data.csv and the lines with NA to {folder}/dropped.csv. "
        f"Write the number of dropped lines to {folder}/n-dropped.txt. Do not change {raw}.",
        f"Split {raw}: lines that contain NA go to {folder}/dropped.csv, all others to {folder}/data.csv, "
        f"and the number of lines with NA goes to {folder}/n-dropped.txt. {raw} stays as it is.",
    )
    s.do(f"mkdir -p {folder}", f"grep -v 'NA' {raw} > {folder}/data.csv", f"grep 'NA' {raw} > {folder}/dropped.csv")
    s.do(f"wc -l < {folder}/dropped.csv > {folder}/n-dropped.txt")
    s.exact(f"{folder}/data.csv", [line for line in lines if "NA" not in line])
    s.exact(f"{folder}/dropped.csv", bad)
    s.value(f"{folder}/n-dropped.txt", len(bad))
    s.unchanged(raw)


def merge_shards(s: Scene, d: Draw) -> None:
    """Merge the parts of a table under one header."""
    names = d.some(CITIES, 3)
    rows = {name: [f"{name},{d.number(1, 365)},{d.number(10, 99)}" for _ in range(d.number(3, 6))] for name in names}
    for name in names:
        s.text(f"parts/{name}.csv", ["city,day,value", *rows[name]])
    out = d.pick(("all.csv", "merged.csv", "full.csv"))
    paths = [f"parts/{name}.csv" for name in names]
    merged = [row for name in names for row in rows[name]]
    s.say(
        f"Merge {', '.join(paths)} in this order into {out}: the header line once, then the data rows of each. "
        f"Write the number of data rows of {out} to rows.txt.",
        f"{out} should hold the header of {paths[0]} and then the data rows (no headers) of {', '.join(paths)}. "
        f"Also write how many data rows that makes to rows.txt.",
    )
    s.do(f"head -n 1 {paths[0]} > {out}", *(f"tail -n +2 {path} >> {out}" for path in paths))
    s.do(f"tail -n +2 {out} | wc -l > rows.txt")
    s.exact(out, ["city,day,value", *merged])
    s.value("rows.txt", len(merged))
    s.unchanged(*paths[:2])


def split_table(s: Scene, d: Draw) -> None:
    """Split a table into training and test rows."""
    rows = [f"{i + 1},{d.number(100, 999)},{d.pick(ANIMALS)}" for i in range(d.number(10, 18))]
    table, cut = d.pick(("dataset.csv", "samples.csv", "all.csv")), d.number(3, 8)
    folder = d.pick(("split", "parts", "sets"))
    header = "id,value,label"
    s.text(table, [header, *rows])
    s.say(
        f"Split {table}: the header and the first {cut} data rows go to {folder}/train.csv, "
        f"the remaining data rows (no header) to {folder}/test.csv. Write the number of test rows to {folder}/n-test.txt.",
        f"Write the first {cut + 1} lines of {table} to {folder}/train.csv and all lines after them to {folder}/test.csv; "
        f"put the line count of {folder}/test.csv into {folder}/n-test.txt.",
    )
    s.do(
        f"mkdir -p {folder}", f"head -n {cut + 1} {table} > {folder}/train.csv", f"tail -n +{cut + 2} {table} > {folder}/test.csv"
    )
    s.do(f"wc -l < {folder}/test.csv > {folder}/n-test.txt")
    s.exact(f"{folder}/train.csv", [header, *rows[:cut]])
    s.exact(f"{folder}/test.csv", rows[cut:])
    s.value(f"{folder}/n-test.txt", len(rows) - cut)
    s.unchanged(table)


def group_totals(s: Scene, d: Draw) -> None:
    """Write the rows, number and sum of two groups of a table."""
    first, second, third = d.some(ANIMALS, 3)
    rows = [(d.pick((first, second, third)), d.number(5, 90)) for _ in range(d.number(12, 18))]
    rows += [(first, d.number(5, 90)), (second, d.number(5, 90))]
    table, folder = d.pick(("counts.csv", "sightings.csv", "observed.csv")), d.pick(("groups", "by-animal", "stats"))
    lines = [f"{animal},{value}" for animal, value in rows]
    s.text(table, lines)
    s.ask(
        (f"Analyse {table} (animal,value without header):", f"For the animals in {table} (lines animal,value) do this:"),
        f"write the lines of {first} to {folder}/{first}.csv and the lines of {second} to {folder}/{second}.csv",
        f"write the number of lines of {first} to {folder}/{first}-n.txt, and of {second} to {folder}/{second}-n.txt",
        f"write the sum of the values of {first} to {folder}/{first}-sum.txt, and of {second} to {folder}/{second}-sum.txt",
        f"write the different animals of {table}, sorted, to {folder}/animals.txt",
    )
    s.do(f"mkdir -p {folder}", *(f"grep '^{name},' {table} > {folder}/{name}.csv" for name in (first, second)))
    s.do(*(f"wc -l < {folder}/{name}.csv > {folder}/{name}-n.txt" for name in (first, second)))
    s.do(
        *(f"awk -F, '{{s+=$2}} END {{print s}}' {folder}/{name}.csv > {folder}/{name}-sum.txt" for name in (first, second)),
    )
    s.do(f"cut -d, -f1 {table} | sort -u > {folder}/animals.txt")
    for name in (first, second):
        values = [value for animal, value in rows if animal == name]
        s.exact(f"{folder}/{name}.csv", [f"{name},{value}" for value in values])
        s.value(f"{folder}/{name}-n.txt", len(values))
        s.value(f"{folder}/{name}-sum.txt", sum(values))
    s.exact(f"{folder}/animals.txt", sorted({animal for animal, _ in rows}))
    s.unchanged(table)


def experiment_report(s: Scene, d: Draw) -> None:
    """Find the best run of several result files and report it."""
    names = d.some(CITIES, d.number(3, 6))
    scores = d.some(range(120, 980), len(names))
    metric = d.pick(("score", "accuracy", "recall"))
    for name, score in zip(names, scores, strict=True):
        s.text(f"runs/{name}.txt", [f"run={name}", f"seed={d.number(1, 99)}", f"{metric}={score}"])
    order = [name for _, name in sorted(zip(scores, names, strict=True), reverse=True)]
    best, top = order[0], max(scores)
    s.ask(
        (f"Compare the runs in runs/ by their {metric}:", f"Each file in runs/ has a line {metric}=NUMBER. Report on them:"),
        "write one line 'NAME NUMBER' per run to report/table.txt, highest number first (NAME is the file name without .txt)",
        f"write the name of the best run (highest {metric}) to report/best.txt and its number to report/top.txt",
        "copy the file of the best run to report/winner.txt, and write the number of runs to report/n.txt",
        "move the file of the worst run into rejected/",
    )
    s.do("ls runs", "mkdir -p report rejected")
    s.do(f"grep -H '^{metric}=' runs/*.txt | sed 's#runs/##; s#.txt:{metric}=# #' | sort -k2 -n -r > report/table.txt")
    s.do("cat report/table.txt", "wc -l < report/table.txt > report/n.txt")
    s.do(f"echo '{best}' > report/best.txt", f"echo '{top}' > report/top.txt", f"cp runs/{best}.txt report/winner.txt")
    s.do(f"mv runs/{order[-1]}.txt rejected/")
    s.exact("report/table.txt", [f"{name} {scores[names.index(name)]}" for name in order])
    s.matches("report/best.txt", rf"^\s*{best}\s*$")
    s.value("report/top.txt", top)
    s.exact("report/winner.txt", s.files[f"runs/{best}.txt"].content)
    s.value("report/n.txt", len(names))
    s.exists(f"rejected/{order[-1]}.txt")
    s.gone(f"runs/{order[-1]}.txt")
    s.unchanged(f"runs/{best}.txt")


FAMILIES = (
    *easy("data-science-researcher", csv_column, count_rows, unique_labels),
    *medium("data-science-researcher", clean_missing, merge_shards, split_table),
    *hard("data-science-researcher", group_totals, experiment_report),
)
