"""Types: what jdist's server extension sends, as TypeScript, in ``src/generated/server.ts``.

``make types`` writes it; ``make lint`` calls this with ``--check``, which fails where it is not current. An interface
has the name of its Struct behind an I, with the Struct's docstring and the comments at its fields. The JSON schema of a
Struct would not do: it describes what may be received, where a field with a default is optional. What is sent has each
field, unless that may be UNSET, or equals its default and is left out for that.
"""

import argparse
import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import msgspec.inspect as m

from jdist.client.variables.table import Comparison
from jdist.core import errors
from jdist.core.messages import observation
from jdist.core.messages.nodes import Quantity
from jdist.notebook.output.run_json import RunJson
from jdist.server import snapshots as s
from jdist.server.cluster_list import ClusterEvent

HERE = Path(__file__).parent
FILE = HERE / "src" / "generated" / "server.ts"
HEAD = "/** What the server sends, as the Structs of jdist say it; written by: make types */\n"
SENT = (
    *(ClusterEvent, s.ResourcesSnapshot, s.VariablesSnapshot, s.StacksSnapshot, s.ConsoleCommands, s.LaunchOptions),
    *(s.AddingOptions, s.LoginState, RunJson),
)
# Kinds that have a name of their own.
NAMES = {"Action": errors.Action, "Comparison": Comparison, "Quantity": Quantity}
NAMES |= {name: getattr(observation, name) for name in ("ActivityKind", "PauseReason", "StepKind", "VerdictKind")}
WORDS = {m.StrType: "string", m.BoolType: "boolean", m.IntType: "number", m.FloatType: "number", m.NoneType: "null"}
_FIELD = re.compile(r"^    (\w+): [^#\n]*# (.*)$", re.MULTILINE)


class Writer:
    """Writes the types that are sent, and those that they consist of."""

    def __init__(self) -> None:
        self._kinds = {str(m.type_info(kind)): name for name, kind in NAMES.items()}
        self._structs: list[m.StructType] = []

    def text(self) -> str:
        """The whole file. Raises CalledProcessError if prettier fails."""
        for found in m.multi_type_info(SENT):
            self._type(found)
        kinds = [f"export type {name} = {self._bare(m.type_info(kind))};\n" for name, kind in NAMES.items()]
        structs = [self._interface(found) for found in self._structs]  # which grows as they are written
        command = [HERE / "node_modules" / ".bin" / "prettier", "--stdin-filepath", FILE]
        text = "\n".join((HEAD, *kinds, *structs))
        return subprocess.run(command, input=text, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout

    def _interface(self, struct: m.StructType) -> str:
        comments = dict(_FIELD.findall(inspect.getsource(struct.cls)))
        omits = struct.cls.__struct_config__.omit_defaults
        fields = [f"{struct.tag_field}: {struct.tag!r};\n"] if struct.tag_field else []
        for field in struct.fields:
            is_unset = field.default is field.default_factory is msgspec.NODEFAULT
            is_optional = not field.required and (is_unset or omits)
            sent = _without_null(field.type) if omits and field.default is None else field.type
            name = f"{field.encode_name}{'?' if is_optional else ''}"
            fields.append(f"{_comment(comments.get(field.name, ''))}{name}: {self._type(sent)};\n")
        about = _comment(inspect.cleandoc(struct.cls.__doc__ or ""))
        return f"{about}export interface I{struct.cls.__name__} {{\n{''.join(fields)}}}\n"

    def _type(self, found: m.Type) -> str:
        return self._kinds.get(str(found)) or self._bare(found)

    def _bare(self, found: m.Type) -> str:
        match found:
            case m.StructType():
                if all(known.cls is not found.cls for known in self._structs):
                    self._structs.append(found)
                return f"I{found.cls.__name__}"
            case m.LiteralType(values):
                return " | ".join(map(repr, values))
            case m.UnionType(types):
                return " | ".join(map(self._type, types))
            case m.ListType(item) | m.VarTupleType(item):
                return f"({self._type(item)})[]"
            case m.TupleType(items):
                return f"[{', '.join(map(self._type, items))}]"
            case m.DictType(key, value):
                record = f"Record<{self._type(key)}, {self._type(value)}>"
                return f"Partial<{record}>" if isinstance(key, m.LiteralType) else record
        return WORDS.get(type(found), "unknown")


def _without_null(found: m.Type) -> m.Type:
    """The type of a field that is left out where it would be null."""
    return (
        m.UnionType(tuple(t for t in found.types if type(t) is not m.NoneType)) if type(found) is m.UnionType else found
    )


def _comment(text: str) -> str:
    """The text as a comment, in the words of TypeScript."""
    text = re.sub(r":\w+:`(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    lines = re.sub(r"\bNone\b", "null", text.replace("``", "`")).splitlines()
    if len(lines) > 1:
        return "\n".join(("/**", *(f" * {line}".rstrip() for line in lines), " */\n"))
    return f"/** {lines[0]} */\n" if lines else ""


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(description="Write the types of what the server sends.")
    parser.add_argument("--check", action="store_true", help="fail if it is not current, and leave it as it is")
    current = Writer().text()
    if not parser.parse_args().check:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(current)
    elif not FILE.exists() or FILE.read_text() != current:
        sys.exit(f"{FILE.relative_to(HERE.parent)} is not what the server sends: make types")


if __name__ == "__main__":
    main()
