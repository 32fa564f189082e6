"""Drill: causes faults on a temporary cluster, and checks that each is named, ranks come free, and names are kept."""
