"""Interrupts: Ctrl-C ends an eager call while the main thread waits in TensorFlow."""

import functools
import os
import signal
import threading
import types

from tensorflow.python.eager import cancellation


class _Watch(threading.Thread):
    """A thread that sees signals while the main thread waits, and cancels the functions that run.

    Attributes:
        source, sink: a pipe, to which Python writes the number of each signal at once.
        manager: cancels the functions that the main thread runs; None if it runs none.
        has_interrupted: true once the thread has cancelled them.
        others: a file descriptor of the program's, which gets the numbers too; -1 for none.
    """

    def __init__(self) -> None:
        super().__init__(name="tf_ti_interrupts", daemon=True)
        self.source, self.sink = os.pipe()
        os.set_blocking(self.sink, False)
        self.manager: cancellation.CancellationManager | None = None
        self.has_interrupted = False
        self.others = -1

    def run(self) -> None:
        while numbers := os.read(self.source, 64):
            manager, others = self.manager, self.others
            if manager is not None and signal.SIGINT in numbers and _raises():
                self.has_interrupted = True
                manager.start_cancel()
            if others >= 0:
                os.write(others, numbers)


def _raises() -> bool:
    """True if SIGINT raises KeyboardInterrupt; a handler of the program's need not end anything."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


@functools.cache
def _watch_of(process: int) -> _Watch:
    """The watch of a process: a fork has no threads of its parent."""
    watch = _Watch()
    watch.start()
    return watch


class Interruptible:
    """A context in which Ctrl-C ends the functions that the main thread calls.

    Python runs a signal's handler when TensorFlow returns, which may be never. The context costs
    some microseconds. It does nothing in other threads, and inside a cancellation manager of the
    program's.
    """

    manager: cancellation.CancellationManager | None
    watch: _Watch

    def __enter__(self) -> None:
        self.manager = None
        if threading.current_thread() is not threading.main_thread():
            return
        self.watch = watch = _watch_of(os.getpid())
        # An interrupt of `__exit__` may have left the manager of an earlier call.
        if cancellation.context() not in (None, watch.manager):
            return
        self.manager = watch.manager = cancellation.CancellationManager()
        watch.has_interrupted = False
        others = signal.set_wakeup_fd(watch.sink, warn_on_full_buffer=False)
        watch.others = watch.others if others == watch.sink else others
        self.context = cancellation.CancellationManagerContext(self.manager)
        self.context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self.manager is None:
            return
        self.context.__exit__(kind, error, traceback)
        self.watch.manager = None
        signal.set_wakeup_fd(self.watch.others, warn_on_full_buffer=False)
        if error is not None and self.watch.has_interrupted:
            raise KeyboardInterrupt from None  # TensorFlow raises another error
