"""Every error that Penstock raises on purpose.

    PenstockError
    ├── FatalError                  this process cannot do its job: mend the cause, start it again
    │   ├── SettingsError           a setting is wrong
    │   ├── SpaceError              a space that is not mapped to Arrow
    │   ├── EnvError                an environment that cannot be made, or that broke
    │   ├── PolicyError             a policy that cannot be made
    │   ├── TooLargeError           one step does not fit into one message
    │   ├── TopicError              a topic that is missing, misconfigured, recreated or cut
    │   ├── BadStreamError          most of what comes is not valid: quarantining it would hide that
    │   ├── StoreError              a store that cannot be used as it is
    │   │   ├── StoreMismatchError  a store of another stream, schema, topic or cluster
    │   │   ├── StoreFormatError    a store that another version wrote
    │   │   └── CorruptStoreError   a store whose objects contradict each other
    │   └── BrokerError             a local broker that does not start
    └── RecoverableError            the process goes on
        ├── RejectedError           a message that is not wholly valid: quarantined with its reason
        ├── PolicyRejectedError     a policy version that is not loaded; the last good one acts on
        ├── LogUnavailableError     the log does not answer: try again, and say so
        ├── StoreUnavailableError   the store does not answer, or has no room: the same
        └── FencedError             another writer made this commit: reload

Whoever catches decides by the two classes below the root. A message names the thing, the value and what
to do.
"""


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""


class FatalError(PenstockError):
    """This process cannot do its job: mend the cause and start it again."""


class SettingsError(FatalError):
    """A setting is wrong."""


class SpaceError(FatalError):
    """A space that is not mapped to Arrow."""


class EnvError(FatalError):
    """An environment that cannot be made, or that broke."""


class PolicyError(FatalError):
    """A policy that cannot be made."""


class TooLargeError(FatalError):
    """One step, with all its overhead, does not fit into one message."""


class TopicError(FatalError):
    """A topic that is missing, misconfigured, recreated, or cut below what a store has read."""


class BadStreamError(FatalError):
    """Most of what comes from the log is not valid."""


class StoreError(FatalError):
    """A store that cannot be used as it is: absent, not permitted, or not what it should be."""


class StoreMismatchError(StoreError):
    """A store of another stream, schema, topic or cluster."""


class StoreFormatError(StoreError):
    """A store that another version of the format wrote."""


class CorruptStoreError(StoreError):
    """A store whose objects contradict each other, or are damaged."""


class BrokerError(FatalError):
    """A local broker that does not start."""


class RecoverableError(PenstockError):
    """The process goes on."""


class RejectedError(RecoverableError):
    """A message that is not wholly valid; `reason` is the label under which it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class PolicyRejectedError(RecoverableError):
    """A policy version that is not loaded; `reason` is the label under which it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class LogUnavailableError(RecoverableError):
    """The log does not answer, or did not take a record in time."""


class StoreUnavailableError(RecoverableError):
    """The store does not answer, or fails in a way that may pass, as a full disk does."""


class FencedError(RecoverableError):
    """Another writer made the commit that this one was about to make."""
