import subprocess


def said(*words):
    return subprocess.run(["/app/greet.sh", *words], capture_output=True, text=True, check=True).stdout


def test_greeting():
    assert said("Ada") == "Hello, Ada!\n"
    assert said() == "Hello, you!\n"
