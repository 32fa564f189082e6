"""Groups: ranks get named process groups and a named mesh."""

from __future__ import annotations

from jdist.client.cluster.attachment import Attachment, Ranks
from jdist.client.history import GroupStep, MeshStep
from jdist.client.link import new_request
from jdist.core.errors import UsageError
from jdist.core.messages.groups import GroupCreated, MakeGroup, MakeMesh
from jdist.core.messages.protocol import RankReply
from jdist.core.settings import REFORM_TIMEOUT
from jdist.core.topology import Mesh


class Groups(Attachment):
    """The making of an attached cluster's groups."""

    async def new_group(self, name: str, ranks: Ranks) -> str:
        """Make a named process group, now and after every re-forming: ``-g NAME``, ``groups["NAME"]`` on the ranks."""
        if not name.isidentifier() or name in ("world", "all", "node"):
            raise UsageError(f"a group's name is a plain word other than world, all and node; not {name!r}")
        chosen = self.select(ranks)
        text = await self._grouped(MakeGroup(new_request(), name, chosen))
        self.history.add(GroupStep(name, chosen))
        return text

    async def new_mesh(self, text: str) -> str:
        """Make a named mesh such as "dp=2,tp=2": ``-r dp=0`` in the notebook, ``mesh["dp"]`` on the ranks."""
        mesh = Mesh.parse(text, self.world_size)
        said = await self._grouped(MakeMesh(new_request(), mesh.names, mesh.sizes))
        self.history.add(MeshStep(mesh.names, mesh.sizes))
        return said

    async def _grouped(self, message: MakeGroup | MakeMesh) -> str:
        answer = await self.link.request(message, REFORM_TIMEOUT)
        return answer.body.text if isinstance(answer, RankReply) and isinstance(answer.body, GroupCreated) else ""
