"""Families of the academic author: papers, bibliographies, submissions."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import NOTES, RESULTS, SENTENCES, SURNAMES, TOPICS, file_in
from onthejob.envs.claw.keyed_choices import Draw

VENUES = ("NeurIPS", "ICML", "JMLR", "AISTATS", "COLT", "TMLR", "UAI", "ICLR")


def cite_keys(d: Draw, count: int) -> list[str]:
    """Citation keys such as `chen2019`."""
    return [f"{name}{d.number(1998, 2024)}" for name in d.some(SURNAMES, count)]


def bibliography(d: Draw, keys: list[str]) -> list[str]:
    """Lines of a .bib file with one three-line entry per key."""
    lines = []
    for key in keys:
        kind = d.pick(("article", "article", "book", "inproceedings"))
        lines += [f"@{kind}{{{key},", f"  title = {{On {d.pick(TOPICS)} and {d.pick(TOPICS)}}},", "}"]
    return lines


def rename_figure(s: Scene, d: Draw) -> None:
    """Give a figure a telling name."""
    first, second = d.some(range(1, 30), 2)
    folder = d.pick(("figures", "plots", "img"))
    new = f"{folder}/{d.pick(TOPICS)}-{d.pick(('plot', 'curve', 'diagram', 'chart'))}.png"
    old, other = f"{folder}/fig{first}.png", f"{folder}/fig{second}.png"
    s.stub(old, other)
    s.say(f"Rename {old} to {new}.", f"The figure {old} should be called {new}.", f"Please move {old} to {new}; keep the others.")
    s.do(f"mv {old} {new}")
    s.gone(old)
    s.exists(new)
    s.unchanged(other)


def count_entries(s: Scene, d: Draw) -> None:
    """Count the bibliography's entries of one type."""
    lines = bibliography(d, cite_keys(d, d.number(6, 14)))
    bib = file_in(d, ("bib", "latex", "sources"), ("refs", "library", "literature", "works"), "bib")
    out = file_in(d, (), ("count", "entries", "n-entries", "number"), "txt")
    s.text(bib, lines)
    kind = d.pick(("@article", "@book", "@inproceedings"))
    s.say(
        f"Count the {kind} entries in {bib} and write the number to {out}.",
        f"How many lines of {bib} start with {kind}? Put only the number into {out}.",
        f"Write to {out} the number of {kind} entries that {bib} has.",
        f"I need to know how many {kind} entries there are in {bib}; the number alone goes into {out}.",
    )
    s.do(f"grep -c '^{kind}' {bib} > {out}")
    s.value(out, sum(line.startswith(kind) for line in lines))
    s.unchanged(bib)


def extract_abstract(s: Scene, d: Draw) -> None:
    """Save the first lines of a draft."""
    lines, count = d.some(SENTENCES, d.number(8, 14)), d.number(2, 6)
    draft = file_in(d, ("text", "drafts", "papers"), ("draft", "paper", "manuscript", "article"), "txt")
    out = file_in(d, (), ("abstract", "summary", "opening", "teaser"), "txt")
    s.text(draft, lines)
    s.say(
        f"Save the first {count} lines of {draft} as {out}.",
        f"Copy the top {count} lines of {draft} into {out}.",
        f"{out} should hold the first {count} lines of {draft}. Please create it.",
        f"The abstract is the first {count} lines of {draft}; put them into a file {out}.",
    )
    s.do(f"head -n {count} {draft} > {out}")
    s.exact(out, lines[:count])
    s.unchanged(draft)


def collect_todos(s: Scene, d: Draw) -> None:
    """Move the TODO comments of a paper into a list and count them."""
    mark = d.pick(("% TODO", "% FIXME", "% CHECK", "% REVISE"))
    todos = [f"{mark}: {note}" for note in d.some(NOTES, d.number(3, 6))]
    body = d.some(SENTENCES, d.number(5, 8))
    paper = file_in(d, ("tex", "latex", "drafts"), ("paper", "main", "article", "chapter"), "tex")
    folder = d.pick((*RESULTS, "lists", "todo"))
    lines = d.shuffled(body + todos)
    s.text(paper, lines)
    found = [line for line in lines if line.startswith(mark)]
    kept = [line for line in lines if not line.startswith(mark)]
    todo = f"{folder}/{d.pick(('todo', 'open', 'remarks', 'left'))}.txt"
    count = f"{folder}/{d.pick(('count', 'how-many', 'n', 'number'))}.txt"
    s.say(
        f"Save all lines of {paper} that contain '{mark}' to {todo}, delete them from {paper}, "
        f"and write their number to {count}.",
        f"Collect the '{mark}' lines of {paper} in {todo} and put how many there are into {count}. "
        f"Then {paper} must not have them any more.",
        f"The '{mark}' lines have to leave {paper}: move them to {todo}, in their order, and write how many they are to {count}.",
        f"Take every line with '{mark}' out of {paper}. I want them in {todo} and their number in {count}.",
    )
    s.do(f"mkdir -p {folder}", f"grep '{mark}' {paper} > {todo}")
    s.do(f"sed -i '/{mark}/d' {paper}", f"wc -l < {todo} > {count}")
    s.exact(todo, found)
    s.exact(paper, kept)
    s.value(count, len(found))


