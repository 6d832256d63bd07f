"""Functions of TensorFlow as OpenVINO's IR."""
