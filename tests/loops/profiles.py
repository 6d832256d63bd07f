"""How often events come in a profile."""

import collections

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def counts(function, argument, folder):
    """How often each event of the host's threads came."""
    for _ in range(2):  # the second call compiles programs of short loops
        function(argument)
    with tf.profiler.experimental.Profile(str(folder)):
        function(argument)
    (path,) = folder.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    return collections.Counter(
        host.event_metadata[event.metadata_id].name for line in host.lines for event in line.events
    )


def loops_of(events):
    names = ("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")
    return sum(count for name, count in events.items() if name.endswith(names))
