"""Families of the data science researcher: tables, labels, summaries."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import ANIMALS, CITIES, RESULTS, file_in
from onthejob.envs.claw.keyed_choices import Draw

COLUMNS = ("mass", "length", "height", "speed", "depth", "score", "weight", "volume", "angle", "rate")


def csv_column(s: Scene, d: Draw) -> None:
    """Extract one column of a table."""
    columns = ["id", *d.some(COLUMNS, 3)]
    rows = [[str(i + 1), *(str(d.number(10, 999)) for _ in range(3))] for i in range(d.number(5, 12))]
    table = file_in(d, ("data", "input", "lab"), ("trial", "sample", "measured", "sensor"), "csv")
    out = file_in(d, (), ("column", "values", "picked"), "txt")
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
    table = file_in(d, ("data", "input", "tables"), ("survey", "answers", "runs", "trials"), "csv")
    out = file_in(d, (), ("rows", "n", "size", "count"), "txt")
    s.text(table, ["id,city,score", *(f"{i + 100},{d.pick(CITIES)},{d.number(1, 99)}" for i in range(count))])
    s.say(
        f"Count the data rows of {table} (without the header line) and write the number to {out}.",
        f"How many rows does {table} have after its header? Write only the number to {out}.",
        f"Write the number of lines of {table}, not counting the first one, to {out}.",
        f"{table} has a header line. I need the number of rows below it, alone in {out}.",
    )
    s.do(f"tail -n +2 {table} | wc -l > {out}")
    s.value(out, count)
    s.unchanged(table)


def unique_labels(s: Scene, d: Draw) -> None:
    """List the different labels of an annotation file."""
    chosen = d.some(ANIMALS, d.number(3, 6))
    labels = d.shuffled([*chosen, *(d.pick(chosen) for _ in range(d.number(6, 14)))])
    source, out = (
        file_in(d, ("data", "classes", "batch"), ("labels", "annotations", "tags", "species"), "txt"),
        file_in(d, (), ("unique", "set", "kinds", "vocabulary"), "txt"),
    )
    s.text(source, labels)
    s.say(
        f"Write the different lines of {source}, sorted and without repeats, to {out}.",
        f"Sort {source}, remove duplicates, and save the result as {out}.",
        f"{out} should list every label of {source} once, in alphabetical order.",
        f"Which labels occur in {source}? List each one once, sorted, in {out}.",
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
    raw = file_in(d, ("data", "input"), ("raw", "measured", "survey", "stations"), "csv")
    folder = d.pick((*RESULTS, "clean", "processed", "tidy"))
    lines = ["id,city,value", *rows]
    s.text(raw, lines)
    bad = [row for row in rows if row.endswith("NA")]
    s.say(
        f"Save the lines of {raw} without NA to {folder}/data.csv and the lines with NA to {folder}/dropped.csv. "
        f"Write the number of dropped lines to {folder}/n-dropped.txt. Do not change {raw}.",
        f"Split {raw}: lines that contain NA go to {folder}/dropped.csv, all others to {folder}/data.csv, "
        f"and the number of lines with NA goes to {folder}/n-dropped.txt. {raw} stays as it is.",
        f"Some lines of {raw} have NA. Put these into {folder}/dropped.csv, the lines without NA into {folder}/data.csv, and "
        f"how many were dropped into {folder}/n-dropped.txt. Leave {raw} untouched.",
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
    out = file_in(d, (), ("all", "merged", "full"), "csv")
    paths = [f"parts/{name}.csv" for name in names]
    merged = [row for name in names for row in rows[name]]
    s.say(
        f"Merge {', '.join(paths)} in this order into {out}: the header line once, then the data rows of each. "
        f"Write the number of data rows of {out} to rows.txt.",
        f"{out} should hold the header of {paths[0]} and then the data rows (no headers) of {', '.join(paths)}. "
        f"Also write how many data rows that makes to rows.txt.",
        f"Put the tables {', '.join(paths)} together, in this order and under one header line, as {out}. rows.txt should hold "
        f"the number of its data rows.",
    )
    s.do(f"head -n 1 {paths[0]} > {out}", *(f"tail -n +2 {path} >> {out}" for path in paths))
    s.do(f"tail -n +2 {out} | wc -l > rows.txt")
    s.exact(out, ["city,day,value", *merged])
    s.value("rows.txt", len(merged))
    s.unchanged(*paths[:2])


def split_table(s: Scene, d: Draw) -> None:
    """Split a table into training and test rows."""
    rows = [f"{i + 1},{d.number(100, 999)},{d.pick(ANIMALS)}" for i in range(d.number(10, 18))]
    table, cut = file_in(d, ("data", "input"), ("dataset", "samples", "all", "examples"), "csv"), d.number(3, 8)
    folder = d.pick((*RESULTS, "split", "sets"))
    header = "id,value,label"
    s.text(table, [header, *rows])
    s.say(
        f"Split {table}: the header and the first {cut} data rows go to {folder}/train.csv, "
        f"the remaining data rows (no header) to {folder}/test.csv. Write the number of test rows to {folder}/n-test.txt.",
        f"Write the first {cut + 1} lines of {table} to {folder}/train.csv and all lines after them to {folder}/test.csv; "
        f"put the line count of {folder}/test.csv into {folder}/n-test.txt.",
        f"I need two sets from {table}: {folder}/train.csv with its first {cut + 1} lines (the header and {cut} rows) and "
        f"{folder}/test.csv with all the others. {folder}/n-test.txt should say how many lines {folder}/test.csv has.",
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
    table = file_in(d, ("data", "input"), ("counts", "sightings", "observed"), "csv")
    folder = d.pick((*RESULTS, "groups", "by-animal"))
    lines = [f"{animal},{value}" for animal, value in rows]
    s.text(table, lines)
    s.ask(
        (
            f"Analyse {table} (animal,value without header):",
            f"For the animals in {table} (lines animal,value) do this:",
            f"{table} has lines animal,value. Please work out:",
        ),
        (
            f"write the lines of {first} to {folder}/{first}.csv and the lines of {second} to {folder}/{second}.csv",
            f"copy the {first} lines into {folder}/{first}.csv and the {second} lines into {folder}/{second}.csv",
        ),
        f"write the number of lines of {first} to {folder}/{first}-n.txt, and of {second} to {folder}/{second}-n.txt",
        f"write the sum of the values of {first} to {folder}/{first}-sum.txt, and of {second} to {folder}/{second}-sum.txt",
        (
            f"write the different animals of {table}, sorted, to {folder}/animals.txt",
            f"{folder}/animals.txt: each animal of {table} once, sorted",
        ),
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
    names: list[str] = [*d.some(CITIES, d.number(3, 6))]
    scores = d.some(range(120, 980), len(names))
    metric = d.pick(("score", "accuracy", "recall", "precision", "f1"))
    runs = d.pick(("runs", "trials", "experiments", "logs", "fits"))
    folder, rejected = d.pick(RESULTS), d.pick(("rejected", "discarded", "worst", "set-aside"))
    for name, score in zip(names, scores, strict=True):
        s.text(f"{runs}/{name}.txt", [f"run={name}", f"seed={d.number(1, 99)}", f"{metric}={score}"])
    order = [name for _, name in sorted(zip(scores, names, strict=True), reverse=True)]
    best, worst, top = order[0], order[-1], max(scores)
    s.ask(
        (
            f"Compare the runs in {runs}/ by their {metric}:",
            f"Each file in {runs}/ has a line {metric}=NUMBER. Report on them:",
            f"Which run in {runs}/ is the best by {metric}? Please do this:",
            f"Rank the files in {runs}/ by the number in their line {metric}=NUMBER:",
        ),
        (
            f"write one line 'NAME NUMBER' per run to {folder}/table.txt, highest number first; NAME is the file without .txt",
            f"{folder}/table.txt gets one line 'NAME NUMBER' per run, from the highest number to the lowest; NAME has no .txt",
        ),
        (
            f"write the name of the best run (highest {metric}) to {folder}/best.txt and its number to {folder}/top.txt",
            f"put the highest number into {folder}/top.txt and the name of its run into {folder}/best.txt",
        ),
        (
            f"copy the file of the best run to {folder}/winner.txt, and write the number of runs to {folder}/n.txt",
            f"write how many runs there are to {folder}/n.txt, and copy the best run's file to {folder}/winner.txt",
        ),
        (f"move the file of the worst run into {rejected}/", f"the file of the worst run goes into the folder {rejected}"),
    )
    table = f"{folder}/table.txt"
    s.do(f"ls {runs}", f"mkdir -p {folder} {rejected}")
    s.do(f"grep -H '^{metric}=' {runs}/*.txt | sed 's#{runs}/##; s#.txt:{metric}=# #' | sort -k2 -n -r > {table}")
    s.do(f"cat {table}", f"wc -l < {table} > {folder}/n.txt")
    s.do(f"echo '{best}' > {folder}/best.txt", f"echo '{top}' > {folder}/top.txt", f"cp {runs}/{best}.txt {folder}/winner.txt")
    s.do(f"mv {runs}/{worst}.txt {rejected}/")
    s.exact(table, [f"{name} {scores[names.index(name)]}" for name in order])
    s.matches(f"{folder}/best.txt", rf"^\s*{best}\s*$")
    s.value(f"{folder}/top.txt", top)
    s.exact(f"{folder}/winner.txt", s.files[f"{runs}/{best}.txt"].content)
    s.value(f"{folder}/n.txt", len(names))
    s.exists(f"{rejected}/{worst}.txt")
    s.gone(f"{runs}/{worst}.txt")
    s.unchanged(f"{runs}/{best}.txt")


FAMILIES = (
    *easy("data-science-researcher", csv_column, count_rows, unique_labels),
    *medium("data-science-researcher", clean_missing, merge_shards, split_table),
    *hard("data-science-researcher", group_totals, experiment_report),
)
