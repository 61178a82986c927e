"""A save, from the program's objects to a checkpoint that is on its way: by the agent, or in the foreground."""

import errno
from collections.abc import Callable, Mapping

from holdfast.agent.staging import Stager
from holdfast.core.errors import FencedError, HoldfastError, SaveFailedError, StateError, UsageError
from holdfast.engine.failures import Failures
from holdfast.engine.laying import Laid, Layouts
from holdfast.engine.loading import TREE_NAME
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.randomness import current_random
from holdfast.engine.saving import Document, save_in_foreground
from holdfast.engine.session import Session
from holdfast.format.carriers import ToHost
from holdfast.format.encode import Encoded, encode_again, encode_state
from holdfast.format.footprint import Footprint
from holdfast.policy.keep import Keep

__all__ = ["Saver"]


class Saver:
    """One per Checkpointer. Called with its lock held."""

    def __init__(
        self,
        session: Session,
        state: Mapping[str, object],
        stager: Stager | None,
        *,
        keep: Keep,
        random: bool,
        pickle: bool,
        failures: Failures,
    ) -> None:
        self._session = session
        self._state = state
        self._stager = stager
        self._keep = keep
        self._random = random
        self._pickle = pickle
        self._failures = failures
        self._layouts = Layouts()

    def save(self, document: Document, tree: object, *, is_last: bool = False) -> PendingCheckpoint:
        """What the program has asked for wrongly is raised; a storage that fails is said, and in the result (I7).

        So is what one before has come to, unless this is the last: nobody could make up for it.
        """
        self._session.check_step(document.step)
        self._failures.raise_fenced() if is_last else self._failures.raise_background()
        pending = PendingCheckpoint(document.step, self._session.clock)
        try:
            # What reads the catalogue is in here, too: a storage that fails there must not end the job either.
            if self._stager is not None:
                self._session.check_continues()
                self._stager.save(lambda to_host, footprint: self.encode(tree, to_host, footprint), document, pending)
            else:
                laid = self.lay_out(tree)
                self._session.check_continues()
                save_in_foreground(
                    self._session, laid, document, self._keep, lambda checkpoint: pending.note_durable(checkpoint.id)
                )
        except (FencedError, UsageError, StateError):
            raise
        except HoldfastError as error:
            self._note_failure(pending, error)
        except (MemoryError, OSError) as error:
            if not isinstance(error, MemoryError) and error.errno != errno.ENOMEM:
                raise
            self._note_failure(pending, SaveFailedError(f"there is not enough memory to save: {error}"))
        return pending

    def lay_out(self, tree: object = None) -> Laid:
        """The state as it would be saved, with its places in a shard."""
        return self._layouts.take(lambda footprint: self.encode(tree, None, footprint))

    def encode(self, tree: object = None, to_host: ToHost | None = None, footprint: Footprint | None = None) -> Encoded:
        """The state as it is now, with that of the random generators."""
        state = dict(self._state)
        if tree is not None:
            state[TREE_NAME] = tree
        if not state:
            raise UsageError("there is nothing to save", hint="give Checkpointer a state, or save(tree=...)")
        random = current_random() if self._random else None
        if footprint is not None:
            return encode_again(footprint, state, random=random, allow_pickle=self._pickle, to_host=to_host)
        return encode_state(state, random=random, allow_pickle=self._pickle, to_host=to_host, again=True)

    def _note_failure(self, pending: PendingCheckpoint, error: HoldfastError) -> None:
        self._failures.report(pending, error)
        note: Callable[..., None] = self._session.journal.record
        if self._stager is not None:
            self._stager.failed += 1
            note = self._stager.background.note  # without waiting for a storage that hangs
        note("save_failed", step=pending.step, error=error.message)
