"""Twins: widgets of the notebook's kernel that stand for widgets of ranks in its page.

A twin has the state of the widget of one rank and the class that the page knows for it; Python's class of it need not
be here. To ipywidgets it is a widget like any other, which may be shown anywhere and is in what a page asks for when it
is loaded.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ipywidgets import Widget
from ipywidgets.widgets.widget import JUPYTER_WIDGETS_ECHO, _remove_buffers

_CLASS = ("_model_name", "_model_module", "_model_module_version", "_view_name", "_view_module", "_view_module_version")

Event = dict[str, Any]  # A message of a page, as a widget of a rank gets it.


class Twin(Widget):  # type: ignore[misc]
    """Stands for the widgets with these comms, by rank. ``on_event`` is called on any thread, when a page sends one."""

    def __init__(
        self,
        comm_ids: Mapping[int, str],
        model_id: str,
        state: Mapping[str, Any],
        on_event: Callable[["Twin", Event, tuple[bytes, ...]], None],
    ):
        self.comm_ids = dict(comm_ids)
        self.leader = min(self.comm_ids)  # The rank whose widget it shows.
        self.is_disabled = False
        self.is_saved = False  # A cell's messages have its newest state.
        self._ahead: set[str] = set()  # Traits that a page has set, perhaps before the ranks.
        self._unsent: set[str] = set()  # Traits of which the page has an older value.
        self._shown = dict(state)
        self._on_event = on_event
        for name in _CLASS:
            if name in state:
                self.set_trait(name, state[name])
        super().__init__(model_id=model_id)
        # ipykernel (7.4) routes a comm's messages to the shell from which the kernel last published on it. If that is
        # the main shell, they wait there for the running cell, although the page asks for its subshell.
        self.comm._reply_subshell_for = lambda _data, subshell_id: subshell_id  # noqa: SLF001 — there is no public way

    def get_state(self, key: str | Iterable[str] | None = None, drop_defaults: bool = False) -> dict[str, Any]:  # noqa: ARG002 — the signature of ipywidgets
        """The state that the page gets."""
        if key is None:
            return dict(self._shown)
        return {name: self._shown[name] for name in ([key] if isinstance(key, str) else key) if name in self._shown}

    def change(self, state: Mapping[str, Any]) -> bool:
        """Have another state, or a part of it; whether the next `flush` has something to send to the page."""
        changed = {
            name: value for name, value in state.items() if name not in self._shown or self._shown[name] != value
        }
        if not all(isinstance(self._shown[name], int | float | str) for name in self._unsent.intersection(changed)):
            self.flush()  # it may be a command, which is set and then reset
        self._shown.update(changed)
        self._unsent.update(changed)
        self.is_saved = self.is_saved and not changed
        return bool(changed)

    def flush(self) -> None:
        """Send the page what has changed."""
        names, self._unsent = self._unsent, set()
        self.send_state(names)

    def follow(self, state: Mapping[str, Any], *, is_settled: bool) -> bool:
        """Change to the state of a rank's widget, without what a page has set and the ranks have not taken."""
        if is_settled:
            self._ahead.clear()
        return self.change({name: value for name, value in state.items() if name not in self._ahead})

    def disable(self) -> None:
        """Have the page's events go nowhere."""
        self.is_disabled = True
        if "disabled" in self._shown:
            self.change({"disabled": True})
            self.flush()

    def set_state(self, sync_data: Mapping[str, Any]) -> None:
        """A page has changed the state."""
        self._ahead.update(sync_data)
        self._shown.update(sync_data)
        self.is_saved = False
        if JUPYTER_WIDGETS_ECHO:  # for other pages
            self._send(*update_message("echo_update", sync_data))
        self._tell(*update_message("update", sync_data))

    def _handle_custom_msg(self, content: Any, buffers: Iterable[Any]) -> None:
        self._tell({"method": "custom", "content": content}, tuple(bytes(each) for each in buffers))

    def _tell(self, event: Event, buffers: tuple[bytes, ...] = ()) -> None:
        if not self.is_disabled:
            self._on_event(self, event, buffers)


def update_message(method: str, state: Mapping[str, Any]) -> tuple[Event, tuple[bytes, ...]]:
    """A message that sets these traits, and its buffers."""
    bare, paths, buffers = _remove_buffers(dict(state))
    return {"method": method, "state": bare, "buffer_paths": paths}, tuple(map(bytes, buffers))
