"""Gates: what must hold of the office before anything is trained on it, measured with scripted players only."""
