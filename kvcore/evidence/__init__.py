"""What was measured or logged elsewhere, and how close the predictions came."""
