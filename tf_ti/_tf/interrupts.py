"""Interrupts: Ctrl-C ends an eager call while the main thread waits in TensorFlow."""

import contextlib
import functools
import os
import signal
import threading
import types

from tensorflow.python.eager import cancellation

_END = b"\0"  # no signal has this number


class _Watch(threading.Thread):
    """A thread that sees signals while the main thread waits, and cancels the functions that run.

    Attributes:
        source, sink: a pipe, to which Python writes the number of each signal at once.
        manager: cancels the functions that the main thread runs; None if it runs none.
        has_interrupted: true once the thread has cancelled them.
        others: a file descriptor of the program's, which gets the numbers too; -1 for none.
        has_forwarded: set once the numbers before `_END` went to `others`.
    """

    def __init__(self) -> None:
        super().__init__(name="tf_ti_interrupts", daemon=True)
        self.source, self.sink = os.pipe()
        os.set_blocking(self.sink, False)
        self.manager: cancellation.CancellationManager | None = None
        self.has_interrupted = False
        self.others = -1
        self.has_forwarded = threading.Event()

    def run(self) -> None:
        while numbers := os.read(self.source, 64):
            manager, others = self.manager, self.others
            if manager is not None and signal.SIGINT in numbers and _raises():
                self.has_interrupted = True
                manager.start_cancel()
            signals = numbers.replace(_END, b"")
            if others >= 0 and signals:
                with contextlib.suppress(OSError):  # full, or closed: Python drops numbers too
                    os.write(others, signals)
            if _END in numbers:
                self.has_forwarded.set()

    def forget_others(self) -> None:
        """Lets go of the program's file descriptor, once it has all numbers."""
        if self.others >= 0:
            self.has_forwarded.clear()
            with contextlib.suppress(BlockingIOError):
                os.write(self.sink, _END)
                self.has_forwarded.wait(1.0)
            self.others = -1


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
    before: cancellation.CancellationManager | None
    descriptor: int
    watch: _Watch

    def __enter__(self) -> None:
        self.manager = None
        if threading.current_thread() is not threading.main_thread():
            return
        self.watch = watch = _watch_of(os.getpid())
        # An interrupt of `__exit__` may have left the manager of an earlier call.
        if cancellation.context() not in (None, watch.manager):
            return
        self.before = watch.manager
        self.manager = watch.manager = cancellation.CancellationManager()
        watch.has_interrupted = False
        self.descriptor = signal.set_wakeup_fd(watch.sink, warn_on_full_buffer=False)
        if self.descriptor != watch.sink:
            watch.others = self.descriptor
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
        self.watch.manager = self.before
        if self.descriptor != self.watch.sink:
            signal.set_wakeup_fd(self.descriptor, warn_on_full_buffer=False)
            self.watch.forget_others()
        if error is not None and self.watch.has_interrupted:
            raise KeyboardInterrupt from None  # TensorFlow raises another error
