"""nights/spaces: the code by which other programs read a space, or keep a copy of it. Pure: it makes text.

Each is a whole Python program with the space's address in it, and without a secret: keys come from the environment, under the names that
this program uses. The tests run every one of them in an environment of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent
from typing import Final, Literal, get_args

Reader = Literal["duckdb", "polars", "pandas", "pgvector", "lancedb", "qdrant"]
READERS: Final[tuple[Reader, ...]] = get_args(Reader)
NEEDS: Final[Mapping[Reader, str]] = {
    "duckdb": "pylance duckdb",
    "polars": "pylance polars",
    "pandas": "pylance pandas",
    "pgvector": "pylance pyarrow 'psycopg[binary]'",
    "lancedb": "lancedb",
    "qdrant": "pylance pyarrow qdrant-client",
}
"""What to install."""
_OPEN: Final = """\
import os

import lance

space = lance.dataset(
    {uri!r},
    version={version!r},{hint}
    storage_options={options},
)
"""
_DELTAS: Final = """\
import json

from pyarrow import fs, parquet

{files}


def changes(since):
    \"\"\"(version, rows) of each night after `since`: `op`, `id`, `embedding` unless removed. None: load it all again.\"\"\"
    found = files.get_file_info(fs.FileSelector({deltas!r}, recursive=True, allow_not_found=True))
    nights = [json.loads(files.open_input_stream(one.path).read()) for one in found if one.path.endswith(".json")]
    nights.sort(key=lambda night: night["table_version"])
    if not nights or not (since >= (nights[0]["version_before"] or 0) or any(n["table_version"] <= since for n in nights)):
        return None  # deltas between then and now were pruned
    return [
        (night["table_version"], parquet.read_table(files.open_input_file({bucket!r} + night["file"]["key"])).to_pylist())
        for night in nights
        if night["table_version"] > since and night["file"]
    ]
"""
_DUCKDB: Final = """
import duckdb

print(duckdb.sql("SELECT count(*) AS rows FROM space"))

query = space.head(1, columns=["embedding"])["embedding"][0].as_py()
print(duckdb.execute(
    \"\"\"SELECT id, array_cosine_similarity(embedding, $query::FLOAT[{dimensions}]) AS cosine
       FROM space ORDER BY cosine DESC LIMIT 5\"\"\",
    {{"query": query}},
).fetchall())
"""
_POLARS: Final = """
import polars

frame = polars.scan_pyarrow_dataset(space).select("id", "embedding").collect()
print(frame)

vectors = frame["embedding"].to_numpy()  # {rows:,} x {dimensions}, float32
print(vectors.shape)
"""
_PANDAS: Final = """
import numpy

table = space.to_table(columns=["id", "embedding"])
frame = table.to_pandas().set_index("id")
print(frame)

vectors = numpy.stack(frame["embedding"].to_numpy())  # {rows:,} x {dimensions}, float32
print(vectors.shape)
"""
_LANCEDB: Final = """\
import os

import lancedb

# LanceDB opens the table where it is: nothing is copied, and an index that it makes stays beside the table.
database = lancedb.connect({folder!r}, storage_options={options})
space = database.open_table({table!r})
print(space.count_rows())

query = space.search().limit(1).to_list()[0]["embedding"]
for row in space.search(query, vector_column_name="embedding").distance_type("cosine").limit(5).to_list():
    print(row["id"], row["_distance"])
"""
_QDRANT: Final = """
import uuid

from qdrant_client import QdrantClient, models

client = QdrantClient(os.environ.get("QDRANT_URL", ":memory:"))
name, state = {name!r}, {name!r} + "-state"


def point(ident):
    return str(uuid.uuid5(uuid.NAMESPACE_URL, ident))  # Qdrant's ids are numbers or UUIDs


def put(rows):
    for start in range(0, len(rows), 500):
        some = rows[start : start + 500]
        client.upsert(name, [models.PointStruct(id=point(r["id"]), vector=r["embedding"], payload={{"id": r["id"]}}) for r in some])


def keep(version):
    if not client.collection_exists(state):
        client.create_collection(state, vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT))
    client.upsert(state, [models.PointStruct(id=0, vector=[0.0], payload={{"version": version}})])


def load():
    client.delete_collection(name)
    client.create_collection(name, vectors_config=models.VectorParams(size={dimensions}, distance=models.Distance.COSINE))
    for batch in space.to_batches(columns=["id", "embedding"], batch_size=2000):
        put(batch.to_pylist())
    keep(space.version)


def follow(since):
    nights = changes(since)
    if nights is None:
        return load()
    for version, rows in nights:
        client.delete(name, models.PointIdsList(points=[point(r["id"]) for r in rows]))
        put([r for r in rows if r["embedding"] is not None])
        keep(version)


if client.collection_exists(state):
    follow(client.retrieve(state, [0])[0].payload["version"])
else:
    load()
