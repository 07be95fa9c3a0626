"""Pictures in folders: a class per sub-folder, or a CSV file that names files and labels."""

from __future__ import annotations

import csv
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_vit.data.decoding import ENDINGS
from keras_vit.data.source import Source, class_names_from, printable

FILE_COLUMNS = ("file", "filename", "file_name", "path", "filepath", "image", "image_path", "name")
LABEL_COLUMNS = ("label", "class", "class_name", "category", "target", "y")
_DELIMITERS = ",;\t"


class FileSource(Source):
    """Pictures that are files.

    Args:
        folder: what the files' names are relative to.
        files: names.
        labels: `(n,)`, one for each.
        class_names: in the order of the labels.
        description: one line.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[str],
        labels: np.ndarray,
        class_names: Iterable[str],
        description: str,
    ):
        super().__init__(len(files), class_names, labels, printable(description))
        self.folder = os.fspath(folder)
        self.files = files

    def read(self, index: int) -> tuple[bytes, int]:
        """See `Source.read`."""
        with open(os.path.join(self.folder, self.files[index]), "rb") as file:
            return file.read(), int(self.labels[index])

    def names(self, indices: Iterable[int]) -> list[str]:
        """Paths of the files."""
        return [printable(os.path.join(self.folder, self.files[int(i)])) for i in indices]


def open_folder(folder: Path, class_names: Sequence[str] | None = None) -> FileSource:
    """Opens a folder with a sub-folder for each class.

    Pictures are found by their endings, at any depth below a class' folder; names that begin with
    a dot are left out. Links to folders are followed, each real folder once a class, and never
    into another class' folder or out to the whole, so that loops end. Files come sorted by name.

    Args:
        folder: the folder.
        class_names: names of the classes in order, such as another folder's; by default the
            sub-folders' names, sorted.

    Raises:
        ValueError: if there are no sub-folders or no pictures, two classes are one folder, or a
            class is not in `class_names`.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {printable(str(folder))}.")
    with os.scandir(folder) as entries:
        found = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    where = printable(str(folder))
    if not found:
        raise ValueError(
            f"{where} has no sub-folders. Expected one for each class, with its pictures in it "
            "(or a CSV file of file names and labels)."
        )
    names = found if class_names is None else list(class_names)
    strange = [name for name in found if name not in names]
    if strange:
        raise ValueError(
            f"{where} has sub-folders that are none of the classes: "
            f"{[printable(name) for name in strange[:5]]}. Expected some of {names[:10]}"
        )
    real = {name: os.path.realpath(folder / name) for name in found}
    _check_distinct(real, where)
    barred = {os.path.realpath(folder), *real.values()}
    files, labels, empty = [], [], []
    for label, name in enumerate(names):
        pictures = sorted(_pictures(folder, name, barred)) if name in real else []
        files += pictures
        labels += [label] * len(pictures)
        if name in real and not pictures:
            empty.append(printable(name))
    if not files:
        raise ValueError(f"{where} has no pictures ({', '.join(ENDINGS)}) in its sub-folders.")
    if empty:
        warnings.warn(
            f"{len(empty)} of the {len(names)} classes in {where} have no pictures: "
            f"{', '.join(empty[:10])}{' ...' if len(empty) > 10 else ''}. They stay classes; "
            "remove the folders if they should not.",
            stacklevel=3,
        )
    shown = [printable(name) for name in names]
    return FileSource(folder, files, np.asarray(labels), shown, f"folder {folder}")


def _check_distinct(real: dict[str, str], where: str) -> None:
    owners: dict[str, str] = {}
    for name, path in real.items():
        if path in owners:
            raise ValueError(
                f"{where}: the classes {printable(owners[path])!r} and {printable(name)!r} are "
                "links to one folder."
            )
        owners[path] = name


def _pictures(folder: Path, name: str, barred: set[str]) -> Iterator[str]:
    """Files of a class, relative to `folder`."""
    seen = set(barred)
    waiting = [name]
    while waiting:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
        except OSError as error:
            warnings.warn(f"{printable(str(folder / below))} is left out: {error}", stacklevel=4)
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = os.path.join(below, entry.name)
            if _is_dir(entry):
                real = os.path.realpath(entry.path)
                if real not in seen:
                    seen.add(real)
                    waiting.append(path)
            elif entry.name.lower().endswith(ENDINGS) and _is_file(entry):
                yield path


def _is_dir(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry) -> bool:
    """Whether it can be read to its end; a link to nothing is left for the reading to find."""
    return entry.is_file() if not entry.is_symlink() else not os.path.exists(entry.path) or (
        os.path.isfile(entry.path)
    )  # fmt: skip


def open_csv(path: Path, class_names: Sequence[str] | None = None) -> FileSource:
    """Opens a CSV file of two columns: file names, relative to its folder, and labels.

    A first line of column names may put them in any order among others. Labels are classes' names,
    or numbers from 0 on. Commas, semicolons or tabs separate; the text is UTF-8.

    Args:
        path: the file.
        class_names: names of the classes in order; by default the labels, sorted.

    Raises:
        ValueError: if it is no such file, or none of the first files that it names is there.
    """
    where = printable(str(path))
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is no text in UTF-8 ({error}).") from error
    lines = text.splitlines()
    counts = Counter(c for c in (lines or [""])[0] if c in _DELIMITERS)
    delimiter = counts.most_common(1)[0][0] if counts else ","
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if any(row)]
    file_column, label_column = 0, 1
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    columns = [[i for i, cell in enumerate(header) if cell in known]
               for known in (FILE_COLUMNS, LABEL_COLUMNS)]  # fmt: skip
    if all(columns):
        file_column, label_column = columns[0][0], columns[1][0]
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{where} names no pictures.")
    for number, row in enumerate(rows, 1):
        if len(row) <= max(file_column, label_column):
            raise ValueError(
                f"{where}: row {number} of the data must have a file name and a label. "
                f"Received: {row}"
            )
    files = [row[file_column].strip() for row in rows]
    if not any((path.parent / name).is_file() for name in files[:100]):
        raise ValueError(
            f"{where}: none of its files is there, such as {printable(str(path.parent / files[0]))}"
            ". Names must be relative to the CSV file's folder (or absolute); a first line of "
            f"column names needs one of {FILE_COLUMNS} and one of {LABEL_COLUMNS}."
        )
    labels, names = class_names_from([row[label_column] for row in rows], class_names, where)
    return FileSource(path.parent, files, labels, names, f"csv {path}")
