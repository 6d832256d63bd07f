"""`jax.lax.scan` over the bodies of loop_bodies.py, and what these call `tf`, in JAX."""

import functools
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.loop_bodies import Body


def _matvec(matrix, vector):
    return jnp.einsum("...ij,...j->...i", matrix, vector)


def _reduce(function: Callable) -> Callable:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


TF = types.SimpleNamespace(
    float32=jnp.float32,
    int32=jnp.int32,
    int64=jnp.int32,
    add_n=lambda values: functools.reduce(jnp.add, values),
    argmax=lambda x, axis, output_type: jnp.argmax(x, axis).astype(output_type),
    concat=jnp.concatenate,
    constant=jnp.asarray,
    cos=jnp.cos,
    einsum=jnp.einsum,
    exp=jnp.exp,
    eye=jnp.eye,
    linalg=types.SimpleNamespace(matvec=_matvec),
    math=types.SimpleNamespace(rsqrt=jax.lax.rsqrt),
    matmul=jnp.matmul,
    maximum=jnp.maximum,
    minimum=jnp.minimum,
    nn=types.SimpleNamespace(softmax=jax.nn.softmax, log_softmax=jax.nn.log_softmax),
    ones=jnp.ones,
    range=jnp.arange,
    reduce_logsumexp=_reduce(jax.nn.logsumexp),
    reduce_max=_reduce(jnp.max),
    reduce_mean=_reduce(jnp.mean),
    reduce_sum=_reduce(jnp.sum),
    roll=jnp.roll,
    sigmoid=jax.nn.sigmoid,
    sin=jnp.sin,
    split=jnp.split,
    sqrt=jnp.sqrt,
    square=jnp.square,
    squeeze=jnp.squeeze,
    stack=jnp.stack,
    tanh=jnp.tanh,
    transpose=jnp.transpose,
    unstack=lambda x, axis: [jnp.squeeze(part, axis) for part in jnp.split(x, x.shape[axis], axis)],
    where=jnp.where,
    zeros=jnp.zeros,
)


def _loop(body: Body) -> Callable:
    """A function of an initial carry and elements. It maps a body of a single row over all rows."""

    def loop(init, xs):
        return jax.tree.leaves(jax.lax.scan(body.f, init, xs))

    return jax.vmap(loop) if body.is_mapped else loop


def forward(body: Body) -> Callable:
    """The results that are there, of the initial carry and the elements."""
    return jax.jit(_loop(body))


def with_gradient(body: Body) -> Callable:
    """The gradients of all that are floats."""

    def loss(init, xs):
        return sum(jnp.sum(jnp.sin(t)) for t in _loop(body)(init, xs))

    def gradient(init, xs):
        found = jax.grad(loss, (0, 1), allow_int=True)(init, xs)
        return [g for g in jax.tree.leaves(found) if g.dtype == jnp.float32]

    return jax.jit(gradient)
