"""The commands of `onthejob`, one module per topic; each is imported only when it is called.

Options and names that cannot work raise `ConfigError` everywhere, so docstrings here name only the other errors.
"""
