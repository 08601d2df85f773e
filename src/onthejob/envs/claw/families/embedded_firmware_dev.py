"""Families of the embedded firmware developer: headers, register tables, images."""

from __future__ import annotations

from onthejob.envs.claw.families.scene import Scene, easy, hard, medium
from onthejob.envs.claw.families.words import ANIMALS, COLORS, NOTES, RESULTS, file_in, words_of
from onthejob.envs.claw.keyed_choices import Draw

MACROS = words_of("BAUD_RATE TICK_MS STACK_WORDS ADC_CHANNEL PWM_PERIOD RX_BUFFER LED_PIN WATCHDOG_MS SPI_CLOCK SLEEP_MS")
REGISTERS = ("CTRL", "STATUS", "DATA", "MODE", "CLOCK", "RESET", "IRQ", "MASK", "DMA", "TIMER")
SECTIONS = (".text", ".data", ".bss", ".rodata")


def version_of(d: Draw) -> str:
    """Such as `2.14.3`."""
    return f"{d.number(1, 9)}.{d.number(0, 30)}.{d.number(0, 9)}"


def change_define(s: Scene, d: Draw) -> None:
    """Change the value of one macro in a header."""
    macros = d.some(MACROS, d.number(4, 7))
    values = d.some(range(8, 5000), len(macros))
    name, old, new = macros[0], values[0], d.number(5001, 9999)
    path = d.pick(("config.h", "include/board.h", "src/settings.h"))
    lines = ["#pragma once", *d.shuffled([f"#define {m} {v}" for m, v in zip(macros, values, strict=True)])]
    s.text(path, lines)
    s.say(
        f"In {path}, change {name} from {old} to {new}.",
        f"Set the macro {name} in {path} to {new} (it is {old} now).",
        f"{path} defines {name} as {old}; it has to be {new}.",
    )
    s.do(f"sed -i 's/{name} {old}/{name} {new}/' {path}")
    s.exact(path, [f"#define {name} {new}" if line.startswith(f"#define {name} ") else line for line in lines])


def copy_image(s: Scene, d: Draw) -> None:
    """Put the built image into the release folder under its version."""
    version, kind = version_of(d), d.pick(("bin", "hex", "elf"))
    built, folder = d.pick((f"build/firmware.{kind}", f"out/app.{kind}")), d.pick(("release", "dist", "images"))
    target = f"{folder}/{d.pick(('fw', 'firmware', 'board'))}-{version}.{kind}"
    s.stub(built)
    s.text("VERSION", [version])
    s.say(
        f"Create the folder {folder} and copy {built} to {target}.",
        f"Copy {built} to {target}; the folder {folder} does not exist yet.",
        f"Release: {built} has to be copied to {target} (make the folder first).",
    )
    s.do(f"mkdir -p {folder}", f"cp {built} {target}")
    s.exists(target)
    s.unchanged(built)


def list_pins(s: Scene, d: Draw) -> None:
    """List the lines of a header about one kind of pin."""
    kinds = d.some(("GPIO", "UART", "SPI", "I2C", "PWM"), 3)
    lines = [f"#define PIN_{i} {d.pick(kinds)}_{d.number(0, 31)}" for i in range(d.number(8, 14))]
    lines.append(f"#define PIN_X {kinds[0]}_{d.number(0, 31)}")
    path = file_in(d, ("include", "board", "src"), ("pins", "pinmap", "io"), "h")
    out = file_in(d, (), ("pins", "used", "list", "lines"), "txt")
    s.text(path, lines)
    s.say(
        f"Write all lines of {path} with {kinds[0]} to {out}.",
        f"Save the {kinds[0]} lines of {path} as {out}.",
        f"Which lines of {path} mention {kinds[0]}? Copy them into {out}.",
        f"I want to see what {path} says about {kinds[0]}: copy its lines with {kinds[0]} into {out}.",
    )
    s.do(f"grep '{kinds[0]}' {path} > {out}")
    s.exact(out, [line for line in lines if f" {kinds[0]}_" in line])
    s.unchanged(path)


def bump_version(s: Scene, d: Draw) -> None:
    """Raise the version everywhere and note it in the change log."""
    old, new = version_of(d), version_of(d)
    while new == old:
        new = version_of(d)
    note = d.pick(NOTES)
    contents = {
        "VERSION": [old],
        "include/version.h": ["#pragma once", f'#define FW_VERSION "{old}"'],
        "README.md": ["# Firmware", f"Current version: {old}"],
    }
    for path, lines in contents.items():
        s.text(path, lines)
    log = s.text("CHANGES.txt", [f"{old}: first release"])
    s.say(
        f"Replace version {old} by {new} in VERSION, include/version.h and README.md, "
        f"and append the line '{new}: {note}' to CHANGES.txt.",
        f"The next version is {new}. Change {old} to it in VERSION, include/version.h and README.md; "
        f"CHANGES.txt gets '{new}: {note}' as its last line.",
        f"VERSION, include/version.h and README.md still say {old}. Make that {new} in all three, and note the change as the "
        f"line '{new}: {note}' at the end of CHANGES.txt.",
    )
    s.do(*(f"sed -i 's/{old}/{new}/' {path}" for path in contents))
    s.do(f"echo '{new}: {note}' >> CHANGES.txt")
    for path, lines in contents.items():
        s.exact(path, [line.replace(old, new) for line in lines])
    s.exact("CHANGES.txt", [*log.splitlines(), f"{new}: {note}"])


