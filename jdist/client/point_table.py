"""Point tables: numbers over time as rows for users, who take them on to pandas or a CSV file."""

import csv
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from jdist.core.errors import UsageError


class PointTable:
    """A table of points, a row each: iterate over it, or take it by column."""

    COLUMNS: ClassVar[tuple[str, ...]]
    NAME: ClassVar[str]  # What the table holds, for messages: "metrics".

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The table as a list for each of its columns."""
        rows = list(self)
        found = zip(*rows, strict=True) if rows else ([] for _ in self.COLUMNS)
        return dict(zip(self.COLUMNS, map(list, found), strict=True))

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("pandas is not installed here; `columns` has the same table in lists") from None
        return pd.DataFrame(self.columns)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as a CSV file with a head. Raises UsageError if it cannot be written."""
        target = Path(path).expanduser()
        try:
            with target.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(self.COLUMNS)
                writer.writerows(self)
        except OSError as e:
            raise UsageError(f"the {self.NAME} cannot be written to {target}: {e.strerror or e}") from None
        return target
