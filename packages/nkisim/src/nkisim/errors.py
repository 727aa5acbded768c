"""What goes wrong in a simulated kernel, by kind."""


class NkiError(Exception):
    """Whatever nkisim raises about a kernel or about a launch."""


class NkiValidationError(NkiError, ValueError):
    """An instruction that the hardware or AWS's compiler rejects; the text names the operand."""


class NkiCapacityError(NkiValidationError):
    """The tensors of a kernel do not fit into SBUF or PSUM; the text says who holds what."""


class NkiDeadlockError(NkiError, RuntimeError):
    """Cores wait for each other for ever; the text shows where each of them stands."""


class NkiMismatchError(NkiError, RuntimeError):
    """Cores that meet in one collective, barrier or exchange disagree about what it is."""


class NkiPeerError(NkiError, RuntimeError):
    """A core waited for another that failed; the cause is the other's error.

    Attributes:
        cores: the core that failed first, or several that failed together
    """

    def __init__(self, text: str, cores: tuple[int, ...]) -> None:
        super().__init__(text)
        self.cores = cores


class NkiOutsideKernelError(NkiError, RuntimeError):
    """A function of the language was called while no kernel runs."""


class NkiWarning(UserWarning):
    """Undefined or doubtful behaviour that a rule at level `warn` found."""
