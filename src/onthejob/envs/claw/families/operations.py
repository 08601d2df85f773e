"""What an errand may ask for: one function per operation, which draws what it needs and changes the desk."""

from __future__ import annotations

from onthejob.envs.claw.families.desk import Desk, Step, Unsuitable
from onthejob.envs.claw.families.words import ANIMALS, COLORS, HOSTS, NOTES, RESULTS, TOPICS

_MONTHS = ("January", "March", "May", "June", "August", "October", "November")


def _first_lines(k: Desk) -> Step:
    path = k.file(least=4)
    n, out = k.d.number(2, len(k.now[path]) - 1), k.fresh("txt")
    k.make(out, k.now[path][:n], k.kinds[path])
    return k.step(
        f"head -n {n} {path} > {out}",
        f"put the first {n} lines of {path} into {out}",
        f"save the top {n} lines of {path} as {out}",
        f"{out} gets the first {n} lines of {path}",
        f"copy lines 1 to {n} of {path} into the file {out}",
    )


def _last_lines(k: Desk) -> Step:
    path = k.file(least=4)
    n, out = k.d.number(2, len(k.now[path]) - 1), k.fresh("txt")
    k.make(out, k.now[path][-n:], k.kinds[path])
    return k.step(
        f"tail -n {n} {path} > {out}",
        f"take the last {n} lines of {path} over into {out}",
        f"write the {n} lines at the end of {path} to {out}",
        f"{out} should hold the {n} last lines of {path}",
    )


def _without_top(k: Desk) -> Step:
    path, out = k.file(least=3), k.fresh("txt")
    k.make(out, k.now[path][1:], k.kinds[path] if k.kinds[path] != "table" else "rows")
    return k.step(
        f"tail -n +2 {path} > {out}",
        f"write all of {path} but its first line to {out}",
        f"copy {path} without the first line to {out}",
        f"{out} gets {path} from line 2 on",
    )


def _lines_with(k: Desk) -> Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.make(out, [line for line in k.now[path] if word in line], "found")
    return k.step(
        f"grep '{word}' {path} > {out}",
        f"collect the lines of {path} that contain '{word}' in {out}",
        f"write every line of {path} in which '{word}' occurs to {out}",
        f"{out} should have those lines of {path} that mention '{word}'",
        f"find '{word}' in {path} and keep the matching lines as {out}",
    )


def _lines_without(k: Desk) -> Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.make(out, [line for line in k.now[path] if word not in line], k.kinds[path])
    return k.step(
        f"grep -v '{word}' {path} > {out}",
        f"write the lines of {path} that do not contain '{word}' to {out}",
        f"copy {path} to {out}, but skip every line with '{word}'",
        f"{out} gets what is left of {path} when all lines with '{word}' are left out",
    )


def _how_many(k: Desk) -> Step:
    path, out = k.file(least=3), k.fresh("txt")
    k.count(out, len(k.now[path]))
    return k.step(
        f"wc -l < {path} > {out}",
        f"write how many lines {path} has to {out}",
        f"count the lines of {path}; the number goes into {out}",
        f"{out} should say how long {path} is, in lines",
    )


def _how_many_with(k: Desk) -> Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.count(out, sum(word in line for line in k.now[path]))
    return k.step(
        f"grep -c '{word}' {path} > {out}",
        f"write to {out} in how many lines of {path} '{word}' occurs",
        f"count the lines of {path} with '{word}' and put the number into {out}",
        f"{out} gets the number of lines of {path} that contain '{word}'",
    )


def _sorted(k: Desk) -> Step:
    path, out = k.file("prose", "log", "pairs", "settings", "words", "found", least=3), k.fresh("txt")
    k.make(out, sorted(k.now[path]), k.kinds[path])
    return k.step(
        f"sort {path} > {out}",
        f"sort the lines of {path} into {out}",
        f"write {path} in alphabetical order to {out}",
        f"{out} should hold the lines of {path}, sorted",
    )


def _distinct(k: Desk) -> Step:
    path, out = k.file("words", "names", least=3), k.fresh("txt")
    lines = sorted(set(k.now[path]))
    if len(lines) == len(k.now[path]):
        raise Unsuitable
    k.make(out, lines, "names")
    return k.step(
        f"sort -u {path} > {out}",
        f"write every different line of {path} once, sorted, to {out}",
        f"sort {path} into {out} and drop repeated lines",
        f"{out} gets the distinct lines of {path} in alphabetical order",
    )


def _column(k: Desk) -> Step:
    path = k.file("table", "pairs", least=3)
    out, n, comma = k.fresh("txt"), k.d.number(1, 2), k.kinds[path] == "table"
    separator, what = (",", "column") if comma else (" ", "word")
    k.make(out, [line.split(separator)[n - 1] for line in k.now[path]], "names")
    return k.step(
        f"cut -d'{separator}' -f{n} {path} > {out}",
        f"write {what} {n} of every line of {path} to {out}",
        f"{out} should hold only the {('first', 'second')[n - 1]} {what} of each line of {path}",
        f"take {what} {n} of {path}, line by line, and save it as {out}",
    )


def _joined(k: Desk) -> Step:
    first = k.file("prose", "log", "words", "pairs", "names")
    second = k.file("prose", "log", "words", "pairs", "names")
    if first == second:
        raise Unsuitable
    out = k.fresh("txt")
    k.make(out, [*k.now[first], *k.now[second]], "mixed")
    return k.step(
        f"cat {first} {second} > {out}",
        f"join {first} and {second}, in this order, in {out}",
        f"write {first} followed by {second} to {out}",
        f"{out} should have all lines of {first} and then all lines of {second}",
    )


