"""contract: what the client, the worker and the emulator agree on.

May import the standard library, msgspec and zstandard; boto3 only in `contract.store`. Imports no other room, because the worker image
holds this room and `worker` alone.
"""
