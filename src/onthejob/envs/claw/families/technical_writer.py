"""Families of the technical writer: terms, headings, drafts, links, release notes."""

from __future__ import annotations

from onthejob.envs.claw.draw import Draw
from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import FIRST_NAMES, NOTES, SENTENCES, SERVICES, TOPICS

TERMS = (
    ("login", "sign-in"),
    ("folder", "directory"),
    ("menu", "panel"),
    ("e-mail", "email"),
    ("click", "select"),
    ("wizard", "assistant"),
    ("server", "host"),
    ("console", "terminal"),
    ("plugin", "extension"),
    ("password", "passphrase"),
)
PHRASES = ("Open the {} first.", "The {} is shown below.", "Close the {} when you are done.", "Each {} has a name.")


def replace_term(s: Scene, d: Draw) -> None:
    """Replace a term throughout one page."""
    old, new = d.pick(TERMS)
    page = d.pick(("guide.md", "docs/start.md", "manual.md", "docs/faq.md"))
    lines = d.shuffled([phrase.format(old) for phrase in d.some(PHRASES, 3)] + d.some(SENTENCES, d.number(2, 5)))
    s.text(page, lines)
    s.say(
        f"Replace every '{old}' by '{new}' in {page}.",
        f"Our style guide says '{new}', not '{old}'. Fix {page}.",
        f"In {page}, change the word '{old}' to '{new}' everywhere.",
    )
    s.do(f"sed -i 's/{old}/{new}/g' {page}")
    s.exact(page, [line.replace(old, new) for line in lines])


def list_headings(s: Scene, d: Draw) -> None:
    """Make a list of a page's headings."""
    lines = [f"# {d.pick(SERVICES).title()}"]
    for topic in d.some(TOPICS, d.number(3, 6)):
        lines += [f"## {topic.title()}", *d.some(SENTENCES, d.number(1, 3))]
    page, out = d.pick(("guide.md", "docs/manual.md", "handbook.md")), d.pick(("toc.txt", "headings.txt", "outline.md"))
    s.text(page, lines)
    s.say(
        f"Write all lines of {page} that start with # to {out}.",
        f"Collect the headings of {page} (lines that begin with #) in {out}.",
        f"{out} should list the heading lines (starting with #) of {page}, in order.",
    )
    s.do(f"grep '^#' {page} > {out}")
    s.exact(out, [line for line in lines if line.startswith("#")])
    s.unchanged(page)


def publish_draft(s: Scene, d: Draw) -> None:
    """Move a finished draft to the published pages."""
    ready, waiting = d.some(TOPICS, 2)
    target = d.pick(("published", "docs", "pages"))
    s.text(f"drafts/{ready}.md", [f"# {ready.title()}", d.pick(SENTENCES)])
    s.text(f"drafts/{waiting}.md", [f"# {waiting.title()}", "not finished"])
    s.text(f"{target}/index.md", ["# Index"])
    s.say(
        f"Move drafts/{ready}.md to {target}/{ready}.md.",
        f"The draft {ready} is ready: move it from drafts/{ready}.md to {target}/{ready}.md.",
        f"Publish drafts/{ready}.md by moving it into {target}/. Leave the other drafts.",
    )
    s.do(f"mv drafts/{ready}.md {target}/{ready}.md")
    s.exact(f"{target}/{ready}.md", s.files[f"drafts/{ready}.md"].content)
    s.gone(f"drafts/{ready}.md")
    s.unchanged(f"drafts/{waiting}.md")


def sort_glossary(s: Scene, d: Draw) -> None:
    """Bring a glossary into order and report its size."""
    terms = d.some([old for old, _ in TERMS] + list(SERVICES), d.number(6, 10))
    lines = [f"{term}: {d.pick(NOTES)}" for term in terms]
    path = d.pick(("glossary.txt", "terms.txt", "docs/glossary.txt"))
    content = s.text(path, lines)
    extra = f"{d.pick(('zoom', 'yield', 'x-axis'))}: {d.pick(NOTES)}"
    s.say(
        f"Copy {path} to {path}.bak. Then add the line '{extra}' to {path}, sort {path} alphabetically in place, "
        f"and write its number of lines to count.txt.",
        f"Keep a copy of {path} as {path}.bak; append '{extra}' to {path} and sort its lines. "
        f"count.txt should hold the number of lines that {path} has then.",
    )
    s.do(f"cp {path} {path}.bak", f"echo '{extra}' >> {path}")
    s.do(f"sort -o {path} {path}", f"wc -l < {path} > count.txt")
    s.exact(f"{path}.bak", content)
    s.exact(path, sorted([*lines, extra]))
    s.value("count.txt", len(lines) + 1)


