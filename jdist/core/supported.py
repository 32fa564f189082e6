"""The releases of torch with which jdist is tested: the oldest, which it requires at least, and the newest."""

OLDEST_TORCH = "2.12.1"
NEWEST_TORCH = "2.14.1"
ADVICE = f"jdist is tested with torch {OLDEST_TORCH} to {NEWEST_TORCH}; install one of these, or a newer jdist"
