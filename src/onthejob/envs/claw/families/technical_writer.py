"""Families of the technical writer: terms, headings, drafts, links, release notes."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import FIRST_NAMES, NOTES, RESULTS, SENTENCES, SERVICES, TAGS, TOPICS, file_in
from onthejob.envs.claw.keyed_choices import Draw

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
    page = file_in(d, ("docs", "help", "manual"), ("guide", "start", "manual", "faq", *SERVICES), "md")
    lines = d.shuffled([phrase.format(old) for phrase in d.some(PHRASES, 3)] + d.some(SENTENCES, d.number(2, 5)))
    s.text(page, lines)
    s.say(
        f"Replace every '{old}' by '{new}' in {page}.",
        f"Our style guide says '{new}', not '{old}'. Fix {page}.",
        f"In {page}, change the word '{old}' to '{new}' everywhere.",
        f"{page} still uses '{old}'; each time it should read '{new}'.",
    )
    s.do(f"sed -i 's/{old}/{new}/g' {page}")
    s.exact(page, [line.replace(old, new) for line in lines])


def list_headings(s: Scene, d: Draw) -> None:
    """Make a list of a page's headings."""
    lines = [f"# {d.pick(SERVICES).title()}"]
    for topic in d.some(TOPICS, d.number(3, 6)):
        lines += [f"## {topic.title()}", *d.some(SENTENCES, d.number(1, 3))]
    page = file_in(d, ("docs", "help", "books"), ("guide", "manual", "handbook", "tutorial"), "md")
    out = file_in(d, (), ("toc", "headings", "outline", "structure"), "txt")
    s.text(page, lines)
    s.say(
        f"Write all lines of {page} that start with # to {out}.",
        f"Collect the headings of {page} (lines that begin with #) in {out}.",
        f"{out} should list the heading lines (starting with #) of {page}, in order.",
        f"Make an outline of {page}: copy its lines that begin with # into {out}, and nothing else.",
    )
    s.do(f"grep '^#' {page} > {out}")
    s.exact(out, [line for line in lines if line.startswith("#")])
    s.unchanged(page)


def publish_draft(s: Scene, d: Draw) -> None:
    """Move a finished draft to the published pages."""
    ready, waiting = d.some(TOPICS, 2)
    target = d.pick(("published", "docs", "pages", "site", "public"))
    drafts, tag = d.pick(("drafts", "queue", "inbox", "proof")), d.pick(TAGS)
    name = f"{ready}{tag}.md"
    s.text(f"{drafts}/{name}", [f"# {ready.title()}", d.pick(SENTENCES)])
    s.text(f"{drafts}/{waiting}.md", [f"# {waiting.title()}", "not finished"])
    s.text(f"{target}/index.md", ["# Index"])
    s.say(
        f"Move {drafts}/{name} to {target}/{name}.",
        f"The page on {ready} is ready: move it from {drafts}/{name} to {target}/{name}.",
        f"Publish {drafts}/{name} by moving it into {target}/. Leave the other pages in {drafts}.",
        f"{name} passed the review, so it belongs into {target}/ and no longer into {drafts}/. Please move it.",
    )
    s.do(f"mv {drafts}/{name} {target}/{name}")
    s.exact(f"{target}/{name}", s.files[f"{drafts}/{name}"].content)
    s.gone(f"{drafts}/{name}")
    s.unchanged(f"{drafts}/{waiting}.md")


def sort_glossary(s: Scene, d: Draw) -> None:
    """Bring a glossary into order and report its size."""
    terms = d.some([old for old, _ in TERMS] + list(SERVICES), d.number(6, 10))
    lines = [f"{term}: {d.pick(NOTES)}" for term in terms]
    path = file_in(d, ("docs", "help"), ("glossary", "terms", "index", "words"), "txt")
    count = file_in(d, (), ("count", "size", "how-many"), "txt")
    content = s.text(path, lines)
    extra = f"{d.pick(('zoom', 'yield', 'x-axis'))}: {d.pick(NOTES)}"
    s.say(
        f"Copy {path} to {path}.bak. Then add the line '{extra}' to {path}, sort {path} alphabetically in place, "
        f"and write its number of lines to {count}.",
        f"Keep a copy of {path} as {path}.bak; append '{extra}' to {path} and sort its lines. "
        f"{count} should hold the number of lines that {path} has then.",
        f"{path} lacks the line '{extra}'. Save {path} as {path}.bak first; then add the line, bring {path} into alphabetical "
        f"order, and put the number of its lines into {count}.",
    )
    s.do(f"cp {path} {path}.bak", f"echo '{extra}' >> {path}")
    s.do(f"sort -o {path} {path}", f"wc -l < {path} > {count}")
    s.exact(f"{path}.bak", content)
    s.exact(path, sorted([*lines, extra]))
    s.value(count, len(lines) + 1)


