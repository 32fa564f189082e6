"""Kubernetes: a StatefulSet whose pods are nodes."""
