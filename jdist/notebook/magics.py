"""The magics ``%dist`` and ``%%dist``."""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand
from IPython.utils.text import DollarFormatter

from jdist.core.errors import UsageError
from jdist.core.messages.runs import CellSpec
from jdist.core.settings import declared_options
from jdist.notebook import verbs
from jdist.notebook.completion import RankCompleter, code_start, ranks_part
from jdist.notebook.error_display import Interrupted, show_shortly
from jdist.notebook.options import cell_parser, split_words
from jdist.notebook.output import missing_names
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.screen import TerminalScreen, kernel_screen
from jdist.notebook.page import ClusterComm, missing_extension
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded_errors
from jdist.notebook.verbs import diagnosis, values
from jdist.notebook.widgets.rank_widgets import RankWidgets
from jdist.wire.processes import prepare_streams

_HELP = re.compile(r"^\s*(?:\?+\s*(?P<before>%dist\s+[\w-]+)|(?P<after>%dist\s+[\w-]+)\s*\?+)\s*$")


@magics_class
class DistMagics(Magics):
    """``%dist VERB`` and ``%%dist``."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self._shell = shell
        screen = kernel_screen() if hasattr(shell, "kernel") else TerminalScreen()
        self.session = Session(screen, shell.user_ns, "notebook")
        self.completer = RankCompleter(self.session)
        self.comm = ClusterComm(self.session) if screen.has_page else None
        if hasattr(shell, "kernel") and screen.is_live:
            self.session.make_widgets = functools.partial(RankWidgets, kernel=shell.kernel)
        self.end_error_display: Callable[[], None] = lambda: None

    @no_var_expand  # or {…} in an expression would show what the notebook has
    @needs_local_scope
    @line_cell_magic
    def dist(self, line: str, cell: str | None = None, local_ns: Mapping[str, Any] | None = None) -> Any:
        """``%dist`` lists the verbs, ``%dist VERB`` carries one out, ``%%dist`` runs the cell on every rank."""
        expand = functools.partial(_expand, names={**self._shell.user_ns, **(local_ns or {})})
        try:
            if cell is not None:
                with worded_errors():
                    self._cell(line, cell, expand)
                return None
            words = split_words(line)
            if words:
                return verbs.call(self.session, words[0], words[1:], expand)
            print(verbs.usage())
        except KeyboardInterrupt as e:
            raise Interrupted(*e.args) from None
        return None

    def _cell(self, line: str, cell: str, expand: Callable[[str], str]) -> None:
        s = self.session
        o = cell_parser().parse(split_words(line), expand)
        cluster = s.cluster
        ranks = s.select_for_cell(o.ranks, o.group)
        if o.lead is not None and o.lead not in ranks:
            raise UsageError(f"--lead {o.lead}: the cell runs on ranks {', '.join(map(str, ranks))}")
        if o.out and not o.out.isidentifier():
            raise UsageError(f"-o {o.out!r}: that is not a variable name")
        profile = diagnosis.options_of(o, len(ranks))
        can_ask = len(ranks) == 1 and not o.background
        frames = s.frames_of(ranks)
        options = {option.name: getattr(o, option.name) for option in declared_options(CellSpec)}
        options |= {"allow_stdin": can_ask, "in_failure": bool(s.debugged), "profile": profile}
        run = cluster.submit(cell, ranks, first_line=_first_line(self._shell, cell), **options)
        count = getattr(self._shell, "execution_count", None)
        cluster.history.entitle(run.number, f"In [{count}]: %%dist {line}".rstrip())
        s.last_run = run
        if o.out:
            s.namespace[o.out] = run
        notices, names = s.drain_notices(), s.namespace
        options = {"lead": o.lead, "timeout": o.timeout, "notices": notices, "namespace": names, "frames": frames}
        options["widgets"] = s.widgets
        display = RunDisplay(cluster, run, s.screen, **options)
        if o.background:
            display.follow_in_background()
            if profile is not None:
                diagnosis.show_profile(s, run, o.profile, is_over=False)
            return
        local = self._run_here(cell) if o.local else None
        try:
            is_over = display.follow(until_paused=True)
        finally:
            s.drain_notices()  # the display has shown them
        if profile is not None:
            diagnosis.show_profile(s, run, o.profile, is_over=is_over)
        if not is_over:
            if o.pull:
                s.echo(f"not pulled, as the run is paused: {typed('pull')} {o.pull} reads it in the paused frames")
            return
        run.check()
        if local is not None:
            local.raise_error()
        if o.pull:
            values.pull_names(s, o.pull, ranks)

    def _run_here(self, cell: str) -> Any:
        """Run it as a plain cell of the notebook, even while auto would send that to the ranks."""
        is_auto, self.session.is_auto = self.session.is_auto, False
        try:
            return self._shell.run_cell(cell)
        finally:
            self.session.is_auto = is_auto

    def show_revival(self, _: Any) -> None:
        """After any cell: say that the controller had died and was started again, if no output has said so."""
        for notice in self.session.drain_revival_notices():
            self.session.echo(f"note: {notice}")

    def explain_missing(self, result: Any) -> None:
        """After a NameError in a cell of the notebook itself: show which ranks have the name."""
        error = None if result is None else result.error_in_exec
        cluster = self.session.current
        if isinstance(error, NameError) and error.name and cluster is not None and not cluster.asynchronous.link.lost:
            with worded_errors():
                if (shown := missing_names.advice_here(cluster, error.name)) is not None:
                    self.session.screen.show(shown)

    def transform(self, lines: list[str]) -> list[str]:
        """``%dist VERB?`` asks for usage, and comments may stand above ``%%dist``.

        While auto is on, a cell goes to the ranks unless its first line that is no comment begins with % or !.
        """
        lines = [_asks_for_usage(line) for line in lines]
        code = "".join(lines)
        below = code[code_start(code) :]
        if below.startswith("%%") and (self.session.is_auto or ranks_part(below, is_auto=False) is not None):
            return below.splitlines(keepends=True)  # IPython takes a cell's magic from its first line only
        return ["%%dist\n", *lines] if self.session.is_auto and ranks_part(code, is_auto=True) else lines


def _expand(text: str, names: Mapping[str, Any]) -> str:
    """``{…}`` and ``$name`` replaced by what the notebook has, as in IPython's own magics; unchanged if that fails."""
    try:
        return DollarFormatter().vformat(text, (), names)
    except Exception:  # whatever an expression of the user's raises
        return str(text)