def _copied(k: Desk) -> Step:
    path = k.file()
    aside = k.d.below(2)
    out = k.fresh(path.rpartition(".")[2], path.rpartition("/")[0] if aside else None)
    k.make(out, list(k.now[path]), k.kinds[path])
    # A new name alone is of the same folder.
    words = (f"make a copy of {path} named {out}", f"duplicate {path} as {out}") if aside else (f"copy {path} to {out}",)
    return k.step(f"cp {path} {out}", *words)


def _moved(k: Desk) -> Step:
    path = k.file()
    aside = k.d.below(2)
    out = k.fresh(path.rpartition(".")[2], path.rpartition("/")[0] if aside else None)
    lines, kind = k.now[path], k.kinds[path]
    k.remove(path)
    k.make(out, lines, kind)
    words = (f"rename {path} to {out}", f"{path} should be called {out} from now on") if aside else (f"move {path} to {out}",)
    return k.step(f"mv {path} {out}", *words)


def _deleted(k: Desk) -> Step:
    path = k.file()
    if path == k.last or len(k.now) < 2:
        raise Unsuitable
    k.remove(path)
    return k.step(f"rm {path}", f"delete {path}", f"remove the file {path}", f"{path} is not needed any more, delete it")


def _replaced(k: Desk) -> Step:
    path = k.file(least=2)
    old, new = k.word(path), k.d.pick((*COLORS, *ANIMALS, *HOSTS))
    if any(new in line for line in k.now[path]):
        raise Unsuitable
    k.make(path, [line.replace(old, new) for line in k.now[path]], k.kinds[path])
    return k.step(
        f"sed -i 's/{old}/{new}/g' {path}",
        f"replace every '{old}' in {path} by '{new}'",
        f"in {path}, write '{new}' wherever it says '{old}'",
        f"change '{old}' to '{new}' everywhere in {path}",
    )


def _set(k: Desk) -> Step:
    path, value = k.file("settings", least=2), k.d.number(1000, 9999)
    key = k.d.pick([line.partition("=")[0] for line in k.now[path]])
    if (path, key) in k.assigned:
        raise Unsuitable
    k.assigned.add((path, key))
    k.make(path, [f"{key}={value}" if line.startswith(f"{key}=") else line for line in k.now[path]], "settings")
    return k.step(
        f"sed -i 's/^{key}=.*/{key}={value}/' {path}",
        f"set {key} to {value} in {path}",
        f"in {path} the value of {key} must become {value}",
        f"give {key} the value {value} in {path}",
    )


def _dropped(k: Desk) -> Step:
    path = k.file(least=3)
    word = k.word(path)
    k.make(path, [line for line in k.now[path] if word not in line], k.kinds[path])
    return k.step(
        f"sed -i '/{word}/d' {path}",
        f"delete the lines with '{word}' from {path}",
        f"take every line that contains '{word}' out of {path}",
        f"{path} must not have lines with '{word}' any more; delete them",
    )


def _appended(k: Desk) -> Step:
    path, line = k.file(), k.d.pick(NOTES)
    k.make(path, [*k.now[path], line], "mixed")
    return k.step(
        f"echo '{line}' >> {path}",
        f"add the line '{line}' at the end of {path}",
        f"append '{line}' to {path}",
        f"{path} ends with one more line: '{line}'",
    )


def _on_top(k: Desk) -> Step:
    path, line = k.file(), f"{k.d.pick(TOPICS)} of {k.d.pick(_MONTHS)}"
    k.make(path, [line, *k.now[path]], "mixed")
    return k.step(
        f"sed -i '1i {line}' {path}",
        f"insert '{line}' as the first line of {path}",
        f"put the line '{line}' on top of {path}",
        f"{path} should begin with a new line '{line}'",
    )


def _written(k: Desk) -> Step:
    out, line = k.fresh("txt"), f"{k.d.pick(NOTES)} {k.d.number(2, 60)}"
    k.make(out, [line], "note")
    return k.step(
        f"echo '{line}' > {out}",
        f"create {out} with the single line '{line}'",
        f"write '{line}' to a new file {out}",
        f"make a file {out} that says '{line}'",
    )


def _filed(k: Desk) -> Step:
    """A file goes into a folder that is not there yet."""
    path, folder = k.file(), k.d.pick(RESULTS)
    if folder in k.folders or "/" in path:
        raise Unsuitable
    move = k.d.below(2)
    lines, kind = k.now[path], k.kinds[path]
    if move:
        k.remove(path)
    k.make(f"{folder}/{path}", list(lines), kind)
    k.folders.add(folder)
    verb = ("copy", "move")[move]
    return k.step(
        f"mkdir -p {folder}\n{('cp', 'mv')[move]} {path} {folder}/",
        f"create the folder {folder} and {verb} {path} into it",
        f"make a folder {folder}; {verb} {path} there",
        f"{verb} {path} into a new folder {folder}",
    )


OPERATIONS = (
    _first_lines,
    _last_lines,
    _without_top,
    _lines_with,
    _lines_without,
    _how_many,
    _how_many_with,
    _sorted,
    _distinct,
    _column,
    _joined,
    _copied,
    _moved,
    _deleted,
    _replaced,
    _set,
    _dropped,
    _appended,
    _on_top,
    _written,
    _filed,
)
"""Each draws its files and words and raises `Unsuitable` when there are none for it."""
