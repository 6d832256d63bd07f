"""Prints the tests that the nightly jobs beside "everything" run: paths from tests/, for pytest.

Those of TensorFlow's insides, loops and bags run each night, and of the other rooms one, in turn.
"""

import datetime
import pathlib

ALWAYS = ["package/test_tensorflow_contract.py", "loops", "bags"]

TESTS = pathlib.Path(__file__).parents[1]
ROOMS = sorted({path.parent.name for path in TESTS.glob("*/test_*.py")} - {*ALWAYS})

if __name__ == "__main__":
    print(*ALWAYS, ROOMS[datetime.date.today().toordinal() % len(ROOMS)])
