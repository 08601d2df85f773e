"""Gates: what must hold of the office before anything is trained on it, measured with scripted players only.

One module per gate (`order` ... `books`); `gate` says what a gate is, `measure` lists and runs them, `matches`, `foresight`,
`windows` and `audit` are the measurements that several of them share.
"""