def register_header(s: Scene, d: Draw) -> None:
    """Make a header out of a register table."""
    names = d.some(REGISTERS, d.number(4, 7))
    rows = [f"{name},0x{4 * d.number(0, 200):03X}" for name in names]
    table = file_in(d, ("tables", "spec"), ("registers", "regs", "regmap", "peripheral"), "csv")
    out = file_in(d, ("include",), ("regs", "registers", "map"), "h")
    count, prefix = file_in(d, (), ("count", "n-regs", "how-many"), "txt"), d.pick(("REG", "HW", "IO", "ADDR", "OFF"))
    s.text(table, ["name,offset", *rows])
    if "/" in out:
        s.text("include/types.h", ["#pragma once"])
    defines = [f"#define {prefix}_{row.replace(',', ' ')}" for row in rows]
    s.say(
        f"Make {out} from {table}: first the line '#pragma once', then for each data row a line "
        f"'#define {prefix}_NAME OFFSET' (same order). Write the number of registers to {count}.",
        f"{table} has name,offset. Write {out}: '#pragma once', then '#define {prefix}_NAME OFFSET' per row, in order. "
        f"{count} should hold the number of registers.",
        f"I need {table} (header name,offset) as a C header {out}. It starts with '#pragma once'; every register follows as "
        f"'#define {prefix}_NAME OFFSET', in the order of the table. How many registers there are goes into {count}.",
    )
    s.do(f"cat {table}")
    s.do(f"echo '#pragma once' > {out}", f"tail -n +2 {table} | sed 's/,/ /; s/^/#define {prefix}_/' >> {out}")
    s.do(f"grep -c 'define {prefix}_' {out} > {count}")
    s.exact(out, ["#pragma once", *defines])
    s.value(count, len(rows))
    s.unchanged(table)


def board_variant(s: Scene, d: Draw) -> None:
    """Derive a board's configuration from another one."""
    base, new = d.some(ANIMALS, 2)
    led, other = d.some(COLORS, 2)
    flash = d.number(64, 512)
    lines = [f"board={base}", f"led={led}", f"flash_kb={flash}", f"ram_kb={d.number(8, 60)}"]
    source, target = f"boards/{base}.cfg", f"boards/{new}.cfg"
    s.text(source, lines)
    names = s.text("boards/list.txt", [base])
    grown = flash * 2
    s.say(
        f"Copy {source} to {target}. In {target} set board to {new}, led to {other} and flash_kb to {grown}. "
        f"Append {new} to boards/list.txt.",
        f"The board {new} is like {base}: copy {source} to {target} and there set board={new}, led={other}, "
        f"flash_kb={grown}. Add the line {new} to boards/list.txt.",
        f"We need a configuration {target}. Start from a copy of {source} with board {new}, led {other} and flash_kb {grown}, "
        f"and put {new} at the end of boards/list.txt.",
    )
    s.do(f"cp {source} {target}")
    s.do(
        f"sed -i 's/^board=.*/board={new}/' {target}",
        f"sed -i 's/^led=.*/led={other}/' {target}",
        f"sed -i 's/^flash_kb=.*/flash_kb={grown}/' {target}",
    )
    s.do(f"echo '{new}' >> boards/list.txt")
    s.exact(target, [f"board={new}", f"led={other}", f"flash_kb={grown}", lines[3]])
    s.exact("boards/list.txt", [*names.splitlines(), new])
    s.unchanged(source)