print(client.count(name).count, "points, version", client.retrieve(state, [0])[0].payload["version"])
"""
_PGVECTOR: Final = """
import psycopg

table, width = {sql_name!r}, {dimensions}


def text(vector):
    return "[" + ",".join(map(repr, vector)) + "]"


def put(cursor, rows):
    with cursor.copy(f'COPY "{{table}}" (id, embedding) FROM STDIN') as copy:
        for row in rows:
            copy.write_row((row["id"], text(row["embedding"])))


with psycopg.connect(os.environ["DATABASE_URL"]) as connection, connection.cursor() as cursor:  # one transaction: all of it or nothing
    cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
    cursor.execute(f'CREATE TABLE IF NOT EXISTS "{{table}}" (id text PRIMARY KEY, embedding vector({{width}}))')
    cursor.execute("CREATE TABLE IF NOT EXISTS nightbatch_spaces (name text PRIMARY KEY, version bigint NOT NULL)")
    cursor.execute("SELECT version FROM nightbatch_spaces WHERE name = %s", (table,))
    standing = cursor.fetchone()
    nights = changes(standing[0]) if standing else None
    if nights is None:
        cursor.execute(f'TRUNCATE "{{table}}"')
        for batch in space.to_batches(columns=["id", "embedding"], batch_size=2000):
            put(cursor, batch.to_pylist())
        version = space.version
    else:
        version = standing[0]
        for version, rows in nights:
            cursor.execute(f'DELETE FROM "{{table}}" WHERE id = ANY(%s)', ([row["id"] for row in rows],))
            put(cursor, [row for row in rows if row["embedding"] is not None])
    cursor.execute(
        "INSERT INTO nightbatch_spaces VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET version = excluded.version", (table, version)
    )
    cursor.execute(f'SELECT count(*) FROM "{{table}}"')
    print(cursor.fetchone()[0], "rows, version", version)
    cursor.execute(f'SELECT id FROM "{{table}}" ORDER BY embedding <=> (SELECT embedding FROM "{{table}}" LIMIT 1) LIMIT 5')
    print([row[0] for row in cursor])
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a program needs to know of a space. `root`: its folder, `s3://bucket/…` or a path; `endpoint`, `region`: of the S3 server, None
    where the table is in a folder."""

    name: str
    root: str
    table: str
    dimensions: int
    rows: int
    version: int | None = None
    endpoint: str | None = None
    region: str = "us-east-1"


def recipe(reader: Reader, facts: Facts) -> str:
    """A program for this reader."""
    names = {
        "uri": f"{facts.root}/{facts.table}", "folder": facts.root, "table": facts.table.removesuffix(".lance"), "name": facts.name,
        "sql_name": f"space_{facts.name}".replace("-", "_"), "dimensions": facts.dimensions, "rows": facts.rows, "version": facts.version,
        "options": _options(facts), "hint": "  # None: the latest" if facts.version is None else "", "files": _files(facts),
        "deltas": f"{facts.root.removeprefix('s3://')}/deltas",
        "bucket": _bucket(facts),
    }  # fmt: skip
    parts = {
        "duckdb": (_OPEN, _DUCKDB),
        "polars": (_OPEN, _POLARS),
        "pandas": (_OPEN, _PANDAS),
        "lancedb": (_LANCEDB,),
        "qdrant": (_OPEN, _DELTAS, _QDRANT),
        "pgvector": (_OPEN, _DELTAS, _PGVECTOR),
    }[reader]
    return "".join(part.format(**names) for part in parts)


def _options(facts: Facts) -> str:
    if facts.endpoint is None:
        return "None"
    plain = "true" if facts.endpoint.startswith("http://") else "false"
    return dedent(f"""\
        {{
                "aws_endpoint": {facts.endpoint!r},
                "aws_region": {facts.region!r},
                "aws_virtual_hosted_style_request": "false",
                "allow_http": "{plain}",
                "aws_access_key_id": os.environ["NIGHTBATCH_S3_ACCESS_KEY_ID"],
                "aws_secret_access_key": os.environ["NIGHTBATCH_S3_SECRET_ACCESS_KEY"],
            }}""")


def _files(facts: Facts) -> str:
    if facts.endpoint is None:
        return "files = fs.LocalFileSystem()"
    scheme, _, host = facts.endpoint.partition("://")
    return dedent(f"""\
        files = fs.S3FileSystem(
            endpoint_override={host!r},
            scheme={scheme!r},
            region={facts.region!r},
            access_key=os.environ["NIGHTBATCH_S3_ACCESS_KEY_ID"],
            secret_key=os.environ["NIGHTBATCH_S3_SECRET_ACCESS_KEY"],
        )""")


def _bucket(facts: Facts) -> str:
    """What stands before a key of the store."""
    if facts.endpoint is not None:
        return facts.root.removeprefix("s3://").partition("/")[0] + "/"
    return facts.root.rpartition("/spaces/")[0] + "/"
