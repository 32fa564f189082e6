"""Models: the widgets of all ranks as they are known here, and which of them are the same. Pure.

A widget is named by its rank and the id of its comm there. Its state refers to other widgets, of which a view consists,
so that widgets of two ranks are the same if the trees below them are: equal states, with the references in equal
places.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jdist.core.messages.runs import Clear, Display, Text
from jdist.core.messages.widgets import CommContent
from jdist.core.outcome import WIDGET_VIEW

TARGET = "jupyter.widget"
REFERENCE = "IPY_MODEL_"
"""The beginning of a text that refers to a widget; its model's id follows."""
_MOST_OUTPUTS = 500  # Items that an output widget keeps of what it captured.
_LONGEST_OUTPUT = 1 << 20  # Characters of the newest text.
_OF_A_PAGE = ("_view_count", "msg_id")  # Traits that say nothing about what is shown.

Name = tuple[int, str]  # A rank, and the id of a comm there.


@dataclass
class WidgetModel:
    """One widget of one rank. ``state`` is as its front end gets it, with buffers in their places."""

    state: dict[str, Any]
    clears: bool = False  # The next captured output takes the place of what there is.


@dataclass
class Change:
    """What a message has changed of one widget."""

    name: Name
    state: dict[str, Any] = field(default_factory=dict)
    custom: tuple[Any, tuple[bytes, ...]] | None = None
    is_new: bool = False
    is_closed: bool = False
    is_echo: bool = False  # A page has set it.


class RankModels:
    """The widgets of one cluster's ranks."""

    def __init__(self) -> None:
        self._models: dict[Name, WidgetModel] = {}
        self._attached: dict[Name, None] = {}  # Those of no view that refer to others.

    def __contains__(self, name: Name) -> bool:
        return name in self._models

    def __iter__(self) -> Iterator[Name]:
        return iter(list(self._models))

    def state(self, name: Name) -> Mapping[str, Any]:
        """What is known of a widget's state."""
        return self._models[name].state

    def feed(self, rank: int, comm_id: str, content: CommContent) -> Change | None:
        """Take in what a rank's comm says; None if it is not a widget's."""
        name = rank, comm_id
        if content.kind == "open" and content.target != TARGET:
            return None
        if content.kind == "close":
            self._attached.pop(name, None)
            return Change(name, is_closed=True) if self._models.pop(name, None) is not None else None
        data = msgspec.json.decode(content.data)
        state = data.get("state", {})
        _put_buffers(state, data.get("buffer_paths", ()), content.buffers)
        if content.kind == "open":
            self._models[name] = WidgetModel(state)
            if state.get("_view_name") is None and any(references(state)):
                self._attached[name] = None
            return Change(name, state, is_new=True)
        if (model := self._models.get(name)) is None:
            return None
        if data.get("method") == "custom":
            return Change(name, custom=(data.get("content"), content.buffers))
        model.state.update(state)
        return Change(name, state, is_echo=data.get("method") == "echo_update")

    def capture(self, rank: int, item: Text | Display | Clear) -> Change | None:
        """Put output into the output widget that has captured it there; None if there is none."""
        name = rank, item.area
        if (model := self._models.get(name)) is None:
            return None
        outputs = () if model.clears and not isinstance(item, Clear) else tuple(model.state.get("outputs", ()))
        model.clears = isinstance(item, Clear) and item.wait
        match item:
            case Clear(wait=False):
                outputs = ()
            case Text():
                last = outputs[-1] if outputs else {}
                text = {"output_type": "stream", "name": item.stream, "text": item.text}
                if last.get("output_type") == "stream" and last["name"] == item.stream:
                    outputs, text["text"] = outputs[:-1], (last["text"] + item.text)[-_LONGEST_OUTPUT:]
                outputs = (*outputs, text)
            case Display():
                shown = {"output_type": "display_data", "data": item.data, "metadata": item.metadata}
                outputs = (*outputs, shown)
        model.state["outputs"] = outputs[-_MOST_OUTPUTS:]
        return Change(name, {"outputs": model.state["outputs"]})

    def tree(self, root: Name) -> list[Name]:
        """The widget and those below it, each once, in the order in which they are referred to."""
        rank, found = root[0], {root: None}
        for name in (order := [root]):
            if name in self._models:
                for comm_id in references(self._models[name].state):
                    if (rank, comm_id) not in found:
                        found[rank, comm_id] = None
                        order.append((rank, comm_id))
        return order

    def fingerprint(self, root: Name, *, has_values: bool = True) -> bytes:
        """Equal for widgets whose trees are equal; without values, for those of the same classes in the same places."""
        order = {comm_id: place for place, (_, comm_id) in enumerate(self.tree(root))}
        hashed = hashlib.blake2b(digest_size=16)
        for comm_id in order:
            model = self._models.get((root[0], comm_id))
            state: Any = None if model is None else {k: v for k, v in model.state.items() if k not in _OF_A_PAGE}
            if state is not None and not has_values:
                state = [state.get("_model_name"), [*map(order.get, references(state))]]
            placed = renamed(state, order.get)
            hashed.update(msgspec.json.encode(placed, order="deterministic", enc_hook=_plain))
        return hashed.digest()

    def attached_to(self, names: Sequence[Name]) -> list[Name]:
        """The widgets of no view that refer to one of these, such as the link of two sliders."""
        rank, known = names[0][0], {comm_id for _, comm_id in names}
        others = [name for name in self._attached if name[0] == rank and name[1] not in known]
        return [name for name in others if not known.isdisjoint(references(self._models[name].state))]

    def forget(self, rank: int) -> None:
        """Forget the widgets of a rank."""
        for name in [name for name in self._models if name[0] == rank]:
            del self._models[name]
            self._attached.pop(name, None)


def references(value: Any) -> Iterator[str]:
    """The ids of the models to which a state refers, in order."""
    if isinstance(value, str):
        if value.startswith(REFERENCE):
            yield value.removeprefix(REFERENCE)
    elif isinstance(value, dict):
        if isinstance(view := value.get(WIDGET_VIEW), dict) and "model_id" in view:
            yield view["model_id"]
        for key in sorted(value):
            yield from references(value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from references(each)


def renamed(value: Any, name: Callable[[str], Any]) -> Any:
    """The state with other ids of models, and as it was where ``name`` knows none."""
    if isinstance(value, str) and value.startswith(REFERENCE):
        found = name(value.removeprefix(REFERENCE))
        return value if found is None else f"{REFERENCE}{found}"
    if isinstance(value, dict):
        made = {key: renamed(each, name) for key, each in value.items()}
        if isinstance(view := made.get(WIDGET_VIEW), dict) and "model_id" in view:
            found = name(view["model_id"])
            made[WIDGET_VIEW] = view if found is None else {**view, "model_id": found}
        return made
    if isinstance(value, list | tuple):
        return [renamed(each, name) for each in value]
    return value


def _put_buffers(state: Any, paths: Sequence[Sequence[Any]], buffers: Sequence[bytes]) -> None:
    for path, buffer in zip(paths, buffers, strict=False):
        at = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = buffer


def _plain(value: object) -> str:
    return repr(value)