def missing_pages(s: Scene, d: Draw) -> None:
    """Find the pages that a navigation file names but that do not exist."""
    names = d.some(TOPICS, d.number(5, 8))
    missing = d.some(names, d.number(1, 3))
    docs, nav = d.pick(("docs", "manual", "pages", "help", "wiki")), file_in(d, (), ("nav", "menu", "sidebar", "contents"), "txt")
    for name in names:
        if name not in missing:
            s.text(f"{docs}/{name}.md", [f"# {name.title()}"])
    s.text(nav, [f"{name}.md" for name in names])
    out = file_in(d, (), ("missing", "broken", "todo", "lost"), "txt")
    count = f"n-{out}"
    s.say(
        f"{nav} names files of the folder {docs}. Write the names that do not exist in {docs}, sorted, to {out} and their "
        f"number to {count}.",
        f"Which files named in {nav} are not in the folder {docs}? List them sorted in {out} and write how many there are "
        f"to {count}.",
        f"Compare {nav}, a list of file names, with the folder {docs}. The names without a file go to {out}, sorted, and how "
        f"many they are goes to {count}.",
    )
    s.do(f"ls {docs} | sort > have.tmp", f"sort {nav} | comm -23 - have.tmp > {out}")
    s.do("rm have.tmp", f"wc -l < {out} > {count}")
    s.exact(out, sorted(f"{name}.md" for name in missing))
    s.value(count, len(missing))
    s.unchanged(nav)


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
        f"The notes of release {version} are in {', '.join(paths)}. Put them into {out} in this order, below the first line "
        f"'# Release {version}', and move the three files to used/.",
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
        (
            f"append the line 'Author: {author}' to {target}",
            f"{target} ends with one more line, 'Author: {author}'",
        ),
        f"append the line '- {product}/{name}.md' to site/index.md",
        (
            f"delete drafts/{name}.notes",
            f"drafts/{name}.notes is done with: delete it",
        ),
        (
            f"write the number of lines of {target} to site/length.txt",
            f"site/length.txt: how many lines {target} has in the end",
        ),
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
    docs = d.pick(("docs", "manual", "pages", "help", "wiki", "guide", "handbook", "faq", "chapters", "topics", "book", "text"))
    folder = d.pick((*RESULTS, "stock"))
    mark, other = d.some(("TODO", "FIXME", "DRAFT", "CHECK", "OPEN", "REWRITE"), 2)
    tag = mark.lower()
    pages: dict[str, list[str]] = {}
    for name in names:
        lines = [f"# {name.title()}", *d.some(SENTENCES, sizes[name] - 1)]
        for position in d.some(range(1, len(lines)), d.number(1, 2)):
            lines[position] = f"{d.pick((mark, mark, other))}: {d.pick(NOTES)}"
        pages[name] = lines
    pages[names[0]][1] = f"{mark}: {d.pick(NOTES)}"
    for name, lines in pages.items():
        s.text(f"{docs}/{name}.md", lines)
    with_mark = sorted(f"{docs}/{name}.md" for name, lines in pages.items() if any(mark in line for line in lines))
    marked = [line for name in sorted(names) for line in pages[name] if mark in line]
    longest = max(names, key=lambda name: sizes[name])
    table = sorted(f"{docs}/{name}.md {sizes[name]}" for name in names)
    s.ask(
        (
            f"Take stock of {docs}/*.md:",
            f"I need an inventory of the pages {docs}/*.md:",
            f"Report on the files {docs}/*.md:",
            f"How far are the pages {docs}/*.md? Please find out:",
        ),
        (
            f"write a line '{docs}/NAME.md LINES' per page with its number of lines to {folder}/lines.txt, sorted by name",
            f"{folder}/lines.txt gets one line '{docs}/NAME.md LINES' per page, sorted by name; LINES is its number of lines",
        ),
        (
            f"write the path of the longest page to {folder}/longest.txt",
            f"put the path of the page with the most lines into {folder}/longest.txt",
        ),
        f"write the paths of the pages that contain {mark}, sorted, to {folder}/with-{tag}.txt",
        (
            f"write all lines with {mark}, page by page in the order of the names, to {folder}/{tag}.txt, "
            f"and their number to {folder}/n-{tag}.txt",
            f"copy the lines with {mark} of all pages, in the order of the page names, into {folder}/{tag}.txt; "
            f"{folder}/n-{tag}.txt says how many they are",
        ),
        f"write the first line of each page, in the order of the names, to {folder}/titles.txt",
        (
            f"write the number of lines of all pages together to {folder}/total.txt",
            f"{folder}/total.txt: how many lines all pages have together",
        ),
    )
    s.do(f"mkdir -p {folder}", f"ls {docs}")
    s.do(f'for f in {docs}/*.md; do echo "$f $(wc -l < $f)"; done > {folder}/lines.txt')
    s.do(f"sort -k2 -n {folder}/lines.txt | tail -n 1 | cut -d' ' -f1 > {folder}/longest.txt")
    s.do(
        f"grep -l '{mark}' {docs}/*.md > {folder}/with-{tag}.txt",
        f"grep -h '{mark}' {docs}/*.md > {folder}/{tag}.txt",
        f"wc -l < {folder}/{tag}.txt > {folder}/n-{tag}.txt",
    )
    s.do(f"head -q -n 1 {docs}/*.md > {folder}/titles.txt", f"cat {docs}/*.md | wc -l > {folder}/total.txt")
    s.exact(f"{folder}/lines.txt", table)
    s.exact(f"{folder}/longest.txt", f"{docs}/{longest}.md")
    s.exact(f"{folder}/with-{tag}.txt", with_mark)
    s.exact(f"{folder}/{tag}.txt", marked)
    s.value(f"{folder}/n-{tag}.txt", len(marked))
    s.exact(f"{folder}/titles.txt", [pages[name][0] for name in sorted(names)])
    s.value(f"{folder}/total.txt", sum(sizes.values()))
    s.unchanged(f"{docs}/{names[0]}.md")


FAMILIES = (
    *easy("technical-writer", replace_term, list_headings, publish_draft),
    *medium("technical-writer", sort_glossary, missing_pages, release_notes),
    *hard("technical-writer", publish_site, page_inventory),
)
