"""What leakscope tells its user when something cannot be done."""


class LeakscopeError(Exception):
    """Something the user can mend, told in one sentence that says what to do; the command line exits with 2."""


class Unreadable(LeakscopeError):
    """A file or folder that is not what it should be, is damaged, or comes from a newer leakscope."""


class LaunchFailed(LeakscopeError):
    """The ranks could not be started."""
