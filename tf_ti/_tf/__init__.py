from tf_ti._tf.graphs import *  # noqa: F403
