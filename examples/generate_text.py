"""Writes text with a model that train_char_model.py has saved.

    python examples/generate_text.py build/char_model/saved_model --prompt "class "

Nothing of the model's code is needed, only TensorFlow and `import tf_ti`, which brings its op.
"""

import argparse

import tensorflow as tf

import tf_ti  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes text with a saved character model.")
    parser.add_argument("saved_model", help="the folder that train_char_model.py names")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--length", type=int, default=600, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.7, help="lower is less daring")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    model = tf.saved_model.load(options.saved_model)
    text = model.generate(
        tf.constant(options.prompt),
        tf.constant(options.length),
        tf.constant(options.temperature),
        tf.constant(options.seed),
    )
    print(options.prompt + text.numpy().decode())


if __name__ == "__main__":
    main()
