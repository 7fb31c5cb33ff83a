"""The Accuracy screen."""