def rename_citation(s: Scene, d: Draw) -> None:
    """Rename a citation key in the bibliography and everywhere it is cited."""
    old, other, new = cite_keys(d, 3)
    bib = bibliography(d, [old, other])
    cites = [f"See \\cite{{{d.pick((old, old, other))}}}. {sentence}" for sentence in d.some(SENTENCES, d.number(4, 7))]
    intro = [f"{sentence} \\cite{{{old}}}" for sentence in d.some(SENTENCES, 2)]
    paper, out = d.pick(("paper.tex", "main.tex")), d.pick(("renamed.txt", "citations.txt", "lines.txt"))
    for path, lines in (("refs.bib", bib), (paper, cites), ("intro.tex", intro)):
        s.text(path, lines)
    s.say(
        f"Rename the citation key {old} to {new} in refs.bib, {paper} and intro.tex. "
        f"Then write to {out} how many lines of {paper} contain {new}.",
        f"The key {old} is wrong: replace it by {new} in refs.bib, {paper} and intro.tex, "
        f"and put the number of lines of {paper} with {new} into {out}.",
        f"We cite {new}, not {old}. Correct refs.bib, {paper} and intro.tex; after that, {out} should say how many lines of "
        f"{paper} contain {new}.",
    )
    s.do(*(f"sed -i 's/{old}/{new}/g' {path}" for path in ("refs.bib", paper, "intro.tex")))
    s.do(f"grep -c '{new}' {paper} > {out}")
    for path, lines in (("refs.bib", bib), (paper, cites), ("intro.tex", intro)):
        s.exact(path, [line.replace(old, new) for line in lines])
    s.value(out, sum(old in line for line in cites))


def assemble_sections(s: Scene, d: Draw) -> None:
    """Join section files in a given order and archive them."""
    names = d.some(TOPICS, 3)
    out, folder = d.pick(("paper.tex", "full.tex", "thesis.tex")), d.pick(("archive", "old", "parts-used"))
    texts = {name: d.some(SENTENCES, d.number(2, 4)) for name in names}
    for name in names:
        s.text(f"sections/{name}.tex", texts[name])
    joined = [line for name in names for line in texts[name]]
    paths = [f"sections/{name}.tex" for name in names]
    s.say(
        f"Join {', '.join(paths)} in this order into {out}, then move the three section files into {folder}/. "
        f"Write the number of lines of {out} to length.txt.",
        f"Create {out} from {', '.join(paths)} (in this order), archive the three files in {folder}/ "
        f"and put the line count of {out} into length.txt.",
        f"{out} should consist of {', '.join(paths)}, one after the other. Move these three files to {folder}/ when they are "
        f"joined, and put the number of lines of {out} into length.txt.",
    )
    s.do(f"cat {' '.join(paths)} > {out}")
    s.do(f"mkdir -p {folder}", f"mv {' '.join(paths)} {folder}/")
    s.do(f"wc -l < {out} > length.txt")
    s.exact(out, joined)
    s.exists(f"{folder}/{names[0]}.tex", f"{folder}/{names[2]}.tex")
    s.gone(paths[1])
    s.value("length.txt", len(joined))


def submission_package(s: Scene, d: Draw) -> None:
    """Prepare an anonymous submission folder from the working files."""
    author, venue, topic = d.pick(SURNAMES).title(), d.pick(VENUES), d.pick(TOPICS)
    folder = f"{d.pick(('submission', 'upload', 'package'))}-{venue.lower()}"
    todos = [f"% TODO: {note}" for note in d.some(NOTES, 2)]
    body = [*d.some(SENTENCES, d.number(4, 6)), *todos]
    paper = [f"\\author{{{author}}}", *d.shuffled(body)]
    bib = bibliography(d, cite_keys(d, 3))
    figure = f"figures/{topic}.png"
    s.text("paper.tex", paper)
    s.text("refs.bib", bib)
    s.stub(figure)
    clean = [line.replace(author, "Anonymous") for line in paper if "% TODO" not in line]
    main = f"{folder}/main.tex"
    s.ask(
        (
            f"Prepare the {venue} submission:",
            f"Make the folder for our {venue} paper:",
            "Please package the paper like this:",
            f"{venue} wants an anonymous package. What to do:",
        ),
        f"create the folder {folder}/figures",
        (
            f"copy paper.tex to {main}, and refs.bib into {folder}/",
            f"put a copy of paper.tex at {main} and a copy of refs.bib into {folder}/",
        ),
        f"copy {figure} into {folder}/figures/",
        (
            f"in {main} replace {author} by Anonymous and delete the lines with '% TODO'",
            f"make {main} anonymous ({author} becomes Anonymous) and free of lines with '% TODO'",
        ),
        f"write 'Submission to {venue}' to {folder}/README.txt",
        (
            f"write the number of lines of {main} to {folder}/lines.txt",
            f"{folder}/lines.txt: how many lines {main} has after that",
        ),
    )
    s.do(f"mkdir -p {folder}/figures", f"cp paper.tex {main}", f"cp refs.bib {folder}/", f"cp {figure} {folder}/figures/")
    s.do(f"sed -i 's/{author}/Anonymous/g' {main}", f"sed -i '/% TODO/d' {main}")
    s.do(f"echo 'Submission to {venue}' > {folder}/README.txt", f"wc -l < {main} > {folder}/lines.txt")
    s.exact(main, clean)
    s.exact(f"{folder}/refs.bib", bib)
    s.exists(f"{folder}/figures/{topic}.png")
    s.exact(f"{folder}/README.txt", f"Submission to {venue}")
    s.value(f"{folder}/lines.txt", len(clean))
    s.unchanged("paper.tex", "refs.bib")


