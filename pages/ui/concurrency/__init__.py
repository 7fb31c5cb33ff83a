"""The Concurrency screen."""
