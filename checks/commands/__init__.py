"""Commands of `onthejob` that measure: each is a dataclass of options with a method `run(terminal)`, named in `onthejob.cli`."""
