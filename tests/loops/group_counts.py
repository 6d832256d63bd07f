"""How many groups of lanes run, by a profile."""

import pathlib
import tempfile

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def groups_of(call):
    """Calls a function, and tells in how many groups its loops have run."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        call()
        tf.profiler.experimental.stop()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    return sum(
        plane.event_metadata[event.metadata_id].name.startswith("TfTi>TensorIterator lanes")
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )
