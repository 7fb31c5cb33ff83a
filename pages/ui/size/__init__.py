"""The Size screen."""
