"""Runs the tests of a script one after the other and says what passed, as tests/lib.sh does."""

import sys
import traceback


def run_all(tests, call):
    """Calls `call(number, test)` for each test, a function whose docstring says what it shows, and exits with the verdict.
    A test fails by an exception; one that answers "skipped" counts neither way."""
    passed = failed = 0
    for number, test in enumerate(tests):
        try:
            if call(number, test) != "skipped":
                passed += 1
                print(f"ok   {test.__doc__}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {test.__name__}: {test.__doc__}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
