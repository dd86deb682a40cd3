"""Translate lines of standard input: `python translate.py < lines.txt > translations.txt`."""

import argparse
import sys
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from regard.errors import RegardError
from regard_lab.conversion.standalone.translating import load

AT_ONCE = 64  # lines


def main() -> int:
    """Translate line by line; the exit status is 1 after an error, which is one sentence."""
    parser = argparse.ArgumentParser(description="Translate lines of standard input.")
    parser.add_argument("--beam", type=int, default=1, help="hypotheses that are kept; 1 is greedy")
    parser.add_argument("--threads", type=int, default=1, help="how many compute a translation")
    options = parser.parse_args()
    lines_in = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline="\n")
    lines_out = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        translator = load(Path(__file__).parent, options.threads)
        while lines := [line.rstrip("\r\n") for line in islice(lines_in, AT_ONCE)]:
            for text in translator.translate(lines, options.beam):
                lines_out.write(" ".join(text.splitlines()) + "\n")
            lines_out.flush()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{error}; README.md names the packages that are installed\n")
        return 1
    except BrokenPipeError:  # whoever reads the output has closed it
        return 1
    except (RegardError, RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
