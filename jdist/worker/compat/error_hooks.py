"""The method of IPython's shell that publishes errors, which ``rich.traceback.install()`` and others replace."""

from typing import Any


def publish_error(shell: Any, kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
    """Publish an error in these lines as the shell's class does, whatever has been put in the place of its method."""
    type(shell)._showtraceback(shell, kind, error, lines)


def publish_next(shell: Any, kinds: tuple[type[BaseException], ...]) -> None:
    """If the method has been replaced: have the next error go past what has replaced it, if it is of these kinds."""
    replaced = vars(shell).get("_showtraceback")
    if replaced is None:
        return

    def show(kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        shell._showtraceback = replaced
        if isinstance(error, kinds):
            publish_error(shell, kind, error, lines)
        else:
            replaced(kind, error, lines)

    shell._showtraceback = show
