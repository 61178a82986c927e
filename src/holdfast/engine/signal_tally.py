"""How often a signal came, where two tell of it in any order."""

__all__ = ["Tally"]


class Tally:
    """How often a signal came. Some come as a number in the pipe first, some by the handler; each counts once."""

    def __init__(self) -> None:
        self.count = 0
        self.told = 0
        self._handled = 0
        self._ahead = 0
        """By how many the handler is ahead of the numbers in the pipe."""
        self._met = 0
        """How many of these have come since, and wait for the handler's mark, which is behind them."""

    @property
    def is_ahead_of_handler(self) -> bool:
        """Whether some came that the handler has not run for yet."""
        return self.count > self._handled

    def note_written(self) -> bool:
        """A number in the pipe; whether that is news."""
        if self._ahead:
            self._ahead -= 1
            self._met += 1
            return False
        self.count += 1
        return True

    def note_mark(self) -> None:
        """The mark of a handler that was first. Where no number was before it, somebody else has the pipe for these."""
        if self._met:
            self._met -= 1
        elif self._ahead:
            self._ahead -= 1

    def note_handled(self) -> bool:
        """The handler ran, perhaps once for several that came meanwhile; whether that is news."""
        if self.is_ahead_of_handler:
            self._handled = self.count
            return False
        self.count += 1
        self._handled = self.count
        self._ahead += 1
        return True
