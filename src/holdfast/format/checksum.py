"""The checksum of a chunk: XXH3-128. Finds every accident, several times faster than a digest, and no forger.

A forger who can change a shard can change the manifest too, so that even a digest would not stop him: this takes a
signature over the digests. What has to be unforgeable later, or compared without reading it, goes by the digests.
"""

from collections.abc import Sequence

from xxhash import xxh3_128, xxh3_128_hexdigest

__all__ = ["CHECKSUM_DIGITS", "checksum_hex", "checksum_of_parts"]

CHECKSUM_DIGITS = 32


def checksum_hex(data: bytes | bytearray | memoryview) -> str:
    """The XXH3-128 of the data in 32 lower-case hexadecimal digits."""
    return xxh3_128_hexdigest(data)


def checksum_of_parts(parts: Sequence[memoryview]) -> str:
    """The checksum of bytes that lie in several places of memory."""
    if len(parts) == 1:
        return checksum_hex(parts[0])
    state = xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()
