"""`python -m tf_ti`: prints the versions, devices and ops, and checks them; 1 if a check fails."""

import argparse
import collections
import platform
import sys

import numpy as np
import tensorflow as tf

from tf_ti import __version__, _build_info, _library, _self_check, _tf


def _print_versions() -> None:
    cuda = f"with CUDA {_build_info.CUDA}" if _build_info.CUDA else "without CUDA"
    print(f"tf_ti       {__version__}")
    print(f"  built for TensorFlow {_build_info.TENSORFLOW_VERSION}, {cuda}")
    print(f"  by        {_build_info.COMPILER}")
    print(f"  with      {_build_info.FLAGS}")
    print(f"TensorFlow  {tf.__version__}")
    print(f"NumPy       {np.__version__}")
    print(f"Python      {platform.python_version()}")
    print(f"platform    {platform.platform()}")


def _print_processor() -> None:
    print("\nProcessor: what is chosen for it")
    for line in _library.PROCESSOR:
        print(f"  {line}")


def _print_devices() -> None:
    print("\nDevices")
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        print("  " + " ".join([device.name, details.get("device_name", "")]).rstrip())


def _print_ops() -> None:
    devices = collections.defaultdict(set)
    for kernel in _tf.registered_kernels():
        if kernel.op.startswith("TfTi>"):
            devices[kernel.op].add(kernel.device_type)
    print("\nOps and the devices that have kernels for them")
    width = max(map(len, devices))
    for op in sorted(devices):
        print(f"  {op:{width}}  {', '.join(sorted(devices[op]))}")


def _print_xla() -> None:
    problem = _library.XLA_PROBLEM
    print("\nXLA (jit_compile=True)")
    print(f"  not available: {problem}" if problem else "  kernels for all ops")


def _check() -> bool:
    print("\nSelf-check")
    all_ok = True
    for name, ok, detail in _self_check.run():
        all_ok = all_ok and ok
        print(f"  {'ok    ' if ok else 'FAILED'}  {name}: {detail}")
    return all_ok


def main() -> int:
    argparse.ArgumentParser(prog="python -m tf_ti", description=__doc__).parse_args()
    _print_versions()
    _print_processor()
    _print_devices()
    _print_ops()
    _print_xla()
    return 0 if _check() else 1


if __name__ == "__main__":
    sys.exit(main())
