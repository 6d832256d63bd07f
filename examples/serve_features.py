"""Trains a recommender on features of many ids, and serves it.

    python examples/serve_features.py                     half a minute
    python examples/serve_features.py --output-dir DIR

The model is a DLRM: each feature is pooled by a table of its own width, all of them by one
operation; the products of the pooled vectors tell whether a user clicks on an item. What it learns
from is made up: users view films of two genres, and click on a film if it is of one of these.

The saved model takes ragged features under their names. Servers pass dense tensors: the signature
has a feature's values under its name, and where each row begins under "..._row_splits". A fresh
process, which has nothing of this file, asks for both.
"""

import argparse
import pathlib
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_ti

GENRES, FILMS, USERS, WORDS = 8, 200, 1000, 300
# The ragged features: a row of each may have any number of ids.
FEATURES = ("user", "film", "viewed", "searched")


def model() -> keras.Model:
    bag = tf_ti.keras.EmbeddingBag
    bags = tf_ti.keras.EmbeddingBags(
        {
            "users": bag(USERS, 4),
            "films": bag(FILMS, 16, combiner="mean", mask_zero=True),
            "words": bag(WORDS, 8, combiner="sqrtn"),
        },
        features={"user": "users", "film": "films", "viewed": "films", "searched": "words"},
    )
    inputs = {
        name: keras.Input((None,), dtype="int64", ragged=True, name=name) for name in FEATURES
    }
    vectors = [keras.layers.Dense(16)(pooled) for pooled in bags(inputs).values()]
    products = [
        keras.layers.Dot(axes=1)([vectors[i], vectors[j]])
        for i in range(len(vectors))
        for j in range(i)
    ]
    hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()([*vectors, *products]))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid", name="click")(hidden))


def clicks(count: int, rng: np.random.Generator) -> tuple[dict[str, tf.RaggedTensor], np.ndarray]:
    """Features of each name [count, (ids)], and whether the user clicked. Film 0 is padding."""

    def ragged(rows):
        return tf.ragged.constant([list(map(int, row)) for row in rows], tf.int64)

    likes = rng.integers(GENRES, size=[count, 2])
    films = rng.integers(1, FILMS, count)
    is_liked = rng.random(count) < 0.5
    films[is_liked] = films[is_liked] // GENRES * GENRES + likes[is_liked, 0]
    films = np.maximum(films, 1)
    viewed = [1 + rng.integers(FILMS // GENRES - 1, size=rng.integers(2, 9)) for _ in range(count)]
    features = {
        "user": ragged(rng.integers(USERS, size=[count, 1])),
        "film": ragged(films[:, np.newaxis]),
        "viewed": ragged(
            row * GENRES + rng.choice(liked, len(row)) for row, liked in zip(viewed, likes)
        ),
        "searched": ragged(rng.integers(WORDS, size=rng.integers(0, 4)) for _ in range(count)),
    }
    clicked = (films[:, np.newaxis] % GENRES == likes).any(axis=1)
    return features, clicked.astype(np.float32)


class Served(tf.Module):
    """What is saved of a model: a function of ragged features, and one of their parts."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self.model = model
        ragged, parts = {}, {}
        for name in FEATURES:
            ragged[name] = tf.RaggedTensorSpec([None, None], tf.int64)
            parts[name] = tf.TensorSpec([None], tf.int64)
            parts[f"{name}_row_splits"] = tf.TensorSpec([None], tf.int64)
        self.click = tf.function(self._click, input_signature=[ragged])
        self.signature = tf.function(self._click_of_parts).get_concrete_function(**parts)

    def _click(self, features: dict[str, tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        return {"click": self.model(features)[:, 0]}

    def _click_of_parts(self, **parts: tf.Tensor) -> dict[str, tf.Tensor]:
        # Wrong splits are found by the look-ups.
        return self.click(
            {
                name: tf.RaggedTensor.from_row_splits(
                    parts[name], parts[f"{name}_row_splits"], validate=False
                )
                for name in FEATURES
            }
        )


# What a server does, in Python.
SERVER = """
import sys
import tensorflow as tf
import tf_ti

served = tf.saved_model.load(sys.argv[1])
features = {
    "user": tf.ragged.constant([[7], [7]], tf.int64),
    "film": tf.ragged.constant([[24], [29]], tf.int64),
    "viewed": tf.ragged.constant([[16, 80, 112], [8, 17, 32, 41, 57]], tf.int64),
    "searched": tf.ragged.constant([[3, 1], []], tf.int64),
}
by_name = served.click(features)["click"]

parts = {}
for name, ids in features.items():
    parts |= {name: ids.values, f"{name}_row_splits": ids.row_splits}
by_signature = served.signatures["serving_default"](**parts)["click"]
assert (by_signature.numpy() == by_name.numpy()).all()
for probability in by_name.numpy():
    print(f"clicks: {probability:.0%}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a recommender, and serves it.")
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path("build/features"))
    parser.add_argument("--clicks", type=int, default=40_000, help="how many to train on")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    recommender = model()
    recommender.compile(
        tf_ti.keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"]
    )
    train, held_out = (
        tf.data.Dataset.from_tensor_slices(clicks(count, rng)).batch(256)
        for count in (options.clicks, 2000)
    )
    recommender.fit(train, epochs=options.epochs, shuffle=False, verbose=2)
    _, accuracy = recommender.evaluate(held_out, verbose=0)
    print(f"right about {accuracy:.1%} of clicks that it was not trained on")

    folder = options.output_dir / "saved_model"
    served = Served(recommender)
    tf.saved_model.save(served, str(folder), signatures={"serving_default": served.signature})
    print(f"saved in {folder}; in a fresh process, of a film they like and of one they do not:")
    subprocess.run([sys.executable, "-c", SERVER, str(folder)], check=True)


if __name__ == "__main__":
    main()
