"""What TextArena 0.7 does not say of its games: the number of their players, which of them cannot be played, and why.

Games are named by the folder of their class, as in `textarena.envs.TicTacToe`; one folder serves many ids. The tests play every
folder and compare with these tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping


def _of(names: str, fewest: int, most: int) -> dict[str, range]:
    return dict.fromkeys(names.split(), range(fewest, most + 1))


SEATS: Mapping[str, range] = {
    **_of("Bandit Blackjack Countdown Crosswords Cryptarithm FifteenPuzzle FrozenLake Game2048 GuessTheNumber LightsOut", 1, 1),
    **_of("Klondike LogicPuzzle Mastermind Minesweeper PegJump RushHour Secretary Set Slitherlink Sokoban Sudoku", 1, 1),
    **_of("ThreeCardMonte TowerOfHanoi UltimateTexasHoldem", 1, 1),
    **_of("Alquerque Battleship Breakthrough Checkers Chess Chopsticks ColonelBlotto ConnectFour Crusade", 2, 2),
    **_of("GameOfPureStrategy GermanWhist HighSociety IndianPoker IteratedMatchingPennies IteratedPrisonersDilemma", 2, 2),
    **_of("IteratedRockPaperScissors IteratedStagHunt IteratedTwoThirdsAverage IteratedUltimatumGame KuhnPoker", 2, 2),
    **_of("LinesOfAction MemoryGame NewRecruit Nim Othello PigDice QuantumTicTacToe ReverseTicTacToe", 2, 2),
    **_of("SimpleBlindAuction SimpleNegotiation SimpleTak SpiteAndMalice Stratego Tak TicTacToe TruthAndDeception", 2, 2),
    **_of("TwoDollar UltimateTicTacToe WildTicTacToe", 2, 2),
    **_of("Santorini", 2, 3),
    **_of("Briscola Golf", 2, 4),
    **_of("Snake Surround LiarsDice Poker PublicGoodsGame MarketEntryGame", 2, 15),
    **_of("ThreePlayerGOPS ThreePlayerIPD ThreePlayerTicTacToe", 3, 3),
    **_of("SettlersOfCatan", 4, 4),
    "Taboo": range(4, 7, 2),
    **_of("SecretMafia", 6, 15),
}
"""Folder -> numbers of players that the game allows."""

_WORDS = "it downloads word lists of NLTK when it is imported"
_MODEL = "it asks a hosted model through OpenRouter"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ["Codenames", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee", "WordChains", "WordLadder", "WordSearch", "Wordle"],
        _WORDS,
    ),
    **dict.fromkeys(["Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"], _MODEL),
    "BabyAiText": "it needs the abandoned package gym and a BabyAI of its own",
    "CharacterConclave": "its rules raise an error at the first message (TextArena 0.7.4)",
    "ScorableGames": "the package lacks its data files (TextArena 0.7.4)",
    "UsedCar": "the package lacks its module (TextArena 0.7.4)",
    "UsedCarNegotiation": "the package lacks its data files (TextArena 0.7.4)",
}
"""Folder -> why the game cannot be played."""
REFUSED_IDS: Mapping[str, str] = {
    "LightsOut-v0-train": "this id shows the last board, and the game sends none; textarena:LightsOut-v0 can be played"
}
"""Id -> why this variant of a game cannot be played."""
NEWER_PYTHON = frozenset(["Checkers", "Chess", "IteratedStagHunt", "Klondike", "ReverseTicTacToe", "UltimateTexasHoldem"])
"""Folders whose source is of Python 3.12."""
LISTED = frozenset(
    [
        "Crusade",
        "FifteenPuzzle",
        "KuhnPoker",
        "Othello",
        "PigDice",
        "SimpleTak",
        "SpiteAndMalice",
        "ThreePlayerTicTacToe",
        "TicTacToe",
        "WildTicTacToe",
    ]
)
"""Folders whose observations list all legal moves, which are the game's for a random player."""
PRINTING = frozenset(["FrozenLake", "LogicPuzzle", "NewRecruit", "RushHour", "SettlersOfCatan"])
"""Folders whose games write to stdout."""


def why_refused(game_id: str, folder: str) -> str:
    """Why a game cannot be played here; empty when it can."""
    if game_id in REFUSED_IDS:
        return REFUSED_IDS[game_id]
    if folder in REFUSED:
        return REFUSED[folder]
    if folder in NEWER_PYTHON and sys.version_info < (3, 12):
        return f"its source needs Python 3.12, and this is {sys.version_info.major}.{sys.version_info.minor}"
    return "" if folder in SEATS else "the number of its players is not known, as it is newer than TextArena 0.7.4"
