"""Provided: what a script has for its cells besides torch's own names, where they need it, and under which names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec import Struct, structs

_SHOW = '''
def {0}(value):
    """Print a cell's last value, as the notebook showed it."""
    if value is None:
        return
    try:
        from IPython.lib.pretty import pretty
    except ImportError:
        pretty = repr
    print(pretty(value))
'''
_DISPLAY = '''
def {0}(*values, **options):
    """Print what a cell displayed: its text, where the notebook showed a picture or a table."""
    for value in values:
        {1}(value)
'''
_SHELL = '''
def {0}(command):
    """Run a shell command, as ! did in a cell, and print what it says."""
    print(subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True).stdout, end="")
'''
_KEEP_WORLD = """
# Cells call these, too. As in the session, they find the world formed, and it stays so to the end.
{leave} = dist.destroy_process_group


def {formed}(*args, **kwargs):
    print(f"init_process_group: the world of {{world_size}} ranks ({backend}) is already formed; nothing to do")


def {kept}(group=None):
    if group is None or group is dist.group.WORLD:
        print("destroy_process_group: jdist keeps the world formed for the next cell; nothing to do")
    else:
        {leave}(group)


dist.init_process_group, dist.destroy_process_group = {formed}, {kept}
"""
_LINES = '''
def {0}(command):
    """The lines that a shell command writes, as ! gave them in a cell."""
    return subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True).stdout.splitlines()
'''


class Provided(Struct, frozen=True):
    """Names of the functions that a script has for its cells."""

    show: str = "show"
    display: str = "display"
    shell: str = "shell"
    lines: str = "shell_lines"
    loop: str = "event_loop"
    box: str = "passed_on"
    leave: str = "leave_world"
    formed: str = "already_formed"
    kept: str = "leave_group"

    @classmethod
    def beside(cls, bound: Iterable[str]) -> Self:
        """Names that no cell gives a meaning of its own; ``display`` is the notebook's, and has to stay."""
        taken = set(bound)
        free = {}
        for role, usual in structs.asdict(cls()).items():
            name = str(usual)
            while name in taken:
                name = f"{name}_"
            free[role] = name
        free["display"] = cls().display
        return cls(**free)

    def definitions(self, needs: Iterable[str]) -> str:
        """Python that defines the ``needs``."""
        wanted = set(needs)
        if self.display in wanted:
            wanted.add(self.show)
        known = {
            self.show: _SHOW.format(self.show),
            self.display: _DISPLAY.format(self.display, self.show),
            self.shell: _SHELL.format(self.shell),
            self.lines: _LINES.format(self.lines),
            self.loop: f"\n{self.loop} = asyncio.new_event_loop()\n",
        }
        return "\n".join(text for name, text in known.items() if name in wanted)

    def keeping_the_world(self, backend: str) -> str:
        """Python by which a cell's own forming and leaving of the world do nothing, as in the session."""
        return _KEEP_WORLD.format(leave=self.leave, formed=self.formed, kept=self.kept, backend=backend)

    def modules(self, needs: Iterable[str]) -> set[str]:
        """What the definitions import."""
        wanted = set(needs)
        shell = {"subprocess"} if wanted & {self.shell, self.lines} else set()
        return shell | ({"asyncio"} if self.loop in wanted else set())
