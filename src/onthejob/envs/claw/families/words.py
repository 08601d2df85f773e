"""Words from which several families draw names."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.envs.claw.keyed_choices import Draw


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, for tables of single words."""
    return tuple(text.split())


SURNAMES = words_of("adler baker chen diaz evans fischer garcia hoel ito jones kumar lopez meyer novak okafor park quinn rossi")
FIRST_NAMES = words_of("Ada Ben Chloe Dev Elif Finn Grace Hugo Ines Jonas Kaya Liam Mara Noor Omar Petra Rosa Sven")
TOPICS = words_of("methods results ablation overview baseline scaling errors latency pipeline survey limits dataset")
SERVICES = words_of("billing search orders auth mailer gateway reports profile catalog payments inventory sessions")
CITIES = words_of("oslo lima cairo delhi quito perth turin kyoto dakar salem porto leeds")
ANIMALS = words_of("fox owl bear frog wolf crab moth toad hare lynx crow goat")
COLORS = words_of("red blue green amber violet teal silver coral")
HOSTS = words_of("alpha bravo cedar delta ember falcon grove harbor iris juniper koala lotus")
MONTHS = words_of("jan feb mar apr may jun jul aug sep oct nov dec")
SENTENCES = (
    "The sample was stored at room temperature.",
    "We repeat each measurement three times.",
    "All participants gave their consent.",
    "The effect is small but stable.",
    "Earlier work reports similar values.",
    "The second group shows no change.",
    "Noise dominates below the threshold.",
    "We release the code with the paper.",
    "A larger study is under way.",
    "Costs grow with the square of the size.",
    "The model fits the data well.",
    "Outliers were kept in the analysis.",
    "This section states the assumptions.",
    "Results are averaged over five seeds.",
    "The proof is given in the appendix.",
    "We thank the anonymous reviewers.",
)
NOTES = (
    "check the units",
    "add a second example",
    "shorten this part",
    "explain the symbol",
    "cite the original source",
    "move this to the appendix",
    "verify the last number",
    "ask for permission",
    "redraw the plot",
    "fix the grammar",
    "compare with last year",
    "drop the weak claim",
)
RESULTS = words_of(
    "report summary output stats overview digest numbers findings tally review analysis evaluation check extract collected final"
)
"""Folders for what a task brings about, and names of files in errands; no family and no clutter seeds a folder of this name."""
TAGS = (
    *[""] * 4,
    *words_of("-new -draft -v2 -v3 -a -b"),
    *(f"-{month}" for month in MONTHS),
    *(f"-{year}" for year in range(2017, 2025)),
)
"""What people append to the names of their files."""


def file_in(d: Draw, folders: Sequence[str], stems: Sequence[str], ending: str) -> str:
    """A path such as `data/survey-mar.csv`: at the top or in one of `folders`, one of `stems`, a tag or none."""
    folder = d.pick(("", *(f"{name}/" for name in folders)))
    return f"{folder}{d.pick(stems)}{d.pick(TAGS)}.{ending}"