def _first_line(shell: Any, cell: str) -> int:
    """The number of the line in the notebook's cell at which the code of a ``%%dist`` cell begins.

    Lines are counted as the editor does, with the magic's own, those above it, and blank ones, which IPython drops.
    """
    typed_cells = shell.history_manager.input_hist_raw
    whole, code = (typed_cells[-1] if typed_cells else "").rstrip(), cell.rstrip()
    is_within = whole.split()[-len(code.split()) :] == code.split()
    above = whole.count("\n") - code.count("\n") if is_within else 1
    return above + 1 + _blank_lines(code)


def _blank_lines(code: str) -> int:
    """How many blank lines the code begins with."""
    return len(list(itertools.takewhile(lambda line: not line.strip(), code.split("\n")))) if code.strip() else 0


def _asks_for_usage(line: str) -> str:
    """Turn ``%dist VERB?`` and ``?%dist VERB`` into ``%dist VERB --help``; return any other line unchanged."""
    found = _HELP.match(line)
    return line if found is None else f"{found['before'] or found['after']} --help\n"


DistMagics.dist.__doc__ = f"{DistMagics.dist.__doc__}\n\n{cell_parser().format_help()}"  # shown by %%dist?


def load(shell: Any) -> None:
    """``%load_ext jdist``."""
    prepare_streams()  # of a terminal; those of a kernel take any text
    magics = DistMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(magics.transform)
    shell.events.register("post_run_cell", magics.explain_missing)
    shell.events.register("post_run_cell", magics.show_revival)
    magics.completer.install(shell)
    magics.end_error_display = show_shortly(shell, DistMagics.dist.__code__)
    if magics.comm is not None and (note := missing_extension()):
        magics.session.echo(note)


def unload(shell: Any) -> None:
    """``%unload_ext jdist``: clusters live on."""
    magics = shell.magics_manager.registry.pop("DistMagics", None)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("dist", None)
    if magics is not None:
        magics.completer.remove()
        magics.end_error_display()
        if magics.comm is not None:
            magics.comm.close()
        for hook in (magics.explain_missing, magics.show_revival):
            with contextlib.suppress(ValueError):  # %load_ext ran in a shell whose events were reset since
                shell.events.unregister("post_run_cell", hook)
        if magics.transform in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.remove(magics.transform)
