"""A contender of a measurement that is there at once, and answers no command."""

import sys

if __name__ == "__main__":
    print('{"ready": true}', flush=True)
    sys.stdin.read()
