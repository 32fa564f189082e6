"""Numbering: the ranks' new numbers after some were removed, and what they mean for all that names ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from jdist.core.messages.groups import GroupSpec


class Numbering(Struct, frozen=True):
    """``ranks`` is ``{old: new}`` of every rank that lives on, ``nodes`` the same of the nodes that keep some."""

    ranks: dict[int, int]
    nodes: dict[int, int]

    @classmethod
    def without(cls, gone: Iterable[int], node_of: dict[int, int]) -> Numbering:
        """The others close up in their order, which leaves them dense and node-major; ``node_of`` is ``{rank: node}``.

        A node that keeps no rank leaves the numbering as well.
        """
        dropped = set(gone)
        kept = [rank for rank in sorted(node_of) if rank not in dropped]
        nodes = sorted({node_of[rank] for rank in kept})
        return cls({old: new for new, old in enumerate(kept)}, {old: new for new, old in enumerate(nodes)})

    def kept(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The new numbers of those of ``ranks`` that live on, in their order."""
        return tuple(self.ranks[r] for r in ranks if r in self.ranks)

    def group(self, spec: GroupSpec) -> GroupSpec:
        """A cell's group in the new numbers; gone if it has lost a member. Of a split, the whole parts are left."""
        if spec.is_gone:
            return spec
        if spec.splits:
            whole = tuple(self.kept(part) for part in spec.splits if self._has_all(part))
            return replace(spec, splits=whole) if whole else GroupSpec((), name=spec.name, is_gone=True)
        if not self._has_all(spec.ranks):
            return GroupSpec((), spec.backend, spec.name, is_gone=True)
        return replace(spec, ranks=self.kept(spec.ranks))

    def _has_all(self, ranks: Iterable[int]) -> bool:
        return all(r in self.ranks for r in ranks)