def missing_pages(s: Scene, d: Draw) -> None:
    """Find the pages that a navigation file names but that do not exist."""
    names = d.some(TOPICS, d.number(5, 8))
    missing = d.some(names, d.number(1, 3))
    for name in names:
        if name not in missing:
            s.text(f"docs/{name}.md", [f"# {name.title()}"])
    s.text("nav.txt", [f"{name}.md" for name in names])
    out = d.pick(("missing.txt", "broken.txt", "todo.txt"))
    s.say(
        f"nav.txt names files of the folder docs. Write the names that do not exist in docs, sorted, to {out} and their "
        f"number to n-missing.txt.",
        f"Which files named in nav.txt are not in the folder docs? List them sorted in {out} and write how many there are "
        f"to n-missing.txt.",
    )
    s.do("ls docs | sort > have.tmp", f"sort nav.txt | comm -23 - have.tmp > {out}")
    s.do("rm have.tmp", f"wc -l < {out} > n-missing.txt")
    s.exact(out, sorted(f"{name}.md" for name in missing))
    s.value("n-missing.txt", len(missing))
    s.unchanged("nav.txt")


def release_notes(s: Scene, d: Draw) -> None:
    """Assemble release notes from the collected fragments."""
    version = f"{d.number(1, 9)}.{d.number(0, 20)}"
    names = d.some(SERVICES, 3)
    notes = {name: f"- {name}: {d.pick(NOTES)}" for name in names}
    for name in names:
        s.text(f"fragments/{name}.txt", [notes[name]])
    out = d.pick(("NOTES.md", "RELEASE.md", "docs/news.md"))
    if "/" in out:
        s.text("docs/index.md", ["# Docs"])
    paths = [f"fragments/{name}.txt" for name in names]
    s.say(
        f"Create {out} with the line '# Release {version}' followed by the contents of {', '.join(paths)} in this order. "
        f"Then move the three fragments into used/.",
        f"Release notes: {out} starts with '# Release {version}', then come {', '.join(paths)} in this order. "
        f"After that move these fragments into the folder used.",
    )
    s.do(f"echo '# Release {version}' > {out}", f"cat {' '.join(paths)} >> {out}")
    s.do("mkdir -p used", f"mv {' '.join(paths)} used/")
    s.exact(out, [f"# Release {version}", *(notes[name] for name in names)])
    s.exists(*(f"used/{name}.txt" for name in names))
    s.gone(*paths[:2])


def publish_site(s: Scene, d: Draw) -> None:
    """Publish a reviewed page with everything that belongs to it."""
    name, author, product, (old, new) = d.pick(TOPICS), d.pick(FIRST_NAMES), d.pick(SERVICES), d.pick(TERMS)
    page = [f"# {name.title()}", "Status: draft", *(phrase.format(old) for phrase in d.some(PHRASES, 2)), d.pick(SENTENCES)]
    s.text(f"drafts/{name}.md", page)
    s.stub(f"drafts/{name}.png")
    s.text(f"drafts/{name}.notes", [d.pick(NOTES)])
    s.text("site/index.md", [f"# {product.title()}"])
    folder = f"site/{product}"
    target = f"{folder}/{name}.md"
    s.ask(
        (f"Publish the page {name}:", f"The page {name} passed its review. Please publish it:", f"Put {name} on the site:"),
        f"create {folder}/images",
        f"move drafts/{name}.md to {target} and drafts/{name}.png into {folder}/images/",
        f"in {target} change 'Status: draft' to 'Status: final' and every '{old}' to '{new}'",
        f"append the line 'Author: {author}' to {target}",
        f"append the line '- {product}/{name}.md' to site/index.md",
        f"delete drafts/{name}.notes",
        f"write the number of lines of {target} to site/length.txt",
    )
    s.do(f"mkdir -p {folder}/images", f"mv drafts/{name}.md {target}", f"mv drafts/{name}.png {folder}/images/")
    s.do(f"sed -i 's/Status: draft/Status: final/' {target}", f"sed -i 's/{old}/{new}/g' {target}")
    s.do(
        f"echo 'Author: {author}' >> {target}",
        f"echo '- {product}/{name}.md' >> site/index.md",
        f"rm drafts/{name}.notes",
    )
    s.do(f"wc -l < {target} > site/length.txt")
    body = [line.replace("Status: draft", "Status: final").replace(old, new) for line in page]
    s.exact(target, [*body, f"Author: {author}"])
    s.exists(f"{folder}/images/{name}.png")
    s.exact("site/index.md", [f"# {product.title()}", f"- {product}/{name}.md"])
    s.gone(f"drafts/{name}.md", f"drafts/{name}.png", f"drafts/{name}.notes")
    s.value("site/length.txt", len(body) + 1)


