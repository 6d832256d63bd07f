"""Classifies texts with a model that train_text_classifier.py has saved.

    python examples/classify_text.py build/text_classifier/saved_model "for line in lines:"
    python examples/classify_text.py build/text_classifier/saved_model --file README.md

Nothing of the model's code is needed, only TensorFlow and `import tf_ti`, which brings its op.
"""

import argparse
import pathlib

import tensorflow as tf

import tf_ti  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(description="Classifies texts with a saved model.")
    parser.add_argument("saved_model", help="the folder that train_text_classifier.py names")
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument(
        "--file", type=pathlib.Path, help="a UTF-8 text, each line of which is classified too"
    )
    options = parser.parse_args()
    texts = list(options.texts)
    if options.file:
        lines = options.file.read_text(encoding="utf-8").splitlines()
        texts += [line.strip() for line in lines if line.strip()]
    if not texts:
        parser.error("a text or --file is needed")

    model = tf.saved_model.load(options.saved_model)
    answer = model.classify(tf.constant(texts))
    classes = [name.decode() for name in answer["classes"].numpy()]
    width = max(map(len, classes))
    for text, probabilities in zip(texts, answer["probabilities"].numpy()):
        best = probabilities.argmax()
        print(f"{probabilities[best]:7.2%}  {classes[best]:{width}}  {text}")


if __name__ == "__main__":
    main()
