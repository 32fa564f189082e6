"""A wheel of the jdist that runs, made from its own files: an installation, or a source tree that is installed as such.

It has what kernels and clusters need; JupyterLab's extension, which lies outside of the package, is left out.
"""

import base64
import contextlib
import hashlib
import io
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from jdist.core import __file__ as core_file
from jdist.core import __version__
from jdist.core.errors import LaunchError

WHEEL = f"jdist-{__version__}-py3-none-any.whl"
_PACKAGE = Path(core_file).parents[1]
_INFO = f"jdist-{__version__}.dist-info"
_TAGS = "Wheel-Version: 1.0\nGenerator: jdist\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel() -> bytes:
    """The wheel's bytes. Raises LaunchError where the metadata of this jdist is missing, or of another version."""
    files = {f"{_INFO}/{name}": data for name, data in _metadata().items()}
    for path in sorted(_PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[str(path.relative_to(_PACKAGE.parent))] = path.read_bytes()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def _metadata() -> dict[str, bytes]:
    found: Distribution | None = None
    with contextlib.suppress(PackageNotFoundError):
        found = distribution("jdist")
    if found is None or found.version != __version__:
        what = "no metadata" if found is None else f"the metadata of {found.version}"
        raise LaunchError(f"jdist {__version__} has {what} here, so it cannot be sent; install it here once more")
    texts = {"METADATA": found.read_text("METADATA"), "entry_points.txt": found.read_text("entry_points.txt")}
    return {"WHEEL": _TAGS.encode(), **{name: text.encode() for name, text in texts.items() if text}}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
