"""Language pack: a made-up one, made from jdist's catalogue as real ones are, for a server to find on its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polib
from jupyterlab_translate.api import compile_po_file

ROOT = Path(__file__).parents[3]
CATALOGUE = ROOT / "labextension" / "locale" / "jdist.pot"
GERMAN = "de_DE"
TWO_FORMS = "nplurals=2; plural=(n != 1);"

Translations = Mapping[str, str | tuple[str, str]]
"""``{text: translation}``; of a text with a plural, its singular: both forms."""


def write_language_pack(folder: Path, translations: Translations, locale: str = GERMAN) -> None:
    """A package ``jupyterlab_language_pack_…`` in the folder, which has to be in ``PYTHONPATH``.

    AssertionError if the catalogue lacks a text.
    """
    name = f"jupyterlab_language_pack_{locale}"
    catalogue = polib.pofile(str(CATALOGUE))
    catalogue.metadata |= {"Language": locale, "Plural-Forms": TWO_FORMS}
    for text, translation in translations.items():
        entries = [entry for entry in catalogue if entry.msgid == text]
        assert entries, f"{text!r} is not in {CATALOGUE}"
        for entry in entries:
            if isinstance(translation, str):
                entry.msgstr = translation
            else:
                entry.msgstr_plural = dict(enumerate(translation))
    place = folder / name / "locale" / locale / "LC_MESSAGES"
    place.mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    catalogue.save(str(place / "jdist.po"))
    compile_po_file(place / "jdist.po")
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[jupyterlab.languagepack]\n{locale} = {name}\n")
