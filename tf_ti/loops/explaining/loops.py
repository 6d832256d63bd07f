"""The loops of a graph, and what became of each."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.explaining import at_once as _at_once, lanes as _lanes, memory as _memory
from tf_ti.loops.passes import Outcome, programs as _programs
from tf_ti.loops.passes.step import Account, Mention, Note, Unknown
from tf_ti.loops.spec import OPS
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

# The places of operations, in the order of a picture.
PLACES = ("once", "before", "sequence", "programs", "kernels", "after")
_WHILES = ("While", "StatelessWhile")
_GRADIENT = "the gradient of "
_NO_LOOP = "no loop: every operation runs for all iterations at once"
_PART = "a part of the program of the loop around it"
_SAVED = "unknown: saved"
_MOST_LISTED = 6


@dataclasses.dataclass(frozen=True)
class Moved:
    """An operation that left a loop.

    Attributes:
        operation: the operation.
        place: "once, before it", or "before it, for all iterations", or "after it, ..."; for reads
            and writes of elements at a counter "as slices" and "as stacks".
    """

    operation: Mention
    place: str


@dataclasses.dataclass(frozen=True)
class Reason:
    """The reason why something did not happen.

    Attributes:
        text: the reason.
        operation: the operation that is the reason; None if it is no single one.
        cure: what to do about it, as a sentence, or "".
    """

    text: str
    operation: Mention | None = None
    cure: str = ""

    @classmethod
    def of(cls, note: Note) -> "Reason":
        operation = note.operations[0] if note.operations else None
        return cls(note.text, operation, note.cure)


@dataclasses.dataclass(frozen=True)
class LoopExplanation:
    """What became of one loop.

    Attributes:
        name: its name, with the scopes around it.
        place: the user's line, as "model.py, line 12"; "" if unknown.
        runs_as: what runs it: "one sequence of LSTM cells", "one program of 12 operations", ...
        counted: the counter that tells the number of iterations in place of a condition, or "".
        moved: the operations that left it, each a `Moved`.
        no_sequence: the `Reason` why it is no recurrent sequence; None if it is one, or if that
            is no question.
        staying: the `Reason`s why operations that need no state stay in the loop.
        one_by_one: the `Reason`s why operations are kernels of TensorFlow.
        at_once: what may be at work at once, each a line of text.
        lanes: the lanes of a loop that is one program: their number, where they are, and in how
            many groups they run; "" if there are none.
        no_lanes: the `Reason`s why there are none.
        recorded: the memory that its gradient takes: a `Recorded`; None if that is none.
        inner: the loops inside of it.
        operations: the numbers of operations by place.
    """

    name: str
    place: str
    runs_as: str
    counted: str = ""
    moved: tuple[Moved, ...] = ()
    no_sequence: Reason | None = None
    staying: tuple[Reason, ...] = ()
    one_by_one: tuple[Reason, ...] = ()
    at_once: tuple[str, ...] = ()
    lanes: str = ""
    no_lanes: tuple[Reason, ...] = ()
    recorded: _memory.Recorded | None = None
    inner: tuple["LoopExplanation", ...] = ()
    operations: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name}{self.place and f' ({self.place})'}"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def with_inner(self) -> Iterator["LoopExplanation"]:
        """This loop, and all inside of it."""
        yield self
        for inner in self.inner:
            yield from inner.with_inner()


# By the type of an operation that is a loop of another kind: what it runs as, and what it records.
OTHERS: dict[str, Callable[[tf.Operation], tuple[str, _memory.Recorded | None]]] = {}


def find(graph: tf.Graph) -> list[LoopExplanation]:
    """The loops of a graph, and of the functions that it calls."""
    return list(_find(graph, set()))


def runs_as(outcome: Outcome) -> str:
    """What a loop runs as, in short; `find` tells more, of its operation."""
    notes = outcome.notes
    sequence = next((n for n in notes if n.name == "recognition" and n.is_done), None)
    if sequence is not None:
        return sequence.text.removeprefix("runs as ")
    return _NO_LOOP if outcome.is_gone else _engine(notes, is_fused=True)


def _find(
    graph: tf.Graph, seen: set[str], parts: Collection[tf.Operation] = ()
) -> Iterator[LoopExplanation]:
    """The loops of a graph, some of which are parts of the program of the loop around them."""
    for op in graph.get_operations():
        account = _graphs.ACCOUNTS.get(op)
        if op.type in OPS:
            yield _loop(op, account, seen, op in parts)
        elif op.type in OTHERS:
            yield _other(op, account)
        elif account is not None:
            yield _vanished(account)
        elif op.type in _WHILES:
            yield _while(op, seen)
        elif not op.type.startswith("TfTi>"):
            for name in _graphs.function_names(op.node_def):
                yield from _find_in_function(op, name, seen)


def _find_in_function(op: tf.Operation, name: str, seen: set[str]) -> Iterator[LoopExplanation]:
    if name not in seen and _tf.find_function(op.graph, name) is not None:
        seen.add(name)
        # A branch gets all inputs but the condition, a called function all.
        shapes = [t.shape for t in op.inputs]
        has_condition = op.type in ("If", "StatelessIf", "Case", "StatelessCase")
        try:
            graph = _tf.function_graph(op, name, shapes[has_condition:])
        except ValueError:  # a derivative of TensorFlow's calls functions that no graph knows
            return
        yield from _find(graph, seen)


def _loop(
    op: tf.Operation, account: Account | None, seen: set[str], is_part: bool
) -> LoopExplanation:
    loop = TracedLoop.from_op(op)
    is_gradient = any(given.label.startswith(_GRADIENT) for given in loop.spec.inputs)
    if account is None:
        notes, place = _notes_of_programs(loop), _tf.place_of(op)
        name = f"gradient of a loop: {op.name}" if is_gradient else op.name
        account = Account(name, notes, place)
        unknown = None if place else Reason(_SAVED)
    else:
        unknown = None
    notes = account.notes
    devices = {_tf.device_of_resource(t) for t in op.inputs if t.dtype == tf.resource} - {""}
    if len(devices) > 1:  # where the kernel has no programs
        text = f"on {', '.join(sorted(devices))}, where its variables are"
        notes = (*(n for n in notes if n.name != "programs"), Note("programs", text, False))
    is_program = loop.spec.fuse and _in_programs(notes) and not _by_kernels(notes)
    lanes = _lanes.find(loop) if is_program and not is_part else _lanes.Lanes()
    notes = _with_kernels(notes, lanes.by_kernels)
    by_kernels, in_programs = _by_kernels(notes), _in_programs(notes)
    in_kernels = sum(bool(note.operations) for note in by_kernels)
    too_large = {mention.name for note in lanes.by_kernels for mention in note.operations}
    parts = {
        inner
        for graph in loop.graphs
        for inner in graph.get_operations()
        if in_programs and inner.type in OPS and inner.name not in too_large
        if _programs.refusal(inner) is None
    }
    inner = [each for graph in loop.graphs for each in _find(graph, seen, parts)]
    return LoopExplanation(
        account.name,
        account.place,
        _PART if is_part else _engine(notes, loop.spec.fuse),
        _counted(notes),
        _moved(notes),
        unknown or _refusal(notes, "recognition"),
        tuple(
            Reason.of(n) for n in notes if n.name == "fission" and not n.is_done and n.operations
        ),
        tuple(Reason.of(note) for note in by_kernels if note.operations),
        () if len(devices) > 1 else tuple(_at_once.lines(loop)),
        lanes.text,
        tuple(map(Reason.of, lanes.obstacles)),
        _memory.recorded(loop),
        tuple(inner),
        _count(notes, {"programs": in_programs, "kernels": in_kernels}),
    )


def _notes_of_programs(loop: TracedLoop) -> tuple[Note, ...]:
    if not loop.spec.fuse:
        return ()
    try:
        step = _programs.account(loop)
    except Unknown as refusal:
        return (Note.of("programs", refusal),)
    return () if step is None else step.notes


def _with_kernels(notes: tuple[Note, ...], by_kernels: tuple[Note, ...]) -> tuple[Note, ...]:
    """Notes of programs, of which some operations turn out to be kernels by their shapes."""

    def fewer(note: Note) -> Note:
        is_count = note.name == "programs" and note.is_done and note.count
        return dataclasses.replace(note, count=note.count - len(by_kernels)) if is_count else note

    return (*map(fewer, notes), *by_kernels)


def _by_kernels(notes: Sequence[Note]) -> list[Note]:
    return [note for note in notes if note.name == "programs" and not note.is_done]


def _in_programs(notes: Sequence[Note]) -> int:
    return next((n.count for n in notes if n.name == "programs" and n.is_done), 0)


def _engine(notes: Sequence[Note], is_fused: bool) -> str:
    by_kernels, in_programs = _by_kernels(notes), _in_programs(notes)
    in_kernels = sum(bool(note.operations) for note in by_kernels)
    elsewhere = next((note for note in by_kernels if not note.operations), None)
    if elsewhere is not None and elsewhere.text == _programs.BY_XLA:
        return "XLA's code"
    if elsewhere is not None:
        return f"TensorFlow's kernels, one by one: {elsewhere.text}"
    if not is_fused:
        return "TensorFlow's kernels, one by one: fuse=False"
    if not in_kernels:
        return f"one program of {_many(in_programs)}" if in_programs else "moves of values alone"
    if not in_programs:
        return f"TensorFlow's kernels, one by one: {_many(in_kernels)}"
    return f"programs of {_many(in_programs)}, and {in_kernels} by TensorFlow's kernels"


def _many(count: int) -> str:
    return f"{count} operation{'s' if count != 1 else ''}"


def _moved(notes: Sequence[Note]) -> tuple[Moved, ...]:
    return tuple(
        Moved(each, note.place) for note in notes for each in note.operations if note.place
    )


def _counted(notes: Sequence[Note]) -> str:
    return next((note.text for note in notes if note.name == "counted"), "")


def _refusal(notes: Sequence[Note], name: str) -> Reason | None:
    return next((Reason.of(n) for n in notes if n.name == name and not n.is_done), None)


def _count(notes: Sequence[Note], found: dict[str, int]) -> dict[str, int]:
    """The numbers of operations by place, but for those of none."""
    for note in notes:
        if note.place:
            found[note.place.partition(",")[0].partition(" ")[0]] = note.count
    return {place: found[place] for place in PLACES if found.get(place)}


def _other(op: tf.Operation, account: Account | None) -> LoopExplanation:
    runs_as, recorded = OTHERS[op.type](op)
    if account is None:  # of a function that is a sequence, not of a loop
        name = op.name.rpartition("/")[0] or op.name
        return LoopExplanation(name, _tf.place_of(op), runs_as, recorded=recorded)
    count = sum(note.count for note in account.notes if note.name == "recognition")
    operations = _count(account.notes, {"sequence": count})
    return LoopExplanation(
        account.name,
        account.place,
        runs_as,
        _counted(account.notes),
        _moved(account.notes),
        recorded=recorded,
        operations=operations,
    )


def _vanished(account: Account) -> LoopExplanation:
    notes = account.notes
    moved, operations = _moved(notes), _count(notes, {})
    return LoopExplanation(
        account.name, account.place, _NO_LOOP, _counted(notes), moved, operations=operations
    )


def _while(op: tf.Operation, seen: set[str]) -> LoopExplanation:
    inner = [
        each
        for key in ("cond", "body")
        for each in _find_in_function(op, op.get_attr(key).name, seen)
    ]
    cure = _programs.cure_of_mapped(op) or (
        "tf_ti.while_loop takes the arguments of tf.while_loop; tf_ti.keras.convert puts tf_ti's "
        "layers into a Keras model."
    )
    reason = Reason("it is a loop of TensorFlow's own", cure=cure)
    runs_as = "TensorFlow's While, one operation at a time"
    return LoopExplanation(
        op.name, _tf.place_of(op), runs_as, no_sequence=reason, inner=tuple(inner)
    )


# --- text ----------------------------------------------------------------------------------------


def _lines(loop: LoopExplanation) -> Iterator[str]:
    yield loop.title
    yield f"  runs as {loop.runs_as}"
    if loop.counted:
        yield f"  {loop.counted}"
    places: dict[str, list[str]] = {}
    for moved in loop.moved:
        places.setdefault(moved.place, []).append(str(moved.operation))
    for place, operations in places.items():
        yield f"  {place}: {_listed(operations)}"
    if loop.no_sequence is not None:
        yield from _reason_lines("no recurrent sequence", [loop.no_sequence])
    yield from _reason_lines("one by one", loop.one_by_one)
    yield from (f"  {line}" for line in loop.at_once)
    if loop.lanes:
        yield f"  lanes: {loop.lanes}"
    yield from _reason_lines("no lanes", loop.no_lanes)
    yield from _reason_lines("in the loop", loop.staying)
    if loop.recorded is not None:
        yield f"  its gradient records {loop.recorded}"
    for inner in loop.inner:
        for line in _lines(inner):
            yield f"  {line}"


def _listed(names: Sequence[str]) -> str:
    """Names, of many the first."""
    rest = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _reason_lines(what: str, reasons: Sequence[Reason]) -> Iterator[str]:
    """A line for each reason, with all operations that have it."""
    operations: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        found = operations.setdefault((reason.text, reason.cure), [])
        found += [str(reason.operation)] if reason.operation is not None else []
    for (text, cure), found in operations.items():
        yield f"  {what}: {text}{f': {_listed(found)}' if found else ''}"
        if cure:
            yield f"    {cure}"
