"""The Variants screen."""
