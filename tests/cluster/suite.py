"""What the scripts of tests have in common: their lists, which run one after the other and say what
passed, as tests/lib.sh does."""

import errno
import sys
import traceback

# The tests of the script, in their order.
TESTS = []


def test(function):
    """Makes a function one of the script's tests."""
    TESTS.append(function)
    return function


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def refused(code, call, *arguments, **keywords):
    """The call fails with this error number."""
    try:
        call(*arguments, **keywords)
    except OSError as error:
        assert (
            error.errno == code
        ), f"errno {errno.errorcode[error.errno]}, wanted {errno.errorcode[code]}"
        return
    raise AssertionError("succeeded")


def run_all(tests, call):
    """Calls `call(number, test)` for each test, a function with a docstring that says what it
    shows, and exits with the verdict. A test fails by an exception; one that answers "skipped"
    counts neither way."""
    passed = failed = 0
    for number, test in enumerate(tests):
        what = " ".join(test.__doc__.split())
        try:
            if call(number, test) != "skipped":
                passed += 1
                print(f"ok   {what}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {test.__name__}: {what}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
