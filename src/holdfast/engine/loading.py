"""Loading: read one checkpoint's manifest and fill a plan's destinations with verified bytes."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from holdfast.core.errors import BlobMissingError, FormatError, IntegrityError
from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.core.names import MANIFEST_NAME
from holdfast.engine.blocks import BlockPool
from holdfast.engine.reading import Progress, read_leaves
from holdfast.format.arrays import Destination, LeafInfo
from holdfast.format.decode import build
from holdfast.format.manifest import Body, Manifest, decode_manifest
from holdfast.storage.store import Store

__all__ = [
    "TREE_NAME",
    "Arrays",
    "Fillable",
    "Source",
    "fill",
    "leaf_infos",
    "load_tree",
    "read_manifest",
    "unwrap_tree",
]

Arrays = Literal["native", "numpy"]

TREE_NAME = "tree"
"""The entry of the state that `save(tree=...)` makes."""


class Fillable(Protocol):
    """A plan that says where leaves go."""

    @property
    def destinations(self) -> list[Destination]: ...


class Source(NamedTuple):
    """Where to read from, and with what."""

    store: Store
    run_id: str
    pool: BlockPool
    workers: int
    progress: Progress | None = None


def read_manifest(source: Source, checkpoint_id: str, *, staged: bool = False) -> Manifest:
    """The checkpoint's manifest, checked against its digest and limits."""
    key = f"{checkpoint_id}/{MANIFEST_NAME}"
    data = source.store.read(key, MAX_MANIFEST_BYTES)
    return decode_manifest(data, where=key, checkpoint_id=checkpoint_id, run_id=source.run_id, staged=staged)


def leaf_infos(body: Body) -> list[LeafInfo]:
    """What the plans need to know of each leaf. Sizes are compared here, before anybody allocates memory for them."""
    infos = []
    for leaf in body.leaves:
        info = LeafInfo(leaf.name, leaf.dtype, tuple(leaf.shape))
        if info.nbytes != leaf.end - leaf.begin:
            raise FormatError(f"leaf {leaf.name!r} has {leaf.end - leaf.begin} bytes, its type and shape want others")
        infos.append(info)
    return infos


def fill(source: Source, manifest: Manifest, *plans: Fillable, on_touch: Callable[[], None] | None = None) -> None:
    """Read what the plans want; every byte is verified before this returns (I4).

    `on_touch` runs before a byte of a destination changes, and not where nothing can be read.
    """
    checkpoint_id = manifest.checkpoint.id
    destinations = [destination for plan in plans for destination in plan.destinations]
    try:
        read_leaves(
            source.store,
            checkpoint_id,
            manifest.body,
            destinations,
            pool=source.pool,
            workers=source.workers,
            progress=source.progress,
            on_touch=on_touch,
        )
    except BlobMissingError as error:
        # Where the manifest is gone as well, retention removed the checkpoint meanwhile: that is raised as it is.
        source.store.read(f"{checkpoint_id}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        present = {entry.name for entry in source.store.list(checkpoint_id)}
        missing = [shard.name for shard in manifest.body.shards if shard.name not in present]
        raise IntegrityError(f"{', '.join(missing) or 'a shard'} of {checkpoint_id} is missing") from error


def load_tree(
    source: Source,
    checkpoint_id: str,
    *,
    only: str | None = None,
    like: object = None,
    arrays: Arrays = "native",
    allow_pickle: bool = False,
    on_manifest: Callable[[Manifest], None] | None = None,
) -> object:
    """The saved tree, or the part of it at the path `only`, in new memory."""
    manifest = read_manifest(source, checkpoint_id)
    if on_manifest is not None:
        on_manifest(manifest)
    plan = build(
        manifest.body.tree,
        leaf_infos(manifest.body),
        like=like,
        arrays=arrays,
        allow_pickle=allow_pickle,
        only=only,
    )
    fill(source, manifest, plan)
    return plan.value()


def unwrap_tree(value: object) -> object:
    """What `save(tree=...)` was given, where the checkpoint holds nothing else; otherwise the mapping of names."""
    if isinstance(value, dict) and list(value) == [TREE_NAME]:
        return value[TREE_NAME]
    return value