def page_inventory(s: Scene, d: Draw) -> None:
    """Take stock of the pages: lines, headings and open points."""
    names = d.some(TOPICS, d.number(3, 5))
    sizes = dict(zip(names, d.some(range(4, 13), len(names)), strict=True))
    pages: dict[str, list[str]] = {}
    for name in names:
        lines = [f"# {name.title()}", *d.some(SENTENCES, sizes[name] - 1)]
        for position in d.some(range(1, len(lines)), d.number(1, 2)):
            lines[position] = f"{d.pick(('TODO', 'TODO', 'FIXME'))}: {d.pick(NOTES)}"
        pages[name] = lines
    pages[names[0]][1] = f"TODO: {d.pick(NOTES)}"
    for name, lines in pages.items():
        s.text(f"docs/{name}.md", lines)
    with_todo = sorted(f"docs/{name}.md" for name, lines in pages.items() if any("TODO" in line for line in lines))
    todos = [line for name in sorted(names) for line in pages[name] if "TODO" in line]
    longest = max(names, key=lambda name: sizes[name])
    table = sorted(f"docs/{name}.md {sizes[name]}" for name in names)
    s.ask(
        ("Take stock of docs/*.md:", "I need an inventory of the pages docs/*.md:", "Report on the files docs/*.md:"),
        "write a line 'docs/NAME.md LINES' per page with its number of lines to stock/lines.txt, sorted by name",
        "write the path of the longest page to stock/longest.txt",
        "write the paths of the pages that contain TODO, sorted, to stock/with-todo.txt",
        "write all lines with TODO, page by page in the order of the names, to stock/todo.txt, "
        "and their number to stock/n-todo.txt",
        "write the first line of each page, in the order of the names, to stock/titles.txt",
        "write the number of lines of all pages together to stock/total.txt",
    )
    s.do("mkdir -p stock", "ls docs")
    s.do('for f in docs/*.md; do echo "$f $(wc -l < $f)"; done > stock/lines.txt')
    s.do("sort -k2 -n stock/lines.txt | tail -n 1 | cut -d' ' -f1 > stock/longest.txt")
    s.do(
        "grep -l 'TODO' docs/*.md > stock/with-todo.txt",
        "grep -h 'TODO' docs/*.md > stock/todo.txt",
        "wc -l < stock/todo.txt > stock/n-todo.txt",
    )
    s.do("head -q -n 1 docs/*.md > stock/titles.txt", "cat docs/*.md | wc -l > stock/total.txt")
    s.exact("stock/lines.txt", table)
    s.exact("stock/longest.txt", f"docs/{longest}.md")
    s.exact("stock/with-todo.txt", with_todo)
    s.exact("stock/todo.txt", todos)
    s.value("stock/n-todo.txt", len(todos))
    s.exact("stock/titles.txt", [pages[name][0] for name in sorted(names)])
    s.value("stock/total.txt", sum(sizes.values()))
    s.unchanged(f"docs/{names[0]}.md")


FAMILIES = (
    *easy("technical-writer", replace_term, list_headings, publish_draft),
    *medium("technical-writer", sort_glossary, missing_pages, release_notes),
    *hard("technical-writer", publish_site, page_inventory),
)