def uncited_references(s: Scene, d: Draw) -> None:
    """Compare what a paper cites with what its bibliography holds."""
    keys = cite_keys(d, d.number(9, 13))
    cut = d.number(2, 4)
    uncited, missing, both = keys[:cut], keys[cut : cut + d.number(1, 3)], keys[cut + 3 :]
    paper = [f"{sentence} \\cite{{{key}}}" for sentence, key in zip(SENTENCES, d.shuffled(missing + both), strict=False)]
    repeated = d.shuffled([*paper, f"Again \\cite{{{d.pick(both)}}} holds."])
    tex = file_in(d, ("tex", "latex"), ("paper", "main", "article", "chapter"), "tex")
    bib = file_in(d, ("bib", "sources"), ("refs", "library", "literature"), "bib")
    s.text(tex, repeated)
    s.text(bib, bibliography(d, d.shuffled(uncited + both)))
    folder = d.pick((*RESULTS, "audit"))
    s.ask(
        (
            f"Check the references of {tex} against {bib}:",
            f"Compare the citations in {tex} with the bibliography {bib}:",
            f"I need a reference check of {tex} and {bib}:",
            f"Does {tex} cite what {bib} holds? Please find out:",
        ),
        (
            f"write the keys cited in {tex} with \\cite{{key}}, sorted and without repeats, to {folder}/cited.txt, one per line",
            f"{folder}/cited.txt: the keys that stand in a \\cite{{key}} of {tex}, each once, one per line, sorted",
        ),
        (
            f"write the keys of all entries of {bib}, sorted, to {folder}/entries.txt",
            f"{folder}/entries.txt: the key of every entry of {bib}, sorted",
        ),
        f"write the keys that are in {bib} but not cited to {folder}/uncited.txt, "
        f"and those cited but not in {bib} to {folder}/missing.txt",
        (
            f"write the number of uncited keys to {folder}/n-uncited.txt and of missing keys to {folder}/n-missing.txt",
            f"put how many keys are uncited into {folder}/n-uncited.txt and how many are missing into {folder}/n-missing.txt",
        ),
    )
    s.do(f"mkdir -p {folder}")
    s.do(f"grep -o 'cite{{[a-z0-9]*}}' {tex} | tr -d '}}' | cut -d'{{' -f2 | sort -u > {folder}/cited.txt")
    s.do(f"grep '^@' {bib} | tr -d ',' | cut -d'{{' -f2 | sort > {folder}/entries.txt")
    s.do(
        f"comm -13 {folder}/cited.txt {folder}/entries.txt > {folder}/uncited.txt",
        f"comm -23 {folder}/cited.txt {folder}/entries.txt > {folder}/missing.txt",
    )
    s.do(f"wc -l < {folder}/uncited.txt > {folder}/n-uncited.txt", f"wc -l < {folder}/missing.txt > {folder}/n-missing.txt")
    s.do(f"cat {folder}/uncited.txt {folder}/missing.txt")
    s.exact(f"{folder}/cited.txt", sorted(missing + both))
    s.exact(f"{folder}/entries.txt", sorted(uncited + both))
    s.exact(f"{folder}/uncited.txt", sorted(uncited))
    s.exact(f"{folder}/missing.txt", sorted(missing))
    s.value(f"{folder}/n-uncited.txt", len(uncited))
    s.value(f"{folder}/n-missing.txt", len(missing))
    s.unchanged(bib)


FAMILIES = (
    *easy("academic-author", rename_figure, count_entries, extract_abstract),
    *medium("academic-author", collect_todos, rename_citation, assemble_sections),
    *hard("academic-author", submission_package, uncited_references),
)
