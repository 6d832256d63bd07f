"""Writes functions of TensorFlow as OpenVINO's IR."""
