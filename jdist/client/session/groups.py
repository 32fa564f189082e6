"""Named groups and the mesh: made on request, and again whenever the world is formed."""

from jdist.client.attachment import Attachment, Ranks
from jdist.client.history import GroupStep, MeshStep
from jdist.client.link import new_request
from jdist.core.errors import UsageError
from jdist.core.messages.groups import GroupCreated, MakeGroup, MakeMesh
from jdist.core.settings import REFORM_TIMEOUT
from jdist.core.topology import Mesh


class NamedGroups:
    """The part of a cluster that makes named groups and the mesh."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    async def new_group(self, name: str, ranks: Ranks) -> str:
        """Make a named process group, now and after every re-forming: ``-g NAME``, ``groups["NAME"]`` on the ranks."""
        if not name.isidentifier() or name in ("world", "all", "node"):
            raise UsageError(f"a group's name is a plain word other than world, all and node; not {name!r}")
        message = MakeGroup(new_request(), name, self._attachment.select(ranks))
        made = await self._attachment.link.request(message, GroupCreated, REFORM_TIMEOUT)
        self._attachment.history.add(GroupStep(name, message.ranks))
        return made.text

    async def new_mesh(self, text: str) -> str:
        """Make a named mesh such as "dp=2,tp=2": ``-r dp=0`` in the notebook, ``mesh["dp"]`` on the ranks."""
        mesh = Mesh.parse(text, self._attachment.facts.topology.world_size)
        message = MakeMesh(new_request(), mesh.names, mesh.sizes)
        made = await self._attachment.link.request(message, GroupCreated, REFORM_TIMEOUT)
        self._attachment.history.add(MeshStep(mesh.names, mesh.sizes))
        return made.text
