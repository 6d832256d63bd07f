"""Page faults of calls whose outputs have megabytes.

Each process has its own: a page that is there once has no more faults.
"""

import pathlib
import resource

import pytest

pytestmark = [pytest.mark.needs_cpu_kernels, pytest.mark.slow]

PROGRAM = """
import os
import resource
import sys
what, os.environ["TF_TI_HUGE_PAGES"] = sys.argv[1:3]
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its allocator keeps the memory of earlier calls
import tensorflow as tf
import tf_ti

tf.config.threading.set_intra_op_parallelism_threads(2)
STEPS, ROWS, WIDTH = 16, 131_072, 8  # 4 MB a state

def scan(h, xs, w, fuse=True):
    def f(h, x):
        h = tf.tanh(h * w + x)
        return h, h

    return tf_ti.scan(f, h, xs, fuse=fuse)[1]

def gradient(h, xs, w, fuse=True):
    with tf.GradientTape() as tape:
        tape.watch([h, w])
        states = scan(h, xs, w, fuse)
        loss = tf.reduce_sum(states * states)
    return tape.gradient(loss, [h, w])

def sequence(x, w):
    state = tf.zeros([64, 1, 128])
    return tf_ti.rnn_sequence(x, state, None, w, w, tf.zeros([1, 128]))

loop = [tf.ones([ROWS, WIDTH]), tf.ones([STEPS, WIDTH]), tf.ones([WIDTH])]
ids = tf.zeros([1 << 18, 2], tf.int32)
call, arguments = {
    "scan": (scan, loop),
    "gradient": (gradient, loop),
    "gradient of kernels": (lambda *loop: gradient(*loop, fuse=False), loop),
    "sequence": (sequence, [tf.ones([64, 1000, 128]), tf.ones([1, 128, 128])]),
    "bags": (lambda table: tf_ti.embedding_bag_packed(table, ids), [tf.ones([1000, 64])]),
}[what]
call = tf.function(call, autograph=False)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call(*arguments)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for _ in range(2):
    faults()
print("faults", min(faults() for _ in range(5)))
"""
# The arrays that a call writes first, in MB.
LARGE = {"scan": 64, "sequence": 31, "bags": 64}


@pytest.fixture
def faults_of(run_program):
    def faults_of(what, huge_pages):
        finished = run_program(PROGRAM, what, int(huge_pages), is_first=True)
        return int(finished.stdout.split("faults")[1])

    return faults_of


@pytest.mark.parametrize("what", list(LARGE))
def test_large_outputs_come_on_huge_pages(faults_of, what):
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("this system gives no huge pages on request, or all without")
    small_pages = LARGE[what] * 2**20 // resource.getpagesize()
    assert faults_of(what, huge_pages=False) > 0.9 * small_pages
    # The ends of arrays are on small pages, and the system may lack huge ones.
    assert faults_of(what, huge_pages=True) < 0.5 * small_pages


def test_programs_touch_no_more_memory_for_a_gradient_than_kernels(faults_of):
    """A state's history lies in the rows of the result that becomes the state."""
    ours = faults_of("gradient", huge_pages=False)
    history = 64 * 2**20 // resource.getpagesize()
    assert ours < faults_of("gradient of kernels", huge_pages=False) + 0.5 * history
