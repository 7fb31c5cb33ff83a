"""Readers: one file a family of configurations, each turning keys into memories."""