def release_image(s: Scene, d: Draw) -> None:
    """Assemble a firmware release."""
    version, board, note, other = version_of(d), d.pick(ANIMALS), *d.some(NOTES, 2)
    header = ["#pragma once", '#define FW_VERSION "dev"', f"#define {d.pick(MACROS)} {d.number(10, 999)}"]
    s.text("include/version.h", header)
    s.stub("build/firmware.bin", "build/firmware.map")
    s.text("LICENSE.txt", ["All rights reserved."])
    s.text("build/scratch.tmp", ["scratch"])
    folder = f"release/{board}-{version}"
    image, notes = f"{folder}/{board}.bin", f"{folder}/NOTES.txt"
    s.ask(
        (f"Release version {version} for {board}:", f"Make the {board} release {version}:", f"Please cut release {version}:"),
        f'in include/version.h replace "dev" by "{version}"',
        f"create {folder}, copy build/firmware.bin to {image} and LICENSE.txt into {folder}/",
        (
            f"copy include/version.h into {folder}/",
            f"the changed include/version.h is also copied into {folder}/",
        ),
        (
            f"write the lines 'version {version}', '{note}' and '{other}' to {notes}",
            f"{notes} has three lines: 'version {version}', '{note}' and '{other}'",
        ),
        (
            "delete build/scratch.tmp",
            "build/scratch.tmp can go: delete it",
        ),
    )
    s.do(f"sed -i 's/dev/{version}/' include/version.h", "cat include/version.h")
    s.do(
        f"mkdir -p {folder}",
        f"cp build/firmware.bin {image}",
        f"cp LICENSE.txt {folder}/",
        f"cp include/version.h {folder}/",
    )
    s.do(f"echo 'version {version}' > {notes}", f"echo '{note}' >> {notes}", f"echo '{other}' >> {notes}")
    s.do("rm build/scratch.tmp")
    done = [line.replace("dev", version) for line in header]
    s.exact("include/version.h", done)
    s.exact(f"{folder}/version.h", done)
    s.exists(image)
    s.exact(f"{folder}/LICENSE.txt", "All rights reserved.")
    s.exact(notes, [f"version {version}", note, other])
    s.gone("build/scratch.tmp")
    s.unchanged("build/firmware.bin", "build/firmware.map")


def section_sizes(s: Scene, d: Draw) -> None:
    """Sum up a linker map per section and find the largest symbol."""
    sizes = d.some(range(4, 4000), d.number(12, 18))
    rows = [(d.pick(SECTIONS), f"{d.pick(ANIMALS)}_{i}", size) for i, size in enumerate(sizes[2:])]
    rows += [(".text", "main", sizes[0]), (".data", "table", sizes[1])]
    linked = file_in(d, ("out", "link"), ("firmware", "app", "image", "kernel"), "map")
    s.text(linked, [" ".join(map(str, row)) for row in rows])
    budget, folder = d.number(90, 300) * 100, d.pick((*RESULTS, "sizes", "memory"))
    total = sum(size for *_, size in rows)
    by_section = {name: sum(size for section, _, size in rows if section == name) for name in (".text", ".data")}
    largest = max(rows, key=lambda row: row[2])
    used = sorted({section for section, *_ in rows})
    s.ask(
        (
            f"Summarise {linked} (lines SECTION SYMBOL BYTES). Write:",
            f"{linked} has lines 'SECTION SYMBOL BYTES'. Work out and write:",
            f"Where does the memory go? From {linked} (lines SECTION SYMBOL BYTES) write:",
        ),
        (
            f"the sum of BYTES of .text to {folder}/text.txt, and of .data to {folder}/data.txt",
            f"to {folder}/text.txt the sum of BYTES of the .text lines, and to {folder}/data.txt that of the .data lines",
        ),
        f"the sum of all BYTES to {folder}/total.txt",
        (
            f"the line with the most BYTES to {folder}/largest.txt",
            f"to {folder}/largest.txt the whole line that has the highest BYTES",
        ),
        f"the different sections, sorted, to {folder}/sections.txt, and their number to {folder}/n-sections.txt",
        f"'ok' to {folder}/verdict.txt when the sum of all BYTES is at most {budget}, otherwise 'too big'",
    )
    s.do(f"mkdir -p {folder}", f"head -n 3 {linked}")
    s.do(
        f"awk '$1==\".text\" {{s+=$3}} END {{print s}}' {linked} > {folder}/text.txt",
        f"awk '$1==\".data\" {{s+=$3}} END {{print s}}' {linked} > {folder}/data.txt",
        f"awk '{{s+=$3}} END {{print s}}' {linked} > {folder}/total.txt",
    )
    s.do(f"sort -k3 -n {linked} | tail -n 1 > {folder}/largest.txt")
    s.do(
        f"cut -d' ' -f1 {linked} | sort -u > {folder}/sections.txt",
        f"wc -l < {folder}/sections.txt > {folder}/n-sections.txt",
    )
    s.do(f'awk \'{{if ($1 <= {budget}) print "ok"; else print "too big"}}\' {folder}/total.txt > {folder}/verdict.txt')
    s.value(f"{folder}/text.txt", by_section[".text"])
    s.value(f"{folder}/data.txt", by_section[".data"])
    s.value(f"{folder}/total.txt", total)
    s.exact(f"{folder}/largest.txt", " ".join(map(str, largest)))
    s.exact(f"{folder}/sections.txt", used)
    s.value(f"{folder}/n-sections.txt", len(used))
    s.exact(f"{folder}/verdict.txt", "ok" if total <= budget else "too big")
    s.unchanged(linked)


FAMILIES = (
    *easy("embedded-firmware-dev", change_define, copy_image, list_pins),
    *medium("embedded-firmware-dev", bump_version, register_header, board_variant),
    *hard("embedded-firmware-dev", release_image, section_sizes),
)
