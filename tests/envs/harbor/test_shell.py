"""What a shell script names, read without running it."""

from __future__ import annotations

import pytest

from onthejob.envs.harbor.shell import UnreadScript, commands, programs

READ = {
    "mkdir -p a && touch 'b c'; ls | wc -l": ["mkdir", "touch", "ls", "wc"],
    "apt-get update \\\n  && apt-get install -y jq  # tools": ["apt-get", "apt-get"],
    'if [ "$(cat x)" = 1 ]; then echo "yes; no"; else false; fi': ["cat", "[", "echo", "false"],
    "for f in *.txt; do mv $f ${f%.txt}.md; done": ["mv"],
    "X=1 Y=$(date) sudo env A=b timeout -k 5 10s python3 run.py": ["date", "python3"],
    "cat <<'EOF' > out.txt\nrm -rf /\nEOF\nls": ["cat", "ls"],
    "case $1 in\n a|b) echo one ;;\n *) printf two ;;\nesac\nls": ["echo", "printf", "ls"],
    "run() { pytest tests; }\nrun": ["pytest"],
    "[[ -f a && -f b ]] && true": ["[[", "true"],
    "(( n++ )); cmd 2>&1 >log": ["cmd"],
    "echo $((1 + 2)) `id`": ["id", "echo"],
    "find . -name '*.py' | xargs -n 1 grep x": ["find", "grep"],
}


@pytest.mark.parametrize("script", READ)
def test_programs_of_a_script(script: str):
    assert list(programs(script)) == READ[script]


def test_words_and_files_and_heredocs():
    (found,) = commands("python3 - --name 'a b' > /tmp/$X.txt <<END\nprint(1)\nEND\n")
    assert found.words == ["python3", "-", "--name", "a b"]
    assert found.writes == ["/tmp/" + "$X.txt"]
    assert found.body == "print(1)\n"


@pytest.mark.parametrize("script", ["echo 'open", 'echo "open', "echo $(ls", "cat << \n"])
def test_what_cannot_be_read_says_so(script: str):
    with pytest.raises(UnreadScript):
        commands(script)
