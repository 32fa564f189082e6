"""Run cells on a rank: its shell, output, signals, tracebacks, children and imports.

The control thread orders a cell; the kernel's loop runs it on the main thread. The outcome is published behind the
cell's last output.
"""
