"""pipelines/dataset: which files a dataset is made of, and how their bytes become rows. Imports contract alone.

find_files   what the user named -> files, in a fixed order
streams      a file -> decompressed chunks -> blocks of lines, in bounded memory
records      CSV and Parquet -> records
rows         a line or a record -> one OpenAI batch line, or the reason why not
reader       all of it -> rows with their index, the same ones at every reading
"""

from __future__ import annotations

from pipelines.dataset.files import DataFile, find_files
from pipelines.dataset.reader import Reader, Row, open_reader
from pipelines.dataset.rows import RowProblem, Template

__all__ = ["DataFile", "Reader", "Row", "RowProblem", "Template", "find_files", "open_reader"]
